"""What of a group is scored and trained, and how the groups are numbered."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from turnloom._exceptions import ConfigError
from turnloom._rollout import Rollout, TrainingRow, Turn

logger = logging.getLogger("turnloom")

ROLLOUTS_WITHOUT_ROWS: Final = 64
"""After so many rollouts in a row, of which the wanted turns are none, that is said."""

GroupT = TypeVar("GroupT")


class DenseIds:
    """Numbers the groups that yield rows so that none of the numbers stays unused.

    Trainers resume at the first number not trained. A group that fails would pin it for ever, so the next group takes
    its number and leaves its own to the one after. A group that is still at work keeps its own, hence none is skipped.
    """

    def __init__(self) -> None:
        self._unused: list[int] = []

    def number(self, group_id: int, *, has_rows: bool) -> int:
        """The number of a group that was scored; call it once for each."""
        heapq.heappush(self._unused, group_id)
        return heapq.heappop(self._unused) if has_rows else group_id


def only_members(group: GroupT, kept: Sequence[int]) -> GroupT:
    """The group with these members alone, in every list that runs parallel to them.

    Args:
        group: a dataclass whose lists, and dicts of lists, have one element per member.
    """

    def select(value: Any) -> Any:
        if isinstance(value, list):
            return [value[index] for index in kept]
        return {name: select(column) for name, column in value.items()} if isinstance(value, dict) else value

    fields = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}  # type: ignore[arg-type]
    parallel = {name: select(value) for name, value in fields.items() if isinstance(value, (list, dict)) and value}
    return dataclasses.replace(group, **parallel)  # type: ignore[type-var]


def check_advantages(samples: Iterable[Any]) -> None:
    """Refuse advantages that would make the policy's weights NaN, as those of a whole group are by one infinite reward.

    Args:
        samples: of one group, with `advantage` and, by name, `metrics`.

    Raises:
        ConfigError: it has the rewards.
    """
    for sample in samples:
        if not math.isfinite(sample.advantage):
            rewards = {name: value for name, value in sample.metrics.items() if name.startswith("reward")}
            raise ConfigError(
                f"a group has the advantage {sample.advantage}, of the rewards {rewards}: a reward function returns a "
                "finite number for each completion, or None for one that it cannot score"
            )


def train_only(
    rows: Sequence[TrainingRow], turns: Iterable[Turn], train_turn_fn: Callable[[Turn], bool]
) -> tuple[TrainingRow, ...]:
    """The rows with only those turns trained that the function wants; rows with nothing left to train are dropped.

    Args:
        turns: all turns of the rollout that the rows are of.
    """
    kept = list(rows)
    for number, turn in enumerate(turns):
        if turn.row is not None and not train_turn_fn(turn):
            row = kept[turn.row]
            mask, log_probs = row.completion_mask.copy(), row.old_log_probs.copy()
            mask[turn.start : turn.end] = 0
            log_probs[turn.start : turn.end] = 0.0
            spans = row.turn_spans[row.turn_spans[:, 0] != number]
            kept[turn.row] = dataclasses.replace(row, completion_mask=mask, old_log_probs=log_probs, turn_spans=spans)
    return tuple(row for row in kept if row.completion_mask.any())


class WantedTurns:
    """Trains those turns alone that a function wants, and says so when it has wanted none of many rollouts."""

    def __init__(self, train_turn_fn: Callable[[Turn], bool]) -> None:
        self._train_turn_fn = train_turn_fn
        self._without_rows: int | None = 0  # rollouts in a row; None once the warning was given

    def rows_of(self, rollout: Rollout) -> tuple[TrainingRow, ...]:
        """What there is to train of a rollout that is `ok`."""
        rows = train_only(rollout.rows, rollout.turns, self._train_turn_fn)
        if self._without_rows is not None:
            self._without_rows = 0 if rows else self._without_rows + 1
            if self._without_rows >= ROLLOUTS_WITHOUT_ROWS:
                self._without_rows = None
                logger.warning(
                    "train_turn_fn has refused every turn of the last %d rollouts that were ok, so that nothing of "
                    "them is trained: does it return True for the turns to train? (Said once.)",
                    ROLLOUTS_WITHOUT_ROWS,
                )
        return rows
