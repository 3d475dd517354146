"""The rollouts that have begun and not ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from turnloom._client import AgentState
from turnloom._metrics._tally import Tally


class InFlight(NamedTuple):
    """How many have begun and not ended."""

    rollouts: int
    queued: int
    """Of these, those that wait for a slot of their agent."""
    oldest_s: float
    """Seconds since the first of them began."""

    @classmethod
    def of(cls, tally: Tally, state: AgentState | None) -> InFlight:
        """By our own count, or the client's where nobody told the ledger what began."""
        ours = max(tally.sent - tally.ended, 0)
        if state is None:
            return cls(ours, 0, 0.0)
        return cls(max(ours, state.in_flight + state.queued), state.queued, state.oldest_s)

    @classmethod
    def joined(cls, parts: Iterable[InFlight]) -> InFlight:
        """Those of several agents."""
        rollouts, queued, oldest_s = zip(*parts, strict=True) if (parts := list(parts)) else ((), (), ())
        return cls(sum(rollouts), sum(queued), max(oldest_s, default=0.0))
