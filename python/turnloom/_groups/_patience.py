"""How long an agent that is down is waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from turnloom._rollout import Outcome, Rollout

logger = logging.getLogger("turnloom")

PATIENCE_S: Final = 300.0
"""How long an agent may be out of reach before its rollouts fail."""

_TELLS_NOTHING: Final[frozenset[Outcome]] = frozenset({"timeout"})
"""The rollout may have had no connection at all."""


class Patience:
    """Waits for agents that are out of reach, each for `PATIENCE_S` from when that was first seen."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._out_of_reach_since: dict[str | None, float] = {}

    def waits_for(self, rollout: Rollout) -> bool:
        """Whether this rollout was never delivered, and is to be sent again. To be asked of every rollout."""
        agent = rollout.agent
        if rollout.outcome != "unreachable":
            if rollout.outcome not in _TELLS_NOTHING:
                self._out_of_reach_since.pop(agent, None)
            return False
        now = self._clock()
        if agent not in self._out_of_reach_since:
            self._out_of_reach_since[agent] = now
            logger.warning(
                "agent %r is out of reach: its rollouts wait for it, up to %g s, and are then given up; %s",
                agent,
                PATIENCE_S,
                rollout.reason,
            )
        return now - self._out_of_reach_since[agent] < PATIENCE_S
