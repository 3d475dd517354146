"""What has happened lately, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from turnloom._client import AgentState
from turnloom._metrics._ledger import Ledger
from turnloom._metrics._snapshot import AgentSnapshot, Distribution, take_snapshot

_NOTHING: Final = take_snapshot({}, {})


class Progress:
    """Sums up in one line what has happened since it last did.

    Args:
        clock: gives seconds.
    """

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._told, self._told_at = ledger.snapshot(), clock()

    def line(self, agents: Mapping[str, AgentState] | None = None) -> str | None:
        """Of all agents together, then of each where several are at work; None when nothing is going on.

        Args:
            agents: what the client tells of each agent: `GymClient.agents`.
        """
        told, told_at = self._told, self._told_at
        self._told, self._told_at = now, now_s = self._ledger.snapshot(agents), self._clock()
        both = {agent: (told.agents.get(agent, _NOTHING), each) for agent, each in now.agents.items()}
        words = {agent: _words(*pair, now_s - told_at) for agent, pair in both.items() if _at_work(*pair)}
        if len(words) < 2:
            return next(iter(words.values()), None)
        by_agent = " | ".join(f"{agent}: {said}" for agent, said in words.items())
        return f"{_words(told, now, now_s - told_at)} | {by_agent}"


def _at_work(then: AgentSnapshot, now: AgentSnapshot) -> bool:
    return now.in_flight > 0 or now.outcomes != then.outcomes


def _words(then: AgentSnapshot, now: AgentSnapshot, seconds: float) -> str:
    parts = [_ended(then, now, seconds), _in_flight(now), _reward(then.reward, now.reward), _drift(then, now)]
    return "; ".join(filter(None, parts))


def _ended(then: AgentSnapshot, now: AgentSnapshot, seconds: float) -> str:
    new = {outcome: count - then.outcomes[outcome] for outcome, count in now.outcomes.items()}
    ended = sum(new.values())
    if not ended:
        return f"no rollout ended in {seconds:.0f} s"
    how = ", ".join(f"{count:,} {outcome}" for outcome, count in new.items() if count)
    return f"{ended:,} rollout{'s' * (ended > 1)} ended in {seconds:.0f} s ({how})"


def _in_flight(now: AgentSnapshot) -> str:
    if not now.in_flight:
        return "none in flight"
    queued = f", {now.queued:,} of them queued" if now.queued else ""
    return f"{now.in_flight:,} in flight{queued}" + (f", the oldest for {now.oldest_s:,.0f} s" if now.oldest_s else "")


def _reward(then: Distribution | None, now: Distribution | None) -> str:
    count, total = (now.count, now.sum) if now else (0, 0.0)
    if then:
        count, total = count - then.count, total - then.sum
    return f"mean reward {total / count:.3g}" if count else ""


def _drift(then: AgentSnapshot, now: AgentSnapshot) -> str:
    new = {kind: count - then.transitions[kind] for kind, count in now.transitions.items()}
    drifted = {"realigned": new["realign"], "forked": new["fork"]}
    told = " and ".join(f"{count:,} {how}" for how, count in drifted.items() if count)
    return f"of {sum(new.values()):,} transitions {told}" if told else ""
