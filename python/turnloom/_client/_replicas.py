"""The servers of one agent: which of them a rollout goes to, and what is done about those that take no connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from itertools import count
from typing import Self

from turnloom._client import _backoff
from turnloom._client._backoff import BackOff
from turnloom._client._urls import ServerUrl

logger = logging.getLogger("turnloom")


class Replica:
    """One server of an agent, as this client has found it.

    Attributes:
        in_flight: how many tries are under way at it.
        aside_since: the loop's time since which it is put aside, if it is.
        changes: how often it was put aside or taken back. What a try says that began before the last is no news.
        used: a number that is higher the later it was last used.
    """

    def __init__(self, server: ServerUrl) -> None:
        self.server = server
        self.in_flight = 0
        self.aside_since: float | None = None
        self.changes = 0
        self.used = 0
        self.back_off = BackOff()


class Replicas:
    """The servers of one agent.

    A rollout goes to the server with the fewest in flight, of equals to the one that was used least lately. A server
    that takes no connection is put aside, and its rollouts go to the others; once its back-off is over one rollout is
    sent to it, as a probe. While all are aside the rollouts wait, and one at a time probes, with a back-off of the
    agent's; a connection ends the wait for all.

    Attributes:
        failures: how many tries have failed that left no server to send to.
        last_failure: what the last of them met with, as long as there is no server to send to; else empty.
        waiting: how many rollouts wait for a server that takes connections.
    """

    def __init__(self, agent: str, servers: Iterable[ServerUrl]) -> None:
        self.all = tuple(Replica(server) for server in servers)
        self.failures = 0
        self.waiting = 0
        self.last_failure = ""
        self.in_flight: dict[Attempt, float] = {}
        self._agent = agent
        self._outage = BackOff()
        self._probed = False
        self._news = asyncio.Event()
        self._uses = count(1)

    async def attempt(self, *, failures_before: int) -> Attempt | None:
        """The next try of a rollout, after a wait where no server takes connections; None when it is in vain.

        Args:
            failures_before: `failures` when the rollout began.
        """
        while (replica := self._next()) is None:
            if min(self.failures - failures_before, self._outage.failures) >= _backoff.MAX_TRIES:
                return None
            self.waiting += 1
            try:
                await (self._news.wait() if self._probed else self._pause())
            finally:
                self.waiting -= 1
        return Attempt(self, replica)

    def _next(self) -> Replica | None:
        up = [replica for replica in self.all if replica.aside_since is None]
        if len(up) < len(self.all) and not self._probed:
            aside = (replica for replica in self.all if replica.aside_since is not None)
            longest = min(aside, key=lambda replica: replica.back_off.until)
            if (longest.back_off if up else self._outage).until <= asyncio.get_running_loop().time():
                return longest
        return min(up, key=lambda replica: (replica.in_flight, replica.used), default=None)

    async def _pause(self) -> None:
        """Until the next probe is due, which whoever called this will be."""
        self._probed = True
        try:
            await asyncio.sleep(self._outage.until - asyncio.get_running_loop().time())
        except BaseException:
            self._end_of_probe()
            raise
        self._probed = False

    def _begin(self, attempt: Attempt) -> None:
        replica, now = attempt.replica, asyncio.get_running_loop().time()
        replica.in_flight += 1
        replica.used = next(self._uses)
        self.in_flight[attempt] = now
        if replica.aside_since is not None:
            self._probed = True
            replica.back_off.trying(now)
            self._outage.trying(now)

    def _end(self, attempt: Attempt) -> None:
        attempt.replica.in_flight -= 1
        del self.in_flight[attempt]

    def _end_of_probe(self) -> None:
        self._probed = False
        self._news.set()  # for those who wait now
        self._news.clear()

    def _put_aside(self, replica: Replica, why: str) -> None:
        now = asyncio.get_running_loop().time()
        replica.back_off.failed(now)
        up = sum(other.aside_since is None for other in self.all if other is not replica)
        if replica.aside_since is None:
            replica.aside_since = now
            replica.changes += 1
            then = f"its rollouts go to {up} other{'s' * (up > 1)}" if up else "rollouts wait, and one at a time tries"
            logger.warning(
                "agent %r: %s takes no connection and is put aside; %s: %s",
                self._agent,
                replica.server.shown,
                then,
                why,
            )
        if not up:
            self._outage.failed(now)
            self.failures += 1
            self.last_failure = why

    def _take_back(self, replica: Replica) -> None:
        assert replica.aside_since is not None
        seconds = asyncio.get_running_loop().time() - replica.aside_since
        replica.aside_since = None
        replica.changes += 1
        self.last_failure = ""
        logger.warning("agent %r: %s takes connections again, after %.1f s", self._agent, replica.server.shown, seconds)

    def _works(self, replica: Replica) -> None:
        replica.back_off.clear()
        self._outage.clear()


class Attempt:
    """One try of one rollout at one server, which lasts as long as its `with` block."""

    def __init__(self, replicas: Replicas, replica: Replica) -> None:
        self.replica = replica
        self._replicas = replicas
        self._changes = replica.changes
        self._probes = replica.aside_since is not None

    def __enter__(self) -> Self:
        self._replicas._begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_probe()
        self._replicas._end(self)

    def connected(self) -> None:
        """The server took the connection: whoever waits for it need not wait until it has answered, too."""
        if self._probes:
            self._replicas._take_back(self.replica)
            self._changes = self.replica.changes
            self._end_probe()

    def refused(self, why: str) -> None:
        """The server surely got nothing."""
        if self._changes == self.replica.changes:
            self._replicas._put_aside(self.replica, why)
        self._end_probe()

    def delivered(self) -> None:
        """The server got the row, whatever came of it."""
        self.connected()
        if self._changes == self.replica.changes:
            self._replicas._works(self.replica)

    def _end_probe(self) -> None:
        if self._probes:
            self._probes = False
            self._replicas._end_of_probe()
