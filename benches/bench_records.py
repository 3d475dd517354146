"""Measures what recording costs: bytes on the disk, processor time, memory; and what reading back costs.

    python benches/bench_records.py [--fast] [--bodies FOLDER]

Each answer is handed to the writer in the client's chunks, no faster than it takes them, and read back to training
rows. With `--bodies` the answers in the `real` folder of recorded NeMo Gym answers come in one line, a record for each.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import make_corpus
import turnloom
from turnloom._records import RecordWriter

BODIES = ("small", "mid", "big", "single", "forked", "spaced")
FAST = ("small", "mid", "forked")
REAL = "recorded of NeMo Gym"
CHUNK = 256 * 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--fast", action="store_true", help="leave the largest bodies out")
    arguments.add_argument("--bodies", type=Path, help="the folder of recorded NeMo Gym answers")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one is not None:
        print(line(given.one, given.bodies))
        return
    print("| answer | MB | on the disk KB | ratio | write CPU ms | memory MB | read back CPU ms | parse CPU ms |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in (*(FAST if given.fast else BODIES), *([REAL] if given.bodies is not None else [])):
        bodies = ["--bodies", str(given.bodies)] if name == REAL else []
        # A process for each: what one has taken from the system, the next would have for nothing.
        subprocess.run([sys.executable, __file__, "--one", name, *bodies], check=True)


def line(name: str, folder_of_real: Path | None) -> str:
    bodies = [make_corpus.body(name)] if folder_of_real is None else real_bodies(folder_of_real)
    with tempfile.TemporaryDirectory() as folder:
        write_ms, memory_mb = recorded(bodies, folder)
        disk = sum(path.stat().st_size for path in Path(folder).iterdir())
        read_ms = cpu_ms(lambda: [rollout.outcome for rollout in turnloom.replay(folder)])
        assert sorted(record.body() for record in turnloom.Records(folder)) == sorted(bodies)
    parse_ms = cpu_ms(lambda: [parsed(body) for body in bodies])
    size = sum(map(len, bodies))
    return (
        f"| {name} | {size / 1e6:.2f} | {disk / 1e3:.1f} | {size / disk:.1f} | {write_ms:.1f} | {memory_mb:.1f} | "
        f"{read_ms:.1f} | {parse_ms:.1f} |"
    )


def real_bodies(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "real").glob("*.response.json"))]


def recorded(bodies: Sequence[bytes], folder: str) -> tuple[float, float]:
    rollouts = [told(body) for body in bodies]

    def write() -> None:
        writer = RecordWriter(folder, max_bytes=None, when_full="wait")
        for body, rollout in zip(bodies, rollouts, strict=True):
            with writer.begin(b"{}", settings={}) as recording:
                for start in range(0, len(body), CHUNK):
                    recording.chunk(body[start : start + CHUNK])
                    wait_for(writer)
                recording.end(rollout)
        writer.close()

    before = resident("VmRSS", set_back=True)
    spent = cpu_ms(write)
    return spent, (resident("VmHWM") - before) / 1e6


def wait_for(writer: RecordWriter) -> None:
    with writer._changed:
        writer._changed.wait_for(lambda: writer._pending_bytes == 0)


def told(body: bytes) -> turnloom.Rollout:
    """The rollout as the client would hand it over."""
    try:
        rollout = turnloom.parse_run(body)
    except turnloom.MalformedBody as error:
        rollout = turnloom.Rollout("malformed", reason=str(error))
    rollout.timing = turnloom.Timing(body_bytes=len(body))
    return rollout


def parsed(body: bytes) -> None:
    with contextlib.suppress(turnloom.MalformedBody):
        turnloom.parse_run(body)


def cpu_ms(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return (time.process_time() - before) * 1e3


def resident(key: str, *, set_back: bool = False) -> int:
    if set_back:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) * 1024 for each in lines if each.startswith(key))


if __name__ == "__main__":
    main()
