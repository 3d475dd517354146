"""What is known of the rollouts at one moment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, get_args

import numpy as np

from turnloom._client import AgentState
from turnloom._metrics._in_flight import InFlight
from turnloom._metrics._tally import Series, Tally, joined
from turnloom._rollout import DEFECT_CODES, OUTCOMES, Outcome, Transition


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of one kind, one for each rollout that had one."""

    count: int
    """Values since the beginning."""
    sum: float
    """Their sum."""
    mean: float
    """Of the latest 1,024 values (of each agent), as all below."""
    std: float
    """Standard deviation, of the population."""
    min: float
    max: float
    p50: float
    """Half of the values are at most this, as 95 and 99 of 100 are for the next two."""
    p95: float
    p99: float

    @classmethod
    def of(cls, series: Series) -> Distribution | None:
        """None where there is no value."""
        if not series.count:
            return None
        latest = np.sort(series.latest)
        p50, p95, p99 = (float(latest[math.ceil(share * len(latest)) - 1]) for share in (0.50, 0.95, 0.99))
        mean, std = series.mean_and_deviation()
        return cls(series.count, series.total, mean, std, float(latest[0]), float(latest[-1]), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """The rollouts of one agent. Counts are since the beginning; a distribution is None before its first value.

    *Answered* are those whose answer says something of the agent's work: `ok`, `masked`, `no_tokens`, `no_reward`.
    """

    sent: int
    """Rollouts begun: `in_flight` and all `outcomes`. A retry is one more."""
    retries: int
    """Of these, those in the place of one that failed."""
    groups: int
    """Groups whose rollouts have all ended, stale ones left out."""
    mixed_groups: int
    """Of these, those in which the rewards that the environment gave differ."""
    stale_groups: int
    """Groups cancelled because their policy was too old."""
    in_flight: int
    """Rollouts that have not ended."""
    queued: int
    """Of those in flight, those that wait for a slot of their agent."""
    oldest_s: float
    """Seconds since the oldest of those in flight began; 0.0 where there is none."""
    outcomes: Mapping[Outcome, int]
    """How many ended how; every outcome is there, `cancelled` included."""
    latency_s: Distribution | None
    """Seconds from the beginning to the end: `Timing.total_s`."""
    queue_s: Distribution | None
    """Seconds of waiting for a slot of the agent."""
    first_byte_s: Distribution | None
    """Of answered rollouts, as the next two: seconds from sending to the first byte of the answer."""
    download_s: Distribution | None
    """Seconds from there to the end of the answer."""
    parse_s: Distribution | None
    """Seconds in the parser, meanwhile."""
    body_bytes: int
    """Bytes of the answers, decompressed."""
    reward: Distribution | None
    """Of `ok` rollouts, as the next two."""
    rows: Distribution | None
    """Training rows."""
    trained_tokens: Distribution | None
    turns: Distribution | None
    """Model calls of answered rollouts: what their rows would be if none were joined."""
    tool_calls: Distribution | None
    """`function_call` items of answered rollouts."""
    truncated: int
    """Answered rollouts whose response says that it was cut."""
    discarded_tokens: int
    """Generated tokens that a realign took out of the training."""
    unusable_tokens: int
    """Generated tokens without a usable logprob."""
    positive_logprobs: int
    """Logprobs above 0, used as sent."""
    transitions: Mapping[Transition, int]
    """From one turn to the next, how many of each kind."""
    drift_tokens: int
    """Held tokens that the next prompt did not repeat."""
    unrelated_prompts: int
    """Forks whose prompt shared no token with what was held."""
    defects: Mapping[str, int]
    """Items with something wrong, how many of each code."""
    skipped_items: int
    """Items of a type that has no place among chat messages."""
    env: Mapping[str, Distribution]
    """Numbers that the environment returned, by field."""
    env_left_out: int
    """Of these, those that were not finite, or of more than 256 fields."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it: dicts, numbers and None."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Snapshot(AgentSnapshot):
    """The rollouts of all agents together, and those of each."""

    agents: Mapping[str, AgentSnapshot]


_KEYS: Final[Mapping[str, Iterable[str]]] = {
    "outcomes": OUTCOMES,
    "transitions": get_args(Transition),
    "defects": DEFECT_CODES,
}
"""What there are counts of, also where nothing was counted yet."""


def take_snapshot(tallies: Mapping[str, Tally], states: Mapping[str, AgentState]) -> Snapshot:
    """The picture of this moment."""
    both = {agent: tallies.get(agent) or Tally() for agent in sorted({*tallies, *states})}
    in_flight = {agent: InFlight.of(tally, states.get(agent)) for agent, tally in both.items()}
    agents = {agent: AgentSnapshot(**_members(tally, in_flight[agent])) for agent, tally in both.items()}
    return Snapshot(**_members(joined(both.values()), InFlight.joined(in_flight.values())), agents=agents)


def _members(tally: Tally, in_flight: InFlight) -> dict[str, Any]:
    begun = {"sent": tally.ended + in_flight.rollouts, "in_flight": in_flight.rollouts}
    waiting = {"queued": in_flight.queued, "oldest_s": in_flight.oldest_s}
    names = [each.name for each in fields(AgentSnapshot) if each.name not in begun | waiting]
    return begun | waiting | {name: _member(name, getattr(tally, name)) for name in names}


def _member(name: str, value: Any) -> Any:
    if name in _KEYS:
        return {key: value[key] for key in _KEYS[name]}
    if isinstance(value, dict):
        return {field: Distribution.of(series) for field, series in value.items()}
    return Distribution.of(value) if isinstance(value, Series) else value
