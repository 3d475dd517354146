"""What has come of the samples of a collection, one by one and summed up."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Self

from turnloom._collect._folder import Sample
from turnloom._records import Record
from turnloom._rollout import Outcome, Rollout

DONE: Final = frozenset({"ok", "masked", "no_tokens", "no_reward"})
"""Outcomes of a sound answer, after which nothing is gained by asking again."""


class Result(NamedTuple):
    """What has come of one sample."""

    agent: str
    outcome: Outcome
    reward: float | None
    trained_tokens: int

    @property
    def is_done(self) -> bool:
        """Whether the sample is not asked for again."""
        return self.outcome in DONE

    @classmethod
    def of_record(cls, record: Record) -> Self:
        """As it was recorded."""
        agent, tokens = record.agent or "", record.facts["trained_tokens"]
        return cls(agent, record.outcome, record.reward, tokens)

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> Self:
        """As it has just come."""
        tokens = sum(int(row.completion_mask.sum()) for row in rollout.rows)
        return cls(rollout.agent or "", rollout.outcome, rollout.reward, tokens)


@dataclass(frozen=True, slots=True)
class PassRate:
    """pass@k: how likely one of `k` samples of a row passes, as the samples that were scored estimate it."""

    k: int
    value: float
    rows: int
    """Rows with at least `k` scored samples, over which this is the mean."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over the samples of all agents, or of one."""

    wanted: int
    """Rows, times samples of each."""
    done: int
    """Samples that have a sound answer."""
    failed: int
    """Samples of which the last attempt failed; they are asked for again the next time."""
    outcomes: dict[str, int]
    """Samples by their outcome; those not yet asked for have none."""
    mean_reward: float | None
    """Over the samples that are `ok`; None where none is."""
    pass_at: tuple[PassRate, ...]
    """For 1, 2, 4, … and all samples of a row."""
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """What a collection has come to."""

    rows: int
    samples_per_row: int
    pass_reward: float
    """A sample passes with this reward or more."""
    total: Figures
    agents: dict[str, Figures]

    @property
    def is_complete(self) -> bool:
        """Whether every sample is done."""
        return self.total.done == self.total.wanted

    def to_json(self) -> dict[str, object]:
        """As `summary.json` has it."""
        return asdict(self)


def summarize(
    agent_of_row: list[str], results: Mapping[Sample, Result], *, samples_per_row: int, pass_reward: float
) -> CollectionSummary:
    """Sum up the results.

    Args:
        agent_of_row: of each row, the agent that it goes to.
        results: those of samples beyond `samples_per_row` are left out.
    """
    by_row: list[list[Result]] = [[] for _ in agent_of_row]
    for sample, result in results.items():
        if sample.rollout_index < samples_per_row:
            by_row[sample.task_index].append(result)
    rows_of_agent: defaultdict[str, list[list[Result]]] = defaultdict(list)
    for agent, row in zip(agent_of_row, by_row, strict=True):
        rows_of_agent[agent].append(row)
    return CollectionSummary(
        rows=len(by_row),
        samples_per_row=samples_per_row,
        pass_reward=pass_reward,
        total=_figures(by_row, samples_per_row, pass_reward),
        agents={agent: _figures(rows, samples_per_row, pass_reward) for agent, rows in rows_of_agent.items()},
    )


def _figures(rows: list[list[Result]], samples_per_row: int, pass_reward: float) -> Figures:
    results = [result for row in rows for result in row]
    rewards = [[result.reward for result in row if result.reward is not None] for row in rows]
    every = [reward for row in rewards for reward in row]
    done = sum(result.is_done for result in results)
    passes = [(len(row), sum(reward >= pass_reward for reward in row)) for row in rewards]
    return Figures(
        wanted=len(rows) * samples_per_row,
        done=done,
        failed=len(results) - done,
        outcomes=dict(Counter(result.outcome for result in results).most_common()),
        mean_reward=math.fsum(reward / len(every) for reward in every) if every else None,
        pass_at=tuple(_pass_rates(passes, samples_per_row)),
        trained_tokens=sum(result.trained_tokens for result in results),
    )


def _pass_rates(passes: list[tuple[int, int]], samples_per_row: int) -> Iterable[PassRate]:
    powers = {1 << exponent for exponent in range(samples_per_row.bit_length())}
    for k in sorted(powers | {samples_per_row}):
        estimates = [pass_at_k(samples, passed, k) for samples, passed in passes if samples >= k]
        if estimates:
            yield PassRate(k, sum(estimates) / len(estimates), len(estimates))


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that of `k` samples, drawn from these without putting back, at least one passes.

    Examples:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 1, 4)
        (0.25, 0.5, 1.0)
    """
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)
