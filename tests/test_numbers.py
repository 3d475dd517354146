"""Logprobs are the bits of `numpy.float32(float(text))`, whatever decimal a server writes.

`benches/decimals.py` runs the same over ten million texts.
"""

import math
import random
from fractions import Fraction

import pytest

import decimals


def test_decimals_that_are_hard_to_round() -> None:
    compared = decimals.compare(seed=1, count=400_000)
    assert compared.keys() == {family.__name__ for family in decimals.FAMILIES}


def test_the_middles_are_middles() -> None:
    """What makes the decimals hard: they lie exactly between two neighbours."""
    rng = random.Random(2)
    for _ in range(2_000):
        double = decimals.as_double(rng.randrange(0x7FEF << 48))
        middle = (Fraction(double) + Fraction(math.nextafter(double, math.inf))) / 2
        assert Fraction(decimals.between_doubles(double)) == middle


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decimals, "SENTINEL", -2.0)
    with pytest.raises(decimals.Mismatch, match=r"^-2\.0 is"):
        decimals.require_equal(["-1.5", "-2.0"], ",", 64)


@pytest.mark.parametrize("text", ["-0.5", "-1.1920928955078125e-07", "1E5", "-0", "-9998.999", "3.4028235e38", "1e-46"])
def test_what_stands_around_a_number_is_no_matter(text: str) -> None:
    for separator in decimals.SEPARATORS:
        for piece in (1, 2, 3, *decimals.PIECES):
            decimals.require_equal([text] * 50, separator, piece)
