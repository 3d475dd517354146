"""A bound of the seconds in which nothing moves."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Silence:
    """Ends its `async with` block by a TimeoutError once nothing has moved for so many seconds; None is no bound.

    It begins with the first `moved`. That is called with every piece of every rollout, and so only notes the time: the
    one timer that there is looks at what was noted, and sets itself anew.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._moved_at = 0.0

    async def __aenter__(self) -> Self:
        await self._end.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._end.__aexit__(kind, error, traceback)

    def moved(self, now: float) -> None:
        """Something has, at this time of the loop's."""
        self._moved_at = now
        if self._timer is None and self._seconds is not None:
            self._timer = self._loop.call_at(now + self._seconds, self._look)

    def expired(self) -> bool:
        """Whether it has ended the block."""
        return self._end.expired()

    def _look(self) -> None:
        assert self._seconds is not None
        until = self._moved_at + self._seconds
        if until <= self._loop.time():
            self._end.reschedule(until)
        else:
            self._timer = self._loop.call_at(until, self._look)
