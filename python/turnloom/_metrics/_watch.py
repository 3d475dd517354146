"""What is watched over many rollouts, and told once."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from turnloom._exceptions import ConfigError
from turnloom._gym import item_type
from turnloom._rollout import Rollout

logger = logging.getLogger("turnloom")

ROLLOUTS_WITHOUT_IDS: Final = 64
"""After so many answers, and no token id in any of them, there is no use in going on."""

DRIFT_WINDOW: Final = 256
"""Transitions that are looked at together before the drift is called high."""


def log_failure(agent: str, rollout: Rollout, *, failures: int, rollouts: int) -> None:
    """Tell the reason of an outcome's first failure, and at every power of ten.

    Args:
        failures: how many of the agent's rollouts have had the outcome, this one included.
        rollouts: how many rollouts of the agent have ended.
    """
    if str(failures).strip("0") == "1":  # 1, 10, 100, …
        logger.warning(
            "agent %r: %s, %d of its %d rollouts so far; the latest: %s",
            agent,
            rollout.outcome,
            failures,
            rollouts,
            rollout.reason,
        )


class DriftWatch:
    """Says once when most transitions are not clean."""

    def __init__(self) -> None:
        self._window: Counter[str] | None = Counter()  # None once the warning was given

    def look_at(self, rollout: Rollout) -> None:
        """Look at an answered rollout."""
        if self._window is None:
            return
        for kind in ("clean", "realign", "fork"):
            self._window[kind] += getattr(rollout.drift, kind)
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


class IdsWatch:
    """Ends a run of which no answer has token ids."""

    def __init__(self) -> None:
        self._without_ids: int | None = 0  # None once an answer had some, or the alarm was given

    def look_at(self, agent: str, rollout: Rollout) -> None:
        """Look at an answered rollout.

        Raises:
            ConfigError: so many answers have come and none had a token id; raised once.
        """
        if self._without_ids is None:
            return
        if rollout._parsed.turns or rollout._parsed.defects:
            self._without_ids = None
            return
        if rollout._parsed.was_cut_at_once():
            return
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
