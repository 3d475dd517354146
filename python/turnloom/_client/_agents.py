"""The agents of a client: how many requests each has in flight, and who waits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from turnloom._client._replicas import Replicas
from turnloom._client._urls import ServerUrl


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One server of an agent, at one moment."""

    url: str
    """As it was given, without user and password, nor a slash at its end."""
    in_flight: int
    """Requests that it has, or that are on their way to it."""
    put_aside: bool
    """Whether it takes no connection, so that the rollouts go to the others."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """One agent, at one moment."""

    in_flight: int
    """Requests that its servers have, or that are on their way to them."""
    queued: int
    """Rollouts that wait for a slot, or for a server that takes connections."""
    oldest_s: float
    """Seconds that the oldest request in flight has taken so far; 0.0 where there is none."""
    replicas: tuple[ReplicaState, ...]
    """Its servers, in the order in which they were given."""


class Slots:
    """So many at once, first come, first served: `async with` holds a slot, after a wait for one.

    Attributes:
        queued: how many wait.
    """

    def __init__(self, count: int) -> None:
        self.queued = 0
        self._free = asyncio.Semaphore(count)

    async def __aenter__(self) -> None:
        self.queued += 1
        try:
            await self._free.acquire()
        finally:
            self.queued -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class Agent:
    """One agent: its slots, and its servers.

    Args:
        max_concurrency: how many slots there are; None is no bound.
    """

    def __init__(self, name: str, servers: Sequence[ServerUrl], *, max_concurrency: int | None) -> None:
        self.name = name
        self.replicas = Replicas(name, servers)
        self.slots = Slots(max_concurrency or sys.maxsize)

    def state(self, now: float) -> AgentState:
        """What there is of it at this time of the loop's."""
        in_flight = self.replicas.in_flight
        return AgentState(
            in_flight=len(in_flight),
            queued=self.slots.queued + self.replicas.waiting,
            oldest_s=now - min(in_flight.values(), default=now),
            replicas=tuple(
                ReplicaState(replica.server.shown, replica.in_flight, replica.aside_since is not None)
                for replica in self.replicas.all
            ),
        )
