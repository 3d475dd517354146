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
    "retries_total": ("count", "rollouts begun in the place of one that failed"),
    "rollouts_total": ("count", "rollouts that ended, the cancelled ones included"),
    "outcome/<outcome>_total": ("count", "rollouts that ended with this outcome"),
    "success_frac": ("mean", "rollouts that are `ok`, of those not cancelled"),
    "groups_total": ("count", "groups whose rollouts have all ended, stale ones left out"),
    "mixed_groups_frac": ("mean", "groups in which the rewards that the environment gave differ"),
    "stale_groups_total": ("count", "groups cancelled because their policy was too old"),
    "in_flight": ("now", "rollouts begun and not ended"),
    "queued": ("now", "rollouts in flight that wait for a slot of their agent"),
    "oldest_s_max": ("max", "seconds that the oldest rollout in flight has taken so far"),
    "latency_s": ("mean", "seconds from the beginning of a rollout to its end (`Timing.total_s`)"),
    "latency_s_max": ("max", "the longest latency"),
    "queue_s": ("mean", "seconds of waiting for a slot of the agent"),
    "first_byte_s": ("mean", "seconds from sending to the first byte of the answer; of answered rollouts"),
    "download_s": ("mean", "seconds from there to the end of the answer; of answered rollouts"),
    "parse_s": ("mean", "seconds in the parser, meanwhile; of answered rollouts"),
    "body_bytes_total": ("count", "bytes of the answers, decompressed"),
    "reward": ("mean", "reward of an `ok` rollout"),
    "reward_std": ("now", "standard deviation of the reward over the latest `ok` rollouts"),
    "reward_min": ("min", "lowest reward"),
    "reward_max": ("max", "highest reward"),
    "rows_per_rollout": ("mean", "training rows of an `ok` rollout: one, and one more for each fork that is trained"),
    "trained_tokens": ("mean", "trained tokens of an `ok` rollout"),
    "trained_tokens_total": ("count", "trained tokens of all `ok` rollouts"),
    "discarded_tokens_total": ("count", "generated tokens that a realign took out of the training"),
    "unusable_tokens_total": ("count", "generated tokens without a usable logprob, not trained"),
    "positive_logprobs_total": ("count", "logprobs above 0, used as sent"),
    "turns": ("mean", "model calls of an answered rollout: what its rows would be if none were joined"),
    "tool_calls": ("mean", "`function_call` items of an answered rollout"),
    "truncated_frac": ("mean", "answered rollouts whose response says that it was cut"),
    "drift/<kind>_frac": (
        "mean",
        "transitions that are `clean`, `realign` (the end is rewritten), `fork` (a new row)",
    ),
    "drift/tokens": ("mean", "held tokens that the next prompt does not repeat, over the transitions"),
    "drift/tokens_max": ("max", "most held tokens that one prompt did not repeat"),
    "unrelated_prompts_total": ("count", "forks whose prompt shares no token with what is held, as of a sub-agent"),
    "defects_total": ("count", "items with a defect"),
    "defects/<code>_total": ("count", "items with this defect"),
    "skipped_items_total": ("count", "items of a type that has no place among chat messages"),
    "env/<field>": ("mean", "a number or boolean that the environment returned, or one of its `reward_components`"),
    "env_left_out_total": ("count", "values of the environment left out: not finite, or of more than 256 fields"),
}
"""Metrics of the rollouts of all agents, and of each agent: `{name: (shape, meaning)}`."""
