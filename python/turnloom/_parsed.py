"""What the core hands over, decoded no further than asked."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.int64]
_Row = tuple[_Ids, _Ids, NDArray[np.float32], _Ids]


def decode(residual: bytes) -> Any:
    """The JSON value that a piece of the residual is."""
    text = residual.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except RecursionError:
        # The caller is deep in its stack; that of a new thread is deep enough for whatever the core accepts.
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(json.loads, text).result()


def new_rollout_id() -> str:
    """32 hexadecimal digits that nobody else draws: the system's randomness, which seeds and forks do not repeat."""
    return os.urandom(16).hex()


def is_rollout_id(value: Any) -> bool:
    """Whether it could be one of them."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


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

    def begins_with(self, key: str, first_bytes: bytes) -> bool:
        """Whether the value of `key` begins with one of these bytes, without decoding it."""
        return key in self._spans and self._residual[self._spans[key][0]] in first_bytes

    def number(self, key: str) -> float | None:
        """The value of `key` if it is a number or a boolean, infinite where a double cannot hold it, else None."""
        if not self.begins_with(key, b"-0123456789tfNI"):
            return None
        start, end = self._spans[key]
        text = self._residual[start:end]
        return float(text == b"true") if text in (b"true", b"false") else float(text)

    def size(self, key: str) -> int:
        """Bytes of the value of `key`."""
        start, end = self._spans.get(key, (0, 0))
        return end - start


class Parsed:
    """What the core hands over, decoded no further than asked."""

    def __init__(
        self,
        residual: bytes,
        members: list[tuple[str, int, int]],
        response: list[tuple[str, int, int]],
        rows: list[_Row],
        turns: list[Any],
        defects: list[Any],
        drift: dict[str, int],
        lost: list[tuple[int, _Ids]],
        *,
        rollout_id: str | None = None,
    ) -> None:
        self.residual = residual
        self.members = Members(residual, members)
        self.response = Members(residual, response)
        self.rows = rows
        self.turns = turns
        self.defects = defects
        self.drift = drift
        self.lost = dict(lost)
        self.rollout_id = rollout_id or new_rollout_id()

    def was_cut_at_once(self) -> bool:
        """Whether the response says that it was cut, and tells of no token that was generated before."""
        usage = self.response.get("usage")
        generated = usage.get("output_tokens") if isinstance(usage, dict) else None
        return self.response.get("incomplete_details") is not None and not as_number(generated)


def nothing() -> Parsed:
    """What there is where no answer came."""
    return Parsed(b"", [], [], [], [], [], {}, [])


def as_number(value: Any) -> float | None:
    """A number or a boolean as a float, infinite where a double cannot hold it; None for anything else."""
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
