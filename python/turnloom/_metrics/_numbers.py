"""A tally as metrics: counts, means, extremes, and what holds now, by the names of `METRICS`."""

from __future__ import annotations

from typing import Final, NamedTuple

from turnloom._metrics._in_flight import InFlight
from turnloom._metrics._tally import Series, Tally

Metric = float | tuple[float, float]


class Cumulative(NamedTuple):
    """Numbers that only grow, since the beginning."""

    counts: dict[str, float]
    means: dict[str, tuple[float, float]]
    """Sums, and what they are to be divided by."""

    def is_of(self, tally: Tally) -> bool:
        """Whether nothing has begun or ended since."""
        return (self.counts.get("sent_total"), self.counts.get("rollouts_total")) == (tally.sent, tally.ended)

    def since(self, earlier: Cumulative) -> dict[str, Metric]:
        """What is new; what is not new is not there."""
        new: dict[str, Metric] = {}
        for name, count in self.counts.items():
            if count != (before := earlier.counts.get(name, 0)):
                new[name] = float(count - before)
        for name, (total, weight) in self.means.items():
            total_before, weight_before = earlier.means.get(name, (0.0, 0.0))
            if weight != weight_before:
                new[name] = (float(total - total_before), float(weight - weight_before))
        return new


NOTHING: Final = Cumulative({}, {})


def cumulative(tally: Tally) -> Cumulative:
    """The counts and means of a tally."""
    return Cumulative(_counts(tally), _means(tally))


def _counts(tally: Tally) -> dict[str, float]:
    return {
        "sent_total": tally.sent,
        "retries_total": tally.retries,
        "groups_total": tally.groups,
        "stale_groups_total": tally.stale_groups,
        "rollouts_total": tally.ended,
        **{f"outcome/{outcome}_total": count for outcome, count in tally.outcomes.items()},
        "body_bytes_total": tally.body_bytes,
        "trained_tokens_total": tally.trained_tokens.total,
        "discarded_tokens_total": tally.discarded_tokens,
        "unusable_tokens_total": tally.unusable_tokens,
        "positive_logprobs_total": tally.positive_logprobs,
        "unrelated_prompts_total": tally.unrelated_prompts,
        "defects_total": tally.defects.total(),
        **{f"defects/{code}_total": count for code, count in tally.defects.items()},
        "skipped_items_total": tally.skipped_items,
        "env_left_out_total": tally.env_left_out,
    }


def _means(tally: Tally) -> dict[str, tuple[float, float]]:
    series = {
        "latency_s": tally.latency_s,
        "queue_s": tally.queue_s,
        "first_byte_s": tally.first_byte_s,
        "download_s": tally.download_s,
        "parse_s": tally.parse_s,
        "reward": tally.reward,
        "rows_per_rollout": tally.rows,
        "trained_tokens": tally.trained_tokens,
        "turns": tally.turns,
        "tool_calls": tally.tool_calls,
        **{f"env/{field}": values for field, values in tally.env.items()},
    }
    transitions = tally.transitions.total()
    return {
        **{name: (values.total, values.count) for name, values in series.items()},
        **{f"drift/{kind}_frac": (count, transitions) for kind, count in tally.transitions.items()},
        "drift/tokens": (tally.drift_tokens, transitions),
        "success_frac": (tally.outcomes["ok"], tally.ended - tally.outcomes["cancelled"]),
        "mixed_groups_frac": (tally.mixed_groups, tally.groups),
        "truncated_frac": (tally.truncated, tally.turns.count),
    }


def in_flight_now(in_flight: InFlight) -> dict[str, Metric]:
    """The rollouts in flight at this moment."""
    return {
        "in_flight": float(in_flight.rollouts),
        "queued": float(in_flight.queued),
        "oldest_s_max": in_flight.oldest_s,
    }


def spread(*tallies: Tally) -> dict[str, Metric]:
    """How far the latest rewards of these lie apart."""
    rewards = Series.joined([tally.reward for tally in tallies])
    return {"reward_std": rewards.mean_and_deviation()[1]} if rewards.count else {}
