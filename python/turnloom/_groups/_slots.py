"""Whether one agent's queue keeps the others from work."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from turnloom._client import AgentState

logger = logging.getLogger("turnloom")


class SlotsWatch:
    """Warns, once for each agent, when rollouts that wait for it hold more than half of the trainer's slots.

    Args:
        slots: how many rollouts the trainer lets begin before one has ended.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._told: set[str] = set()

    def look(self, agents: Mapping[str, AgentState]) -> None:
        """Look at the agents as they are now."""
        for agent, state in agents.items():
            is_up = not all(replica.put_aside for replica in state.replicas)
            if is_up and 2 * state.queued > self._slots and agent not in self._told:
                self._told.add(agent)
                logger.warning(
                    "%d rollouts wait for a slot of agent %r and hold more than half of the %d of max_inflight_tasks: "
                    "rows for other agents cannot begin meanwhile, and what waits grows stale. Set max_inflight_tasks "
                    "to at least the sum of the agents' max_concurrency. If it is, the dataset has more rows for this "
                    "agent than it keeps up with: give it more servers or a larger max_concurrency, or fewer of the "
                    "rows. (Said once for each agent.)",
                    state.queued,
                    agent,
                    self._slots,
                )
