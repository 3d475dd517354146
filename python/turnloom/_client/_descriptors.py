"""Waiting for a file descriptor, where this process has run out of them: no fault of any agent."""

from __future__ import annotations

import asyncio
import logging

from turnloom._client._backoff import pause

logger = logging.getLogger("turnloom")


class Descriptors:
    """What the rollouts of a client know of the file descriptors that others of them hold.

    Attributes:
        byte_moved_at: the loop's time when a rollout of the client last sent or received a byte.
    """

    def __init__(self) -> None:
        self.byte_moved_at = 0.0
        self._told = False

    def byte_moved(self, now: float) -> None:
        self.byte_moved_at = now

    def quiet_since(self, began: float) -> float:
        """Seconds in which no rollout moved a byte, since `began`: nothing is about to end, then."""
        return asyncio.get_running_loop().time() - max(began, self.byte_moved_at)

    async def wait(self, time_limit: asyncio.Timeout) -> None:
        """A pause that is not counted by the time limit."""
        if not self._told:
            self._told = True
            logger.warning("too many open files: rollouts wait until others have ended; raise the limit (ulimit -n)")
        seconds = pause(1)
        if (when := time_limit.when()) is not None and not time_limit.expired():
            time_limit.reschedule(when + seconds)
        await asyncio.sleep(seconds)
