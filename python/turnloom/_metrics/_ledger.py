"""Every rollout, entered once."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Final

from turnloom._exceptions import ConfigError
from turnloom._gym import item_type, skipped_item_types
from turnloom._metrics._numbers import Metrics
from turnloom._rollout import Outcome, Rollout

logger = logging.getLogger("turnloom")

PREFIX: Final = "nemo_gym"
"""Every metric's name begins with it."""

UNKNOWN_AGENT: Final = "unknown"
"""Stands for the agent of a rollout that no client made, or that was given up before its row was found wrong."""

ANSWERED: Final[frozenset[Outcome]] = frozenset({"masked", "no_tokens", "no_reward", "ok"})
"""The outcomes of an agent that did its work: what the answer says can be counted."""

ROLLOUTS_WITHOUT_IDS: Final = 64
"""After so many answers, and no token id in any of them, there is no use in going on."""

DRIFT_WINDOW: Final = 256
"""Transitions that are looked at together before the drift is called high."""


def _scopes(agent: str) -> tuple[str, str]:
    return PREFIX, f"{PREFIX}/agent/{agent}"


class Ledger:
    """Enters every rollout once: into the metrics, into the log when it failed, and into what is watched.

    Names: `nemo_gym/<what>` over all agents, `nemo_gym/agent/<agent>/<what>` for each, `nemo_gym/env/<agent>/<field>`
    for what the environment reports.
    """

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._rollouts: Counter[str] = Counter()
        self._without_ids: int | None = 0  # None once an answer had some, or the alarm was given
        self._window: Counter[str] | None = Counter()  # None once the warning was given

    def enter(self, rollout: Rollout, *, latency_s: float) -> None:
        """Enter one rollout.

        Raises:
            ConfigError: so many answers have come and none had a token id; raised once.
        """
        agent = rollout.agent or UNKNOWN_AGENT
        self._rollouts[agent] += 1
        self._count(agent, rollout, latency_s)
        if rollout.outcome in ANSWERED:
            self._count_answer(agent, rollout)
            self._count_environment(agent, rollout)
            self._watch_drift(rollout)
            self._watch_ids(agent, rollout)
        if rollout.outcome != "ok":
            self._log_failure(agent, rollout)

    def enter_cancelled(self, agent: str | None) -> None:
        """Enter a rollout that was given up, since its results are wanted no more."""
        agent = agent or UNKNOWN_AGENT
        self._rollouts[agent] += 1
        for scope in _scopes(agent):
            self.metrics.count(f"{scope}/rollouts_total")
            self.metrics.count(f"{scope}/outcome/cancelled_total")

    def _count(self, agent: str, rollout: Rollout, latency_s: float) -> None:
        metrics, ok = self.metrics, rollout.outcome == "ok"
        trained = sum(int(row.completion_mask.sum()) for row in rollout.rows)
        for scope in _scopes(agent):
            metrics.count(f"{scope}/rollouts_total")
            metrics.count(f"{scope}/outcome/{rollout.outcome}_total")
            metrics.mean(f"{scope}/success_frac", float(ok))
            metrics.mean(f"{scope}/latency_s", latency_s)
            metrics.maximum(f"{scope}/latency_s_max", latency_s)
            if ok and rollout.reward is not None:
                metrics.mean(f"{scope}/reward", rollout.reward)
                metrics.mean(f"{scope}/rows_per_rollout", len(rollout.rows))
                metrics.mean(f"{scope}/trained_tokens", trained)

    def _count_answer(self, agent: str, rollout: Rollout) -> None:
        metrics, drift = self.metrics, rollout.drift
        tool_calls = sum(item_type(item) == "function_call" for item in rollout.output)
        skipped = sum(skipped_item_types(rollout.output).values())
        unrelated = sum(turn.transition == "fork" and turn.matched_tokens == 0 for turn in rollout.turns)
        for scope in _scopes(agent):
            metrics.mean(f"{scope}/turns", len(rollout.turns))
            metrics.mean(f"{scope}/tool_calls", tool_calls)
            metrics.mean(f"{scope}/truncated_frac", float(rollout.truncated))
            for name in ("discarded_tokens", "unusable_tokens", "positive_logprobs"):
                metrics.count(f"{scope}/{name}_total", getattr(drift, name))
            metrics.count(f"{scope}/defects_total", len(rollout.defects))
            metrics.count(f"{scope}/unrelated_prompts_total", unrelated)
            metrics.count(f"{scope}/skipped_items_total", skipped)
            for kind in ("clean", "realign", "fork"):
                metrics.mean(f"{scope}/drift/{kind}_frac", getattr(drift, kind), drift.transitions)
            metrics.mean(f"{scope}/drift/tokens", drift.drift_tokens, drift.transitions)
            metrics.maximum(f"{scope}/drift/tokens_max", float(drift.drift_max))

    def _count_environment(self, agent: str, rollout: Rollout) -> None:
        for defect in rollout.defects:
            self.metrics.count(f"{PREFIX}/defects/{defect.code}_total")
        for field, value in rollout.metrics.items():
            if math.isfinite(value):
                self.metrics.mean(f"{PREFIX}/env/{agent}/{field}", value)

    def _log_failure(self, agent: str, rollout: Rollout) -> None:
        self._failures[rollout.outcome, agent] += 1
        failures = self._failures[rollout.outcome, agent]
        if str(failures).strip("0") == "1":  # 1, 10, 100, …
            logger.warning(
                "agent %r: %s, %d of its %d rollouts so far; the latest: %s",
                agent,
                rollout.outcome,
                failures,
                self._rollouts[agent],
                rollout.reason,
            )

    def _watch_drift(self, rollout: Rollout) -> None:
        if self._window is None:
            return
        drift = rollout.drift
        self._window.update(clean=drift.clean, realign=drift.realign, fork=drift.fork)
        if self._window.total() < DRIFT_WINDOW:
            return
        window, self._window = self._window, Counter()
        if 2 * window["clean"] < window.total():
            self._window = None
            lossless = "Set fork_threshold_tokens=0 to lose no token, and look" if window["realign"] else "Look"
            logger.warning(
                "of the last %d transitions between model calls %d realigned and %d forked: the prompts do not repeat "
                "what was generated. A realign takes what it replaces out of the training, so that bad tokens are "
                "never punished; a fork makes one more row. %s for the cause in the chat template: does it drop the "
                "thinking, or change white space? (Said once.)",
                window.total(),
                window["realign"],
                window["fork"],
                lossless,
            )

    def _watch_ids(self, agent: str, rollout: Rollout) -> None:
        if self._without_ids is None:
            return
        if rollout.turns or rollout.defects:
            self._without_ids = None
            return
        if rollout._parsed.response.get("incomplete_details") is not None:
            return  # cut before its first token
        self._without_ids += 1
        if self._without_ids >= ROLLOUTS_WITHOUT_IDS:
            self._without_ids = None
            types = Counter(map(item_type, rollout.output))
            items = ", ".join(f"{number} {name}" for name, number in types.items()) or "none"
            raise ConfigError(
                f"{ROLLOUTS_WITHOUT_IDS} rollouts were answered and none carried a token id, so there is nothing to "
                "train on. Set return_token_id_information: true on NeMo Gym's model server, and let no proxy strip "
                "prompt_token_ids, generation_token_ids and generation_log_probs from the items. "
                f"Items of the last answer, of the agent {agent!r}: {items}."
            )
