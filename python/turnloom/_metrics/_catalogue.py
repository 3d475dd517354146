"""Every metric that a trainer's queue gets: its name, its shape, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

PREFIX: Final = "nemo_gym"
"""Every metric's name begins with it."""

Shape = Literal["count", "mean", "max", "min", "now"]

SHAPES: Final[Mapping[Shape, str]] = {
    "count": "a float, what is new; TRL sums it over its logging window",
    "mean": "`(sum, count)`, what is new; TRL logs the quotient of the sums",
    "max": "a float, the greatest of what is new; TRL logs the greatest",
    "min": "a float, the least of what is new; TRL logs the least",
    "now": "a float, as it is at this moment; TRL logs the mean",
}
"""What is put into the queue, and what TRL makes of it."""

METRICS: Final[Mapping[str, tuple[Shape, str]]] = {
    "sent_total": ("count", "rollouts begun; a retry is one more"),
    "rollouts_total": ("count", "rollouts that ended, the cancelled ones included"),
    "outcome/<outcome>_total": ("count", "of these, those that ended so"),
    "success_frac": ("mean", "share that is `ok`; the cancelled ones are left out"),
    "in_flight": ("now", "rollouts begun and not ended: sent less ended"),
    "queued": ("now", "of these, those that wait for a slot of their agent"),
    "oldest_s_max": ("max", "seconds since the oldest of those in flight began"),
    "latency_s": ("mean", "seconds of a rollout from its beginning to its end: `rollout.timing.total_s`"),
    "latency_s_max": ("max", "the longest"),
    "queue_s": ("mean", "seconds of waiting for a slot of the agent"),
    "first_byte_s": ("mean", "seconds from sending to the first byte of the answer; of answered rollouts"),
    "download_s": ("mean", "seconds from there to the end of the answer; of answered rollouts"),
    "parse_s": ("mean", "seconds in the parser, meanwhile; of answered rollouts"),
    "body_bytes_total": ("count", "bytes of the answers, decompressed"),
    "reward": ("mean", "reward of an `ok` rollout"),
    "reward_std": ("now", "standard deviation of the reward over the latest 1,024 `ok` rollouts of each agent"),
    "reward_max": ("max", "the highest reward"),
    "reward_min": ("min", "the lowest reward"),
    "rows_per_rollout": ("mean", "training rows of an `ok` rollout: 1, and one more for each fork that is trained"),
    "trained_tokens": ("mean", "trained tokens of an `ok` rollout"),
    "trained_tokens_total": ("count", "trained tokens"),
    "discarded_tokens_total": ("count", "generated tokens that a realign took out of the training"),
    "unusable_tokens_total": ("count", "generated tokens without a usable logprob, not trained"),
    "positive_logprobs_total": ("count", "logprobs above 0, used as sent"),
    "turns": ("mean", "model calls of an answered rollout: what its rows would be if none were joined"),
    "tool_calls": ("mean", "`function_call` items of an answered rollout"),
    "truncated_frac": ("mean", "share of answered rollouts whose response says that it was cut"),
    "drift/clean_frac": ("mean", "share of the transitions between turns whose prompt repeats all that is held"),
    "drift/realign_frac": ("mean", "share of the transitions that rewrite the end of what is held"),
    "drift/fork_frac": ("mean", "share of the transitions that begin a new row"),
    "drift/tokens": ("mean", "held tokens that the next prompt does not repeat, per transition"),
    "drift/tokens_max": ("max", "the most at one transition"),
    "unrelated_prompts_total": (
        "count",
        "forks whose prompt shares no token with what is held, as of a sub-agent",
    ),
    "defects_total": ("count", "items with something wrong; [outcomes](outcomes.md) has the codes"),
    "defects/<code>_total": ("count", "of these, those with this code"),
    "skipped_items_total": ("count", "items of a type that has no place among chat messages"),
    "env/<field>": ("mean", "a number or a boolean that the environment returned, or one of its `reward_components`"),
    "env_left_out_total": ("count", "values of the environment left out: not finite, or of more than 256 fields"),
}
"""Metrics of the rollouts of all agents, and of each agent: `{name: (shape, meaning)}`."""
