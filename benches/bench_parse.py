"""Times `parse_run` and `RunParser` beside the ways without them, on the same bodies, with the same results.

    python benches/bench_parse.py [--fast] [--json FILE] [name ...]

Every way is checked to give the same rows first. Then each way runs once a round, in another order each time, so that
whatever else the machine does, and what the way before left in caches and allocators, falls on all of them alike. The
figures are medians of the time that the processor gave to the thread: all ways run in one thread, and what other
processes do counts as little as possible. `memcmp` compares two copies of the body: faster it cannot be read.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import make_corpus
import turnloom
from pure_python import Row, training_rows, turns_of
from rivals import msgspec_turns, orjson_turns, simdjson_turns

CHUNK = 65_536
RIVALS = {"json": turns_of, "orjson": orjson_turns, "msgspec": msgspec_turns, "simdjson": simdjson_turns}
JSON_TARGETS = {"small": 12, "mid": 60, "big": 130, "single": 15, "forked": 15, "spaced_big": 100}
"""Times faster than the json way that one call of `parse_run` is meant to be."""
ORJSON_TARGETS = {"mid": 40, "big": 90, "single": 6}
SECONDS_PER_BODY = 10.0
FAST = ("small", "mid")


def one_shot(body: bytes) -> turnloom.Rollout:
    return turnloom.parse_run(body)


def in_chunks(chunks: list[bytes]) -> turnloom.Rollout:
    parser = turnloom.RunParser()
    for chunk in chunks:
        parser.feed(chunk)
    return parser.finish()


def cut(body: bytes) -> list[bytes]:
    return [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Median seconds of all the ways through one body."""
    body = make_corpus.body(name)
    copy = bytes(bytearray(body))
    require_equal_rows(name, body)
    ways: dict[str, Callable[[], Any]] = {
        **{rival: partial(training_rows, body, turns_of=turns) for rival, turns in RIVALS.items()},
        "turnloom": partial(one_shot, body),
        "in_chunks": partial(in_chunks, cut(body)),
        "memcmp": lambda: body == copy,
    }
    return {"body": name, "bytes": len(body), **median_seconds(ways, seconds, repeats=1 + 1_000_000 // len(body))}


def require_equal_rows(name: str, body: bytes) -> None:
    """All ways give the same rows, bit for bit; else there is nothing to compare."""
    expected = training_rows(body)
    assert expected, f"{name}: no rows"
    ways = {rival: partial(training_rows, turns_of=turns) for rival, turns in RIVALS.items()}
    ways["parse_run"] = lambda body: list(map(arrays, one_shot(body).rows))
    ways["RunParser"] = lambda body: list(map(arrays, in_chunks(cut(body)).rows))
    for way, run in ways.items():
        rows = run(body)
        assert len(rows) == len(expected), f"{name}: {way} gives {len(rows)} rows, json {len(expected)}"
        for row, other in zip(rows, expected, strict=True):
            assert same_bits(row, other), f"{name}: {way} gives other rows than json"


def same_bits(row: Row, other: Row) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(row, other, strict=True))


def arrays(row: turnloom.TrainingRow) -> Row:
    return row.input_ids, row.completion_mask, row.old_log_probs


def median_seconds(ways: dict[str, Callable[[], Any]], seconds: float, repeats: int) -> dict[str, float]:
    """Median seconds of each way over five rounds, or as many more as fit in the time; a small body is parsed several
    times in a row."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    shuffled = random.Random(0)
    end = time.perf_counter() + seconds
    while len(times["json"]) < 5 or time.perf_counter() < end:
        for way, run in shuffled.sample(list(ways.items()), len(ways)):
            start = time.thread_time()
            for _ in range(repeats):
                run()
            times[way].append((time.thread_time() - start) / repeats)
    return {way: statistics.median(each) for way, each in times.items()}


def table(results: list[dict[str, Any]]) -> str:
    """The figures in Markdown."""
    head = ["body", "MB", *(f"{rival} ms" for rival in RIVALS), "**turnloom ms**", "64 KiB chunks ms"]
    head += [f"{rival} ×" for rival in RIVALS] + ["GB/s", "memcmp GB/s"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for result in results:
        name, size, ours = result["body"], result["bytes"], result["turnloom"]
        ways = [f"{float(f'{1e3 * result[way]:.3g}'):g}" for way in (*RIVALS, "turnloom", "in_chunks")]
        ratios = [f"{result[rival] / ours:.1f}" for rival in RIVALS]
        rates = [f"{size / seconds / 1e9:.2f}" for seconds in (ours, result["memcmp"])]
        lines.append([name, f"{size / 1e6:.2f}", *ways, *ratios, *rates])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def against_targets(results: list[dict[str, Any]]) -> list[str]:
    """What was to be reached, and what was."""
    lines = []
    for result in results:
        name, ours = result["body"], result["turnloom"]
        for rival, targets in (("json", JSON_TARGETS), ("orjson", ORJSON_TARGETS)):
            if name in targets:
                ratio, target = result[rival] / ours, targets[name]
                word = "reached" if ratio >= target else "NOT reached"
                lines.append(f"{name}: {ratio:.1f} × {rival}, {word}: ≥ {target} ×")
        chunked = result["in_chunks"] / ours
        lines.append(f"{name}: chunked {chunked:.2f} × one-shot, {'' if chunked <= 1.25 else 'NOT '}reached: ≤ 1.25 ×")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(make_corpus.SHAPES), help="bodies; all by default")
    parser.add_argument("--fast", action="store_true", help="two bodies, a second each")
    parser.add_argument("--json", type=Path, help="write the medians, in seconds, to this file too")
    arguments = parser.parse_args()
    names, seconds = (FAST, 1.0) if arguments.fast else (arguments.names, SECONDS_PER_BODY)
    results = [measure(name, seconds) for name in names]
    print(f"numpy {np.__version__}, turnloom {turnloom.__version__}; medians, all rows equal bit for bit\n")
    print(table(results), "\n")
    print("\n".join(against_targets(results)))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
