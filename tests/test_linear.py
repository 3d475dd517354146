"""Nothing is quadratic, and nothing is held that does not come out: bodies made to cost as much as they can.

There is no count of steps that would do without a clock: the work is in the loops of the core, and what counts its
instructions is not on every machine. So CPU times of this process are compared, of a body and of one eight times as
large. A linear cost stays the same per byte, a quadratic one is eight times as much; the bound lies between, and the
least of several runs counts, since whatever else the machine does only adds.

`benches/curve.py` prints the curves.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import curve
import turnloom
from curve import SHAPES, Shape

SMALL, LARGE = 0.25, 2.0
MOST_PER_BYTE = 2.5
"""How much more a byte may cost in the large body than in the small one: caches, and pages that are new."""
MEGABYTE = 1_000_000


@pytest.mark.parametrize("name", SHAPES)
def test_time_is_linear(name: str) -> None:
    assert_linear(SHAPES[name])


def assert_linear(shape: Shape) -> None:
    ratio = 0.0
    for _ in range(4):
        small, large = curve.measure(shape, SMALL), curve.measure(shape, LARGE)
        ratio = (large.seconds / large.work) / (small.seconds / small.work)
        if ratio < MOST_PER_BYTE:
            return
    raise AssertionError(f"a byte costs {ratio:.1f} times as much in a body eight times as large")


def test_a_quadratic_cost_is_seen() -> None:
    def quadratic(pieces: list[bytes], _: object) -> int:
        return 0 * sum(1 for _ in pieces for _ in pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "_parse", quadratic)
        with pytest.raises(AssertionError, match="times as much"):
            assert_linear(Shape(lambda kilobytes: b" " * kilobytes * 1_000, {}, kilobytes=400, piece=1_000))


MEASURE = """
    import sys, turnloom
    from high_water import high_water
    from turnloom import _native

    parser = _native.Parser(fork_threshold_tokens=int(sys.argv[1]), best_branch=sys.argv[2] == "best")
    turnloom.parse_run("{}")
    before = high_water()
    arrays = objects = 0
    try:
        while piece := sys.stdin.buffer.read(int(sys.argv[3])):
            parser.feed(piece)
        residual, members, response, rows, turns, defects, _, lost = parser.finish()
        arrays = len(residual) + sum(20 * len(row[0]) for row in rows) + sum(8 * len(ids) for _, ids in lost)
        objects = len(members) + len(response) + 2 * len(rows) + len(turns) + len(defects)
    except turnloom.MalformedBody:
        pass
    print(high_water() - before, arrays, objects)
"""


@pytest.mark.parametrize("name", SHAPES)
def test_memory_is_what_comes_out(name: str) -> None:
    shape = SHAPES[name]
    settings = {"fork_threshold_tokens": 1024, "branches": "linear"} | shape.settings
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), *map(str, settings.values()), str(shape.piece)]
    paths = [str(Path(__file__).parent), str(Path(turnloom.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    body = shape.make(shape.kilobytes * 4)
    done = subprocess.run(command, env=environment, input=body, capture_output=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    held, arrays, objects = map(int, done.stdout.split())
    assert held < 4 * MEGABYTE + 3 * arrays + 700 * objects, (len(body), held, arrays, objects)
