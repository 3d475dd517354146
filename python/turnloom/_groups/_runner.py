"""Groups at work: from a dataset's row to the rollouts of its members."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from turnloom._client import GymClient
from turnloom._groups._breaker import Breaker
from turnloom._groups._patience import Patience
from turnloom._groups._policy import GroupPolicy
from turnloom._groups._rows import agent_for, with_prompt
from turnloom._groups._scoring import WantedTurns
from turnloom._groups._slots import SlotsWatch
from turnloom._metrics import Ledger
from turnloom._parsed import new_rollout_id
from turnloom._rollout import Rollout, Turn

RETRY_PAUSE_S: Final = 1.0
"""Before a new rollout takes the place of one that failed."""
PATIENCE_PAUSE_S: Final = 5.0
"""Before a rollout is sent again that could not be delivered."""


@dataclass(slots=True, eq=False)
class _Group:
    """One group, from its first rollout's beginning until it is scored."""

    row: dict[str, Any]
    agent: str | None
    position: int
    version: int
    begun: int = 0
    ended: int = 0
    rewards: list[float] = field(default_factory=list)
    given_up: bool = False
    at_work: set[asyncio.Timeout] = field(default_factory=set)

    def give_up(self) -> None:
        """End what is at work; nothing begins any more."""
        self.given_up = True
        while self.at_work:
            self.at_work.pop().reschedule(-math.inf)


class GroupRunner:
    """Runs the rollouts of groups, and enters each of them in the ledger.

    A rollout that fails may be followed by another in its place (`GroupPolicy`), one that was never delivered is sent
    again while there is patience with its agent (`Patience`), and when nothing succeeds any more the run ends
    (`Breaker`). Every request says which rollout it is:

    - `_ng_task_index`: the row's position in the dataset
    - `_ng_rollout_index`: which of its group, from 0
    - `_ng_attempt_index`: how many of its attempts have failed
    - `_ng_rollout_id`: no other request has it, in whatever run; it is the rollout's `id`, too

    Args:
        gym: open while rollouts run.
        agents: the names of its agents.
        group_size: how many rollouts a group has.
        slots: how many rollouts the trainer lets begin before one has ended.
        train_turn_fn: which turns are trained; None is all.
        deadline: that of the client.
        sampling: `max_tokens`, `temperature` and `top_p`.
    """

    def __init__(
        self,
        gym: GymClient,
        ledger: Ledger,
        *,
        agents: Sequence[str],
        group_size: int,
        slots: int,
        policy: GroupPolicy,
        train_turn_fn: Callable[[Turn], bool] | None = None,
        deadline: float | None,
        sampling: Mapping[str, Any],
    ) -> None:
        self._gym = gym
        self._ledger = ledger
        self._agents = agents
        self._group_size = group_size
        self._policy = policy
        self._wanted_turns = WantedTurns(train_turn_fn) if train_turn_fn is not None else None
        self._deadline = deadline
        self._sampling = sampling
        self._patience = Patience()
        self._breaker = Breaker()
        self._slots_watch = SlotsWatch(slots)
        self._open: dict[int, _Group] = {}
        self._newest = -1
        self._stopping = False

    def open(self, group_id: int, row: Mapping[str, Any], *, position: int, version: int) -> dict[str, Any]:
        """Begin a group; groups begin in the order of their ids.

        Args:
            position: of the row in the dataset.
            version: of the policy.

        Returns:
            The row with a `prompt` for trainers and reward functions.
        """
        agent = agent_for(row, self._agents)
        group = self._open[group_id] = _Group(with_prompt(row), agent, position, version, given_up=self._stopping)
        self._newest = group_id
        return group.row

    async def run(self, group_id: int) -> Rollout | None:
        """One more rollout of a group; None when it was given up.

        Raises:
            ConfigError: the row cannot be sent, or the run can only fail.
        """
        group = self._open[group_id]
        index, group.begun = group.begun, group.begun + 1
        self._ledger.enter_sent(group.agent)
        rollout = None if group.given_up else await self._until_given_up(group, index)
        if rollout is None:
            self._ledger.enter_cancelled(group.agent)
        group.ended += 1
        if rollout is not None and rollout.reward is not None:
            group.rewards.append(rollout.reward)
        if group.ended == self._group_size and not group.given_up:
            self._ledger.enter_group(group.agent, group.rewards)
            if not group.rewards:
                self._breaker.group_failed(group_id, newest=self._newest)
        return rollout

    def close(self, group_id: int) -> bool:
        """Forget a group whose rollouts have all ended. Whether it was not given up."""
        return not self._open.pop(group_id).given_up

    def look(self, policy_version: int) -> None:
        """Give up the groups whose policy is too old, and look at the agents' queues; to be called now and then."""
        self._slots_watch.look(self._gym.agents)
        oldest = -math.inf if self._policy.max_staleness is None else policy_version - self._policy.max_staleness
        for group in self._open.values():
            if group.version < oldest and group.ended < self._group_size and not group.given_up:
                group.give_up()
                self._ledger.enter_stale_group(group.agent)

    def stop(self) -> None:
        """Give up everything."""
        self._stopping = True
        for group in self._open.values():
            group.give_up()

    async def _until_given_up(self, group: _Group, index: int) -> Rollout | None:
        at_work = asyncio.timeout(None)  # which ends when the group is given up
        try:
            async with at_work:
                group.at_work.add(at_work)
                try:
                    return await self._attempts(group, index)
                finally:
                    group.at_work.discard(at_work)
        except TimeoutError:
            if not at_work.expired():
                raise
            return None
        except asyncio.CancelledError:
            self._ledger.enter_cancelled(group.agent)
            raise

    async def _attempts(self, group: _Group, index: int) -> Rollout:
        """One rollout after the other, until one is not to be followed by another."""
        attempt = 0
        while True:
            fields = {
                "_ng_task_index": group.position,
                "_ng_rollout_index": index,
                "_ng_attempt_index": attempt,
                "_ng_rollout_id": new_rollout_id(),
            }
            rollout = await self._delivered(group.row, fields)
            if self._wanted_turns is not None and rollout.outcome == "ok":
                rollout.rows = self._wanted_turns.rows_of(rollout)
            self._ledger.enter(rollout)
            self._breaker.enter(rollout)
            attempt += 1
            wait = self._policy.wait_before_next(rollout, attempts=attempt, deadline=self._deadline)
            if wait is None:
                return rollout
            self._ledger.enter_retry(group.agent)
            await asyncio.sleep(wait + _pause(RETRY_PAUSE_S))

    async def _delivered(self, row: Mapping[str, Any], fields: Mapping[str, Any]) -> Rollout:
        """A rollout, sent again and again while its agent is out of reach and there is patience."""
        while True:
            rollout = await self._gym.run(row, **self._sampling, fields=fields)
            if not self._patience.waits_for(rollout):
                return rollout
            await asyncio.sleep(_pause(PATIENCE_PAUSE_S))


def _pause(seconds: float) -> float:
    """So many seconds, spread by half either way, so that many rollouts do not come back at once."""
    return seconds * random.uniform(0.5, 1.5)
