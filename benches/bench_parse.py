"""Times `parse_run` and `RunParser` beside the pure-Python way, on the same bodies, with the same results.

    python benches/bench_parse.py [--fast] [--json FILE] [name ...]

Every way is checked to give the same rows first. Then each way runs once a round, in another order each time, so that
whatever else the machine does, and what the way before left in caches and allocators, falls on all of them alike. The
figures are medians.
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
import orjson

import make_corpus
import turnloom
from pure_python import Row, training_rows

CHUNK = 65_536
TARGETS = {"big": 100, "mid": 40, "single": 10, "small": 8}
"""Times faster than the json way that one call of `parse_run` is meant to be."""
SECONDS_PER_BODY = 6.0


def one_shot(body: bytes) -> turnloom.Rollout:
    return turnloom.parse_run(body)


def in_chunks(body: bytes) -> turnloom.Rollout:
    parser = turnloom.RunParser()
    for start in range(0, len(body), CHUNK):
        parser.feed(body[start : start + CHUNK])
    return parser.finish()


def measure(name: str) -> dict[str, Any]:
    """Medians in seconds of all the ways through one body."""
    body = make_corpus.body(name)
    copy = bytes(bytearray(body))
    require_equal_rows(name, body)
    ways: dict[str, Callable[[], Any]] = {
        "json": partial(training_rows, body),
        "orjson": partial(training_rows, body, loads=orjson.loads),
        "turnloom": partial(one_shot, body),
        "in_chunks": partial(in_chunks, body),
        "memcmp": lambda: body == copy,
    }
    return {"body": name, "bytes": len(body), **median_seconds(ways)}


def require_equal_rows(name: str, body: bytes) -> None:
    """All ways give the same rows, bit for bit; else there is nothing to compare."""
    expected = training_rows(body)
    assert expected, f"{name}: no rows"
    for way, rows in {
        "orjson": training_rows(body, loads=orjson.loads),
        "parse_run": one_shot(body).rows,
        "RunParser": in_chunks(body).rows,
    }.items():
        assert len(rows) == len(expected), f"{name}: {way} gives {len(rows)} rows, json {len(expected)}"
        for row, other in zip(rows, expected, strict=True):
            assert same_bits(row, other), f"{name}: {way} gives other rows than json"


def same_bits(row: Row, other: Row) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(row, other, strict=True))


def median_seconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each way over five rounds, or as many more as fit in the time."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    shuffled = random.Random(0)
    end = time.perf_counter() + SECONDS_PER_BODY
    while len(seconds["json"]) < 5 or time.perf_counter() < end:
        for way, run in shuffled.sample(list(ways.items()), len(ways)):
            start = time.perf_counter()
            result = run()
            seconds[way].append(time.perf_counter() - start)
            del result
    return {way: statistics.median(times) for way, times in seconds.items()}


def print_table(results: list[dict[str, Any]]) -> None:
    head = (
        "body",
        "MB",
        "json ms",
        "orjson ms",
        "turnloom ms",
        "64 KiB ms",
        "GB/s",
        "memcmp GB/s",
        "json ×",
        "orjson ×",
    )
    print(("{:9}" + "{:>12}" * 9 + "{:>9}").format(*head, "target"))
    for result in results:
        size, ours = result["bytes"], result["turnloom"]
        milliseconds = [1e3 * result[way] for way in ("json", "orjson", "turnloom", "in_chunks")]
        rates = [size / ours / 1e9, size / result["memcmp"] / 1e9]
        ratios = [result["json"] / ours, result["orjson"] / ours]
        target = f"≥ {TARGETS[result['body']]}" if result["body"] in TARGETS else ""
        row = (result["body"], size / 1e6, *milliseconds, *rates, *ratios, target)
        print("{:9}{:12.2f}{:12.3f}{:12.3f}{:12.3f}{:12.3f}{:12.2f}{:12.2f}{:12.1f}{:12.1f}{:>9}".format(*row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(make_corpus.SHAPES), help="bodies; all by default")
    parser.add_argument("--fast", action="store_true", help="the small body only")
    parser.add_argument("--json", type=Path, help="write the medians, in seconds, to this file too")
    arguments = parser.parse_args()
    results = [measure(name) for name in (["small"] if arguments.fast else arguments.names)]
    print(f"numpy {np.__version__}, turnloom {turnloom.__version__}; medians, all rows equal bit for bit")
    print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
