"""Times `turnloom.bench.measure` on all bodies that it makes, beside what is to be reached.

python benches/bench_parse.py [--fast] [--json FILE] [name ...]
"""

import argparse
import json
from pathlib import Path

import make_corpus
from turnloom.bench import SHAPES, Measurement, markdown, measure, versions
from turnloom.bench._measurement import SECONDS_PER_BODY

JSON_TARGETS = {"small": 12, "mid": 60, "big": 130, "single": 15, "forked": 15, "spaced_big": 100}
"""Times faster than the json way that one call of `parse_run` is meant to be."""
ORJSON_TARGETS = {"mid": 40, "big": 90, "single": 6}
CHUNKS_TARGET = 1.25
"""Times as long as one call that a body in chunks may take."""
FAST = ("small", "mid")
FAST_SECONDS = 1.0


def against_targets(measurement: Measurement) -> list[str]:
    """What was to be reached, and what was."""
    name, seconds = measurement.body, measurement.seconds
    lines = []
    for rival, targets in (("json", JSON_TARGETS), ("orjson", ORJSON_TARGETS)):
        if name in targets:
            ratio = seconds[rival] / seconds["turnloom"]
            word = "reached" if ratio >= targets[name] else "NOT reached"
            lines.append(f"{name}: {ratio:.1f} × {rival}, {word}: ≥ {targets[name]} ×")
    chunked = seconds["in_chunks"] / seconds["turnloom"]
    word = "reached" if chunked <= CHUNKS_TARGET else "NOT reached"
    return [*lines, f"{name}: chunked {chunked:.2f} × one-shot, {word}: ≤ {CHUNKS_TARGET} ×"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SHAPES), help="bodies; all by default")
    parser.add_argument("--fast", action="store_true", help="two bodies, a second each")
    parser.add_argument("--json", type=Path, help="write the measurements to this file too")
    arguments = parser.parse_args()
    names, seconds = (FAST, FAST_SECONDS) if arguments.fast else (arguments.names, SECONDS_PER_BODY)
    measurements = [measure(make_corpus.body(name), name=name, seconds=seconds) for name in names]
    for measurement in measurements:
        assert not measurement.not_timed, f"{measurement.body}: {measurement.not_timed}"
    print(", ".join(f"{name} {version}" for name, version in versions().items()), "\n")
    print(markdown(measurements), "\n")
    print("\n".join(line for measurement in measurements for line in against_targets(measurement)))
    if arguments.json:
        arguments.json.write_text(json.dumps([each.to_json() for each in measurements], indent=1) + "\n")


if __name__ == "__main__":
    main()
