"""What the core hands over, decoded no further than asked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def decode(residual: bytes) -> Any:
    return json.loads(residual.decode("utf-8", "replace"))


class Members(Mapping[str, Any]):
    """The members of one object of the residual, each decoded when asked for. Of equal keys the last counts."""

    def __init__(self, residual: bytes, members: list[tuple[str, int, int]]) -> None:
        self._residual = residual
        self._spans = {key: (start, end) for key, start, end in members}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            start, end = self._spans[key]
            self._values[key] = decode(self._residual[start:end])
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def opens_with(self, key: str, bracket: bytes) -> bool:
        """Whether the value of `key` is an object (`b"{"`) or a list (`b"["`), without decoding it."""
        start, _ = self._spans.get(key, (0, 0))
        return key in self._spans and self._residual[start : start + 1] == bracket


class Parsed:
    """What the core hands over, decoded no further than asked."""

    def __init__(
        self,
        residual: bytes,
        members: list[tuple[str, int, int]],
        response: list[tuple[str, int, int]],
        rows: list[Any],
        turns: list[Any],
        defects: list[Any],
        drift: dict[str, int],
        lost: list[tuple[int, NDArray[np.int64]]],
    ) -> None:
        self.residual = residual
        self.members = Members(residual, members)
        self.response = Members(residual, response)
        self.rows = rows
        self.turns = turns
        self.defects = defects
        self.drift = drift
        self.lost = dict(lost)


NOTHING = Parsed(b"", [], [], [], [], [], {}, [])


def as_number(value: Any) -> float | None:
    """A number or a boolean as a float, infinite where a double cannot hold it; None for anything else."""
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
