"""A second, slow pass over an answer: what the parser compares and throws away, kept for a person to see.

It follows the parser's own account of the turns (`Rollout.turns`) and checks every step of it, so that the picture and
the training rows cannot tell two stories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnloom._exceptions import TurnloomError
from turnloom._gym import TurnRecord, turn_of
from turnloom._rollout import Rollout, TrainingRow, Turn

_Ids = NDArray[np.int64]


@dataclass(slots=True)
class Part:
    """Neighbouring tokens of one turn: of its prompt, or of what it generated."""

    turn: int
    ids: _Ids
    log_probs: NDArray[np.float32] | None = None
    """One per generated id; None for a prompt."""
    mask: _Ids | None = None
    """1 for each generated id with a usable logprob; None for a prompt."""
    is_removed: bool = False
    """Whether a realign removed them."""

    def cut(self, start: int, end: int | None = None, *, is_removed: bool = False) -> Part:
        """Some of it."""
        log_probs = None if self.log_probs is None else self.log_probs[start:end]
        mask = None if self.mask is None else self.mask[start:end]
        return Part(self.turn, self.ids[start:end], log_probs, mask, is_removed)


@dataclass(slots=True)
class HeldRow:
    """A row as it grows, and what was removed from it, in its place."""

    parts: list[Part] = field(default_factory=list)
    ids: _Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    """The ids of the parts that were not removed."""

    @property
    def output_start(self) -> int:
        """Where the last generation begins."""
        return len(self.ids) - len(self.parts[-1].ids)

    def realign(self, matched: int) -> None:
        """Remove what the prompt does not repeat: the end of the last generation."""
        last = self.parts.pop()
        kept = len(last.ids) - (len(self.ids) - matched)
        self.parts += [part for part in (last.cut(0, kept), last.cut(kept, is_removed=True)) if len(part.ids)]
        self.ids = self.ids[:matched]

    def append(self, number: int, turn: TurnRecord) -> None:
        """Put a turn at the end, whose prompt begins with the row."""
        context = np.array(turn.prompt_ids[len(self.ids) :], np.int64)
        output = np.array(turn.output_ids, np.int64)
        mask = np.ones(len(output), np.int64) if turn.output_mask is None else np.array(turn.output_mask, np.int64)
        with np.errstate(over="ignore", under="ignore"):
            log_probs = np.array(turn.output_log_probs, np.float64).astype(np.float32)
        if len(context):
            self.parts.append(Part(number, context))
        self.parts.append(Part(number, output, log_probs, mask))
        self.ids = np.concatenate((self.ids, context, output))

    def arrays(self) -> tuple[_Ids, _Ids, NDArray[np.float32]]:
        """Ids, completion mask and logprobs, as a training row has them."""
        ids, mask, log_probs = [], [], []
        for part in self.parts:
            if not part.is_removed:
                ids.append(part.ids)
                mask.append(np.zeros(len(part.ids), np.int64) if part.mask is None else part.mask)
                log_probs.append(np.zeros(len(part.ids), np.float32) if part.log_probs is None else part.log_probs)
        return np.concatenate(ids), np.concatenate(mask), np.concatenate(log_probs)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn, and what it was compared with."""

    row: int
    """Index into the rows of the pass, those without anything to train included."""
    held_row: int | None
    """The row that its prompt was compared with; None for the first turn."""
    held_ids: _Ids
    """What that row held then."""
    held_parts: tuple[Part, ...]
    """The same as parts, without those removed."""
    prompt_ids: _Ids
    other_rows: tuple[tuple[_Ids, int], ...]
    """The other rows as they were then: their ids, and where the last generation began."""


def second_pass(rollout: Rollout, items: Sequence[Any], *, every_row_is_open: bool) -> tuple[list[HeldRow], list[Step]]:
    """All rows, and one step for each turn of the rollout.

    Args:
        rollout: as the parser gave it.
        items: `response.output` with the token arrays.
        every_row_is_open: whether a prompt may continue any row, or the last one alone.

    Raises:
        TurnloomError: the pass and the parser disagree, which is a bug of one of the two.
    """
    rows: list[HeldRow] = []
    steps: list[Step] = []
    for number, turn in enumerate(rollout.turns):
        record = turn_of(items[turn.item_index])
        if record is None or len(record.prompt_ids) != turn.prompt_tokens:
            raise _disagreement(turn, "it is no such turn")
        prompt = np.array(record.prompt_ids, np.int64)
        held = _held_row(rows, turn, prompt, _compared(turn, len(rows), steps, any_row=every_row_is_open))
        row = rows[held] if held is not None else HeldRow()
        kept = tuple(part for part in row.parts if not part.is_removed)
        others = tuple((other.ids, other.output_start) for other in rows if other is not row)
        step = Step(
            row=len(rows) if held is None or turn.transition == "fork" else held,
            held_row=held,
            held_ids=row.ids,
            held_parts=kept,
            prompt_ids=prompt,
            other_rows=others,
        )
        if step.row == len(rows):
            rows.append(HeldRow())
        elif turn.transition == "realign":
            row.realign(turn.matched_tokens)
        rows[step.row].append(number, record)
        steps.append(step)
    _check_rows(rollout, rows)
    return rows, steps


def _compared(turn: Turn, row_count: int, steps: Sequence[Step], *, any_row: bool) -> list[int]:
    """The rows that the parser may have compared the prompt with, in order: of equals it takes the newest."""
    if not steps:
        return []
    rows = list(reversed(range(row_count))) if any_row else [steps[-1].row]
    return [steps[-1].row, *rows] if turn.transition == "fork" else rows


def _held_row(rows: Sequence[HeldRow], turn: Turn, prompt: _Ids, compared: Sequence[int]) -> int | None:
    """The row that the parser compared the prompt with: the first that differs as it says; None for the first turn."""
    for number in compared:
        row = rows[number]
        matched = common_prefix(row.ids, prompt)
        fits = (matched, len(row.ids) - matched) == (turn.matched_tokens, turn.drift_tokens)
        if fits and (turn.transition != "realign" or matched >= row.output_start):
            return number
    if compared or turn.transition is not None:
        raise _disagreement(turn, "no row differs from its prompt as the parser says")
    return None


def common_prefix(ours: _Ids, theirs: _Ids) -> int:
    """How many ids both begin with."""
    length = min(len(ours), len(theirs))
    different = np.flatnonzero(ours[:length] != theirs[:length])
    return int(different[0]) if len(different) else length


def _check_rows(rollout: Rollout, rows: Sequence[HeldRow]) -> None:
    parsed: tuple[TrainingRow, ...] = rollout.rows or rollout.unscored_rows
    if not parsed:
        return
    ours = [arrays for arrays in (row.arrays() for row in rows) if arrays[1].any()]
    theirs = [(row.input_ids, row.completion_mask, row.old_log_probs) for row in parsed]
    if [_bits(row) for row in ours] != [_bits(row) for row in theirs]:
        raise TurnloomError("the inspector's rows are not those of the parser; please report it with the body")


def _bits(row: tuple[_Ids, _Ids, NDArray[np.float32]]) -> list[bytes]:
    return [values.tobytes() for values in row]


def _disagreement(turn: Turn, what: str) -> TurnloomError:
    return TurnloomError(
        f"inspector and parser disagree on item {turn.item_index}: {what}; please report it with the body"
    )
