"""The numbers of one agent's rollouts, as they are added up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from turnloom._gym import item_type, skipped_item_types
from turnloom._rollout import Outcome, Rollout, Timing, Transition

RECENT_ROLLOUTS: Final = 1024
"""Means, spreads and percentiles are of so many latest rollouts of an agent."""

MAX_FIELDS: Final = 256
"""So many fields of its environment an agent can have; values of further ones are counted and left out."""

ANSWERED: Final[frozenset[Outcome]] = frozenset({"masked", "no_tokens", "no_reward", "ok"})
"""The outcomes of an agent that did its work: what the answer says can be counted."""


class Series:
    """Values of one kind: all of them in a sum, the latest also by themselves."""

    __slots__ = ("_ring", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._ring = np.zeros(RECENT_ROLLOUTS)

    def add(self, value: float) -> None:
        """Add one value, in the place of the oldest of the latest."""
        self._ring[self.count % RECENT_ROLLOUTS] = value
        self.count += 1
        self.total += value

    @property
    def latest(self) -> NDArray[np.float64]:
        """[at most `RECENT_ROLLOUTS`], in no order."""
        return self._ring[: self.count]

    def mean_and_deviation(self) -> tuple[float, float]:
        """Of the latest, of which there is one; infinite or NaN where the values leave no room for their sums."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.latest.mean()), float(self.latest.std())

    @classmethod
    def joined(cls, parts: Sequence[Series]) -> Series:
        """The values of all parts, of which each gives its own latest ones."""
        whole = cls()
        whole.count, whole.total = sum(part.count for part in parts), sum(part.total for part in parts)
        whole._ring = np.concatenate([part.latest for part in parts])
        return whole


@dataclass(slots=True)
class Tally:
    """Cumulative numbers of the rollouts of one agent, or of all. `Snapshot` says what each is."""

    sent: int = 0
    retries: int = 0
    groups: int = 0
    mixed_groups: int = 0
    stale_groups: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    latency_s: Series = field(default_factory=Series)
    queue_s: Series = field(default_factory=Series)
    first_byte_s: Series = field(default_factory=Series)
    download_s: Series = field(default_factory=Series)
    parse_s: Series = field(default_factory=Series)
    body_bytes: int = 0
    reward: Series = field(default_factory=Series)
    turns: Series = field(default_factory=Series)
    tool_calls: Series = field(default_factory=Series)
    rows: Series = field(default_factory=Series)
    trained_tokens: Series = field(default_factory=Series)
    discarded_tokens: int = 0
    unusable_tokens: int = 0
    positive_logprobs: int = 0
    transitions: Counter[Transition] = field(default_factory=Counter)
    drift_tokens: int = 0
    unrelated_prompts: int = 0
    truncated: int = 0
    defects: Counter[str] = field(default_factory=Counter)
    skipped_items: int = 0
    env: dict[str, Series] = field(default_factory=dict)
    env_left_out: int = 0
    extremes: dict[str, float] = field(default_factory=dict)
    """Of what no queue has taken yet, by the names of metrics, which end in `_max` or `_min`."""

    @property
    def ended(self) -> int:
        """Rollouts that have an outcome."""
        return self.outcomes.total()

    def enter(self, rollout: Rollout) -> None:
        """Add one rollout."""
        self.outcomes[rollout.outcome] += 1
        answered = rollout.outcome in ANSWERED
        self._enter_timing(rollout.timing, answered=answered)
        if rollout.reward is not None:
            self.reward.add(rollout.reward)
            self._extreme("reward_max", rollout.reward)
            self._extreme("reward_min", rollout.reward)
            self.rows.add(len(rollout.rows))
            self.trained_tokens.add(sum(int(row.completion_mask.sum()) for row in rollout.rows))
        if answered:
            self._enter_answer(rollout)
            self._enter_drift(rollout)
            self._enter_environment(rollout.metrics)

    def enter_group(self, rewards: Sequence[float]) -> None:
        """Add one group, by the rewards that it got."""
        self.groups += 1
        self.mixed_groups += len(set(rewards)) > 1

    def _enter_timing(self, timing: Timing, *, answered: bool) -> None:
        self.body_bytes += timing.body_bytes
        if timing.total_s == 0:
            return  # no client made it
        self.latency_s.add(timing.total_s)
        self._extreme("latency_s_max", timing.total_s)
        self.queue_s.add(timing.queue_s)
        if answered:
            self.first_byte_s.add(timing.first_byte_s)
            self.download_s.add(timing.download_s)
            self.parse_s.add(timing.parse_s)

    def _enter_answer(self, rollout: Rollout) -> None:
        self.turns.add(len(rollout._parsed.turns))
        self.tool_calls.add(sum(item_type(item) == "function_call" for item in rollout.output))
        self.truncated += rollout.truncated
        self.skipped_items += sum(skipped_item_types(rollout.output).values())
        for defect in rollout.defects:
            self.defects[defect.code] += 1

    def _enter_drift(self, rollout: Rollout) -> None:
        drift = rollout.drift
        self.discarded_tokens += drift.discarded_tokens
        self.unusable_tokens += drift.unusable_tokens
        self.positive_logprobs += drift.positive_logprobs
        if drift.transitions:
            self.transitions["clean"] += drift.clean
            self.transitions["realign"] += drift.realign
            self.transitions["fork"] += drift.fork
            self.drift_tokens += drift.drift_tokens
            self._extreme("drift/tokens_max", float(drift.drift_max))
        if drift.fork:
            forks = (turn for turn in rollout.turns if turn.transition == "fork")
            self.unrelated_prompts += sum(turn.matched_tokens == 0 for turn in forks)

    def _enter_environment(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            known = name in self.env or len(self.env) < MAX_FIELDS
            if not known or not math.isfinite(value):
                self.env_left_out += 1
                continue
            if name not in self.env:
                self.env[name] = Series()
            self.env[name].add(value)

    def _extreme(self, name: str, value: float) -> None:
        pick = max if name.endswith("_max") else min
        self.extremes[name] = pick(value, self.extremes.get(name, value))


def joined(tallies: Iterable[Tally]) -> Tally:
    """The numbers of these together, without extremes."""
    whole, parts = Tally(), list(tallies)
    for name in [each.name for each in fields(Tally) if parts and each.name != "extremes"]:
        setattr(whole, name, _joined([getattr(part, name) for part in parts]))
    return whole


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], int):
        return sum(values)
    if isinstance(values[0], Counter):
        return sum(values, Counter())
    if isinstance(values[0], Series):
        return Series.joined(values)
    return {name: _joined([each[name] for each in values if name in each]) for name in sorted(set().union(*values))}
