"""Every rollout, entered once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from turnloom._client import AgentState
from turnloom._metrics._queue import Metrics
from turnloom._metrics._snapshot import Snapshot, take_snapshot
from turnloom._metrics._tally import ANSWERED, Tally
from turnloom._metrics._watch import DriftWatch, IdsWatch, log_failure
from turnloom._rollout import Rollout

UNKNOWN_AGENT: Final = "unknown"
"""Stands for the agent of a rollout that no client made, or that was given up before its row was found wrong."""


class Ledger:
    """Enters every rollout once: into the metrics, into the log when it failed, and into what is watched.

    Examples:
        >>> ledger = Ledger()
        >>> ledger.enter(Rollout("timeout", reason="no byte moved for 300 s", agent="math"))
        >>> ledger.snapshot().agents["math"].outcomes["timeout"]
        1

    All calls belong in one thread, that of the event loop.
    """

    def __init__(self) -> None:
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.metrics = Metrics(self._tallies)
        self._drift_watch = DriftWatch()
        self._ids_watch = IdsWatch()

    def enter_sent(self, agent: str | None) -> None:
        """Enter that a rollout has begun. Without this, what was sent is what has ended and what the client tells."""
        self._tallies[agent or UNKNOWN_AGENT].sent += 1

    def enter_retry(self, agent: str | None) -> None:
        """Enter that one more rollout has begun, in the place of one that failed."""
        self.enter_sent(agent)
        self._tallies[agent or UNKNOWN_AGENT].retries += 1

    def enter(self, rollout: Rollout) -> None:
        """Enter a rollout that has ended, also one that is followed by another in its place.

        Raises:
            ConfigError: so many answers have come and none had a token id; raised once.
        """
        agent = rollout.agent or UNKNOWN_AGENT
        tally = self._tallies[agent]
        tally.enter(rollout)
        if rollout.outcome != "ok":
            log_failure(agent, rollout, failures=tally.outcomes[rollout.outcome], rollouts=tally.ended)
        if rollout.outcome in ANSWERED:
            self._drift_watch.look_at(rollout)
            self._ids_watch.look_at(agent, rollout)

    def enter_cancelled(self, agent: str | None) -> None:
        """Enter a rollout that was given up, since its results are wanted no more."""
        self._tallies[agent or UNKNOWN_AGENT].outcomes["cancelled"] += 1

    def enter_group(self, agent: str | None, rewards: Sequence[float]) -> None:
        """Enter a group whose rollouts have all ended, with the rewards of those that have one."""
        self._tallies[agent or UNKNOWN_AGENT].enter_group(rewards)

    def enter_stale_group(self, agent: str | None) -> None:
        """Enter a group whose policy is too old; its rollouts are entered as well."""
        self._tallies[agent or UNKNOWN_AGENT].stale_groups += 1

    def snapshot(self, agents: Mapping[str, AgentState] | None = None) -> Snapshot:
        """What is known at this moment.

        Args:
            agents: what the client tells of each agent: `GymClient.agents`.
        """
        return take_snapshot(self._tallies, agents or {})
