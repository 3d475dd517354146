"""Measurements as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from turnloom.bench._decoders import DECODERS
from turnloom.bench._measurement import Measurement

_NOT_TIMED: Final = "–"


def cells(measurements: Sequence[Measurement]) -> list[list[str]]:
    """The lines of the table, of which the first is its head: milliseconds, times faster than a decoder, and GB/s."""
    rivals = [name for name in DECODERS if any(name in {**it.seconds, **it.not_timed} for it in measurements)]
    ways = {**{rival: rival for rival in rivals}, "turnloom": "turnloom", "in_chunks": "64 KiB chunks"}
    head = ["body", "MB", *(f"{label} ms" for label in ways.values()), *(f"{rival} ×" for rival in rivals)]
    return [[*head, "GB/s", "memcmp GB/s"], *(_line(it, list(ways), rivals) for it in measurements)]


def _line(it: Measurement, ways: list[str], rivals: list[str]) -> list[str]:
    times = [_digits(1e3 * it.seconds[way]) if way in it.seconds else _NOT_TIMED for way in ways]
    ratios = [
        f"{it.seconds[rival] / it.seconds['turnloom']:.1f}" if rival in it.seconds else _NOT_TIMED for rival in rivals
    ]
    rates = [f"{it.bytes / it.seconds[way] / 1e9:.2f}" for way in ("turnloom", "memcmp")]
    return [it.body, _digits(it.bytes / 1e6), *times, *ratios, *rates]


def _digits(number: float) -> str:
    """The number, rounded to three digits."""
    return f"{float(f'{number:.3g}'):g}"


def markdown(measurements: Sequence[Measurement]) -> str:
    """The table in Markdown, a line for each body."""
    head, *lines = cells(measurements)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---", *["--:"] * (len(head) - 1)], *lines))
