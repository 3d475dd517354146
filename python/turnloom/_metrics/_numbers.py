"""Cumulative numbers, and their way into a trainer's queue."""

from __future__ import annotations

import queue
from collections import Counter
from typing import Any, Protocol

Metric = float | tuple[float, float]


class MetricsQueue(Protocol):
    """Where metrics go: `queue.Queue` and its kin of `multiprocessing`."""

    def put_nowait(self, item: Any, /) -> None: ...


class Metrics:
    """Cumulative numbers, of which a queue takes what is new since the last time it had room."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sums: dict[str, tuple[float, float]] = {}
        self._maxima: dict[str, float] = {}
        self._taken_counts: Counter[str] = Counter()
        self._taken_sums: dict[str, tuple[float, float]] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count. The name ends in `_total`, which trainers sum over their logging window."""
        self._counts[name] += number

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add `value` to a sum of which `weight` is the count; a share is the mean of what is 0 or 1."""
        total, count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (total + value, count + weight)

    def maximum(self, name: str, value: float) -> None:
        """Raise a maximum. The name ends in `_max`; it starts anew with each push."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def counts(self) -> dict[str, int]:
        """All counts since the beginning."""
        return dict(self._counts)

    def means(self) -> dict[str, float]:
        """All means since the beginning."""
        return {name: total / count for name, (total, count) in self._sums.items() if count}

    def new(self) -> dict[str, Metric]:
        """What the queue has not taken yet."""
        found: dict[str, Metric] = dict(self._maxima)
        found.update((name, float(n)) for name, n in (self._counts - self._taken_counts).items())
        for name, (total, count) in self._sums.items():
            taken_total, taken_count = self._taken_sums.get(name, (0.0, 0.0))
            if count > taken_count:
                found[name] = (total - taken_total, count - taken_count)
        return found

    def push(self, metrics_queue: MetricsQueue) -> bool:
        """Offer what is new; what a full queue does not take stays for the next time. Whether it was taken."""
        new = self.new()
        if not new:
            return True
        try:
            metrics_queue.put_nowait(new)
        except queue.Full:
            return False
        self._taken_counts, self._taken_sums = self._counts.copy(), self._sums.copy()
        self._maxima.clear()
        return True
