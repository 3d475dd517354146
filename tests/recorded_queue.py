"""What a trainer took from its worker."""

from typing import Any


class RecordedQueue:
    """The trainer's end of the worker's queue; remembers the samples that were taken."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.taken: list[Any] = []

    def get(self, timeout: float) -> Any:
        self.taken.append(self._samples.get(timeout=timeout))
        return self.taken[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._samples, name)
