"""The demo as a process: what it says, what it leaves, that it learns honestly, and that it ends when it is told to."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnloom

# Ending it

GUARDED = """
import multiprocessing, sys, time
from pathlib import Path
import rich.console
from turnloom.demo import guard
from turnloom.demo.progress import Bar

def main():
    guard._STANDSTILL_S = float(sys.argv[1])
    console = rich.console.Console()
    bar = Bar(console, steps=1)
    with guard.Guard(bar, console, out=Path(sys.argv[2])):
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
        try:
            print(child.pid, flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            if sys.argv[3] == "stubborn":
                time.sleep(600)
            raise

if __name__ == "__main__":
    main()
"""


def guarded(tmp_path: Path, standstill_s: float, manner: str = "") -> tuple[subprocess.Popen[str], int]:
    """A process under the demo's guard, and the id of its child."""
    script = tmp_path / "guarded.py"
    script.write_text(GUARDED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(standstill_s), str(tmp_path), manner],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def environment() -> dict[str, str]:
    """This process's, so that turnloom is found where it is found here."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_and_kills_the_children(tmp_path: Path, number: signal.Signals) -> None:
    process, child = guarded(tmp_path, 60)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert not is_alive(child)


def test_who_does_not_leave_after_a_signal_is_made_to(tmp_path: Path) -> None:
    process, child = guarded(tmp_path, 60, "stubborn")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert not is_alive(child)


def test_a_run_that_stands_still_says_where_and_ends(tmp_path: Path) -> None:
    process, child = guarded(tmp_path, 0.5)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "nothing has happened" in said
    assert "since: starting" in said
    assert "in main" in (tmp_path / "stuck.txt").read_text()
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# The command


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(CLI + list(arguments), capture_output=True, text=True, env=environment(), timeout=240)


CLI = [sys.executable, "-c", "from turnloom.cli import main; main()"]


def test_the_command_says_its_version() -> None:
    result = run_cli("--version")
    assert (result.returncode, result.stdout) == (0, f"turnloom {turnloom.__version__}\n")


@pytest.mark.parametrize(("missing", "extra"), [("typer", "cli"), ("rich", "cli"), ("trl", "demo")])
def test_a_missing_package_is_told_with_its_extra(missing: str, extra: str) -> None:
    hide = textwrap.dedent(f"""
        import importlib.util, sys
        find_spec = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else find_spec(name, *rest)
        sys.modules[{missing!r}] = None
        from turnloom.cli import main
        main()
    """)
    result = subprocess.run(
        [sys.executable, "-c", hide, "demo"], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert result.returncode == 2
    assert f"{missing} " in result.stderr
    assert f"pip install 'turnloom[{extra}]'" in result.stderr


# All of it

STEPS = 20


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A short run: its folder, and how it ended."""
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, run_cli("demo", "--steps", str(STEPS), "--out", str(out))


def summary_of(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


@pytest.mark.train
@pytest.mark.timeout(300)
def test_a_short_run_rises_and_leaves_everything(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, result = demo
    summary = summary_of(out)
    assert set(summary) == {"reward_first", "reward_last", "seconds", "steps", "rollouts", "outcomes"}
    assert summary["reward_first"] < 0.3
    assert summary["reward_last"] > summary["reward_first"] + 0.15
    assert summary["steps"] == STEPS
    assert set(summary["outcomes"]) == {"ok"}
    assert summary["rollouts"] == sum(summary["outcomes"].values()) > STEPS * 64
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in metrics] == list(range(1, STEPS + 1))
    assert metrics[0]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert (out / "reward.png").read_bytes().startswith(b"\x89PNG")
    # Twenty steps are too few to learn it, and the demo does not pretend.
    assert result.returncode == 1
    assert "It did not learn" in result.stdout
    for said in ("before training", "after training", "price of", f"step {STEPS}/{STEPS}"):
        assert said in result.stdout
    assert result.stderr == ""


@pytest.mark.train
@pytest.mark.timeout(300)
def test_without_weight_sync_nothing_is_learned(
    demo: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run_cli("demo", "--steps", str(STEPS), "--out", str(tmp_path), "--no-weight-sync")
    summary, synced = summary_of(tmp_path), summary_of(demo[0])
    assert summary["steps"] == STEPS
    assert abs(summary["reward_last"] - summary["reward_first"]) < 0.08
    assert synced["reward_last"] > summary["reward_last"] + 0.15


@pytest.mark.train
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGTERM, "importing"), (signal.SIGINT, "starting the worker"), (signal.SIGINT, "training")],
)
def test_a_signal_ends_everything_within_five_seconds(tmp_path: Path, number: signal.Signals, when: str) -> None:
    process = subprocess.Popen(
        [*CLI, "demo", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    has_come = {
        "importing": lambda: len(descendants(process.pid)) >= 1,  # the servers
        "starting the worker": lambda: len(descendants(process.pid)) >= 3,  # and multiprocessing's tracker, and it
        "training": lambda: any(path.stat().st_size for path in tmp_path.glob("metrics.jsonl")),
    }
    wait_until(has_come[when], process)
    family = descendants(process.pid)
    process.send_signal(number)
    until = time.monotonic() + 5
    said, errors = process.communicate(timeout=30)
    assert time.monotonic() < until
    assert (process.returncode, errors) == (128 + number, "")
    assert f"stopped by {number.name}" in said
    # Python's own tracker of shared memory ends when it sees that its parent has.
    wait_until(lambda: not any(map(is_alive, family)), until=until)


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def wait_until(
    holds: Callable[[], bool], process: subprocess.Popen[str] | None = None, *, until: float | None = None
) -> None:
    """Look until it holds: there is nothing to wait on in a process that is not ours."""
    deadline = until or time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
