"""Rows → padded or packed arrays, which torch shares without a copy; and values per rollout or turn → per token."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnloom import _native
from turnloom._exceptions import ConfigError
from turnloom._rollout import TrainingRow

if TYPE_CHECKING:
    import torch

_Ids = NDArray[np.int64]
_LogProbs = NDArray[np.float32]

_Scalar = TypeVar("_Scalar", np.int64, np.float32)

OnOverflow = Literal["error", "drop", "truncate"]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """What the three layouts share: what became of the rows, and the way to torch."""

    kept_rows: _Ids
    """[B], which of the given rows each row of the batch is."""
    dropped_rows: int
    """Rows that were longer than `max_length` and are left out."""
    truncated_rows: int
    """Rows that were longer than `max_length` and lost what was beyond it."""
    truncated_tokens: int
    """Tokens that they lost."""

    def to_torch(self) -> dict[str, torch.Tensor]:
        """The arrays as tensors that share their memory. A number stays one; `values` is there if there are some.

        Raises:
            ImportError: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise ImportError("to_torch() needs torch: pip install 'turnloom[torch]'") from error
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in values
            if value is not None
        }


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch(_Batch):
    """`B` rows, padded to one length `L`."""

    input_ids: _Ids
    """[B, L]"""
    attention_mask: _Ids
    """[B, L], 1 where there is a token."""
    completion_mask: _Ids
    """[B, L], 1 where it is trained."""
    old_log_probs: _LogProbs
    """[B, L], 0.0 where it is not."""
    values: _LogProbs | None
    """[B, L], the values that were given, 0.0 where there is no token."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptCompletionBatch(_Batch):
    """`B` rows in two: prompts of `P` tokens, padded at the left, and completions of `C`, padded at the right."""

    prompt_ids: _Ids
    """[B, P], what comes before the first trained token."""
    prompt_mask: _Ids
    """[B, P], 1 where there is a token."""
    completion_ids: _Ids
    """[B, C], the rest, tool answers and later prompts included."""
    completion_mask: _Ids
    """[B, C], 1 where there is a token."""
    loss_mask: _Ids
    """[B, C], 1 where it is trained."""
    old_log_probs: _LogProbs
    """[B, C], 0.0 where it is not."""
    values: _LogProbs | None
    """[B, C], the values that were given for the completions, 0.0 where there is no token."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch(_Batch):
    """`B` rows one behind the other: `T` tokens."""

    input_ids: _Ids
    """[T]"""
    position_ids: _Ids
    """[T], from 0 in each row."""
    completion_mask: _Ids
    """[T], 1 where the token is trained."""
    old_log_probs: _LogProbs
    """[T], 0.0 where it is not."""
    row_index: _Ids
    """[T], the row of the batch that the token is of."""
    cu_seqlens: NDArray[np.int32]
    """[B + 1], where each row begins, and the end."""
    max_seqlen: int
    """Length of the longest row."""
    values: _LogProbs | None
    """[T], the values that were given."""


def pad(
    rows: Iterable[TrainingRow],
    *,
    pad_token_id: int = 0,
    padding_side: Literal["left", "right"] = "right",
    multiple_of: int = 1,
    max_length: int | None = None,
    on_overflow: OnOverflow = "error",
    vocab_size: int | None = None,
    values: Iterable[ArrayLike] | None = None,
) -> PaddedBatch:
    """Rows padded to the longest, rounded up to a multiple of `multiple_of`.

    Lengths decide what is padding: a token that equals `pad_token_id` stays one. No rows give arrays of shape [0, 0].

    Args:
        rows: `TrainingRow`s, or whatever has their three arrays.
        pad_token_id: what stands in `input_ids` where there is no token.
        padding_side: where the padding goes.
        multiple_of: the padded length is a multiple of it, and may thus be beyond `max_length`.
        max_length: the tokens that a row may have.
        on_overflow: what becomes of a row that has more. "error": it is refused. "drop": it is left out. "truncate":
            its first `max_length` tokens stay, in all arrays; it stays even if none of these is trained.
        vocab_size: refuse ids that are not below it, or negative. Tokens that do not stay are not looked at.
        values: for each row one number per token, such as `spread` gives, to be laid out like `old_log_probs`.

    Raises:
        ConfigError: a setting out of its range, a row whose arrays differ in length, a row that is too long, an id
            that is not in the vocabulary, or values that do not fit the rows.
    """
    if padding_side not in ("left", "right"):
        raise ConfigError(f'padding_side={padding_side!r}: it is "left" or "right"')
    if multiple_of < 1:
        raise ConfigError(f"multiple_of={multiple_of}: it is at least 1")
    given = _arrays(rows, values)
    limits = _limits(max_length, on_overflow, vocab_size)
    left = padding_side == "left"
    return PaddedBatch(*_native.pad(*given, limits, pad_token_id=pad_token_id, left=left, multiple_of=multiple_of))


def pad_prompt_completion(
    rows: Iterable[TrainingRow],
    *,
    pad_token_id: int = 0,
    max_length: int | None = None,
    on_overflow: OnOverflow = "error",
    vocab_size: int | None = None,
    values: Iterable[ArrayLike] | None = None,
) -> PromptCompletionBatch:
    """Rows in two halves, as TRL's `GRPOTrainer` lays them out; a prompt ends before the row's first trained token.

    See `pad` for the arguments; `max_length` counts both halves. A row without a trained token is all prompt.

    Raises:
        ConfigError: as in `pad`.
    """
    given = _arrays(rows, values)
    limits = _limits(max_length, on_overflow, vocab_size)
    return PromptCompletionBatch(*_native.pad_prompt_completion(*given, limits, pad_token_id=pad_token_id))


def pack(
    rows: Iterable[TrainingRow],
    *,
    max_length: int | None = None,
    on_overflow: OnOverflow = "error",
    vocab_size: int | None = None,
    values: Iterable[ArrayLike] | None = None,
) -> PackedBatch:
    """Rows one behind the other, with what variable-length attention kernels ask for.

    See `pad` for the arguments; `max_length` is that of one row.

    Raises:
        ConfigError: as in `pad`, or there are more than 2**31 - 1 tokens.
    """
    return PackedBatch(*_native.pack(*_arrays(rows, values), _limits(max_length, on_overflow, vocab_size)))


def spread(
    values: Mapping[str, float | Sequence[float] | NDArray[Any]], rows: Iterable[TrainingRow]
) -> list[_LogProbs]:
    """Values of rollouts, or of their turns, over the tokens of their rows: advantages, for instance.

        advantages = {rollout.id: rollout.reward - mean for rollout in group}
        batch = turnloom.pack(rows, values=turnloom.spread(advantages, rows))

    Args:
        values: for each `rollout_id` one number, or one for each turn, in the order of `Rollout.turns`.
        rows: the rows.

    Returns:
        For each row an array [L]: the value on each trained token, 0.0 elsewhere.

    Raises:
        ConfigError: a row's rollout has no value, not as many values as turns, or something else than finite numbers;
            or a row has trained tokens of which `turn_spans` does not say the turn.
    """
    numbers: dict[str, _LogProbs] = {}
    spreads = []
    for index, row in enumerate(rows):
        name = row.rollout_id
        if name not in numbers:
            numbers[name] = _numbers(values, row, index)
        spreads.append(_spread(numbers[name], row, index))
    return spreads


def _numbers(values: Mapping[str, Any], row: TrainingRow, index: int) -> _LogProbs:
    """The value of the row's rollout, or those of its turns."""
    name = row.rollout_id
    if name not in values:
        raise ConfigError(f"row {index} is of the rollout {name!r}, for which there is no value")
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(values[name], np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the values of the rollout {name!r} are not numbers: {error}") from error
    if numbers.ndim > 1:
        raise ConfigError(f"the values of the rollout {name!r} have the shape {numbers.shape}: it is one for each turn")
    if not np.isfinite(numbers).all():
        turn = f", turn {np.isfinite(numbers).argmin()}," if numbers.ndim else ""
        raise ConfigError(f"the value of the rollout {name!r}{turn} is not a finite number: has it a reward?")
    return numbers


def _spread(numbers: _LogProbs, row: TrainingRow, index: int) -> _LogProbs:
    trained = np.asarray(row.completion_mask) != 0
    tokens = np.zeros(len(trained), np.float32)
    if numbers.ndim == 0:
        tokens[trained] = numbers
        return tokens
    _check_turns(len(numbers), row, index)
    covered = np.zeros(len(trained), bool)
    for turn, start, end in row.turn_spans.tolist():
        tokens[start:end] = numbers[turn]
        covered[start:end] = True
    if (trained & ~covered).any():
        raise ConfigError(
            f"row {index} has trained tokens that are in none of its turn_spans: give one value, not many"
        )
    tokens[~trained] = 0.0
    return tokens


def _check_turns(given: int, row: TrainingRow, index: int) -> None:
    last = int(row.turn_spans[:, 0].max(initial=-1))
    if row.turn_count not in (None, given) or last >= given:
        turns = row.turn_count if row.turn_count is not None else f"at least {last + 1}"
        raise ConfigError(f"row {index}: the rollout {row.rollout_id!r} has {turns} turns, but {given} values")


def _arrays(
    rows: Iterable[TrainingRow], values: Iterable[ArrayLike] | None
) -> tuple[list[tuple[_Ids, _Ids, _LogProbs]], list[_LogProbs] | None]:
    """The arrays in the core's types; those of a rollout pass as they are."""
    arrays = [
        (
            _vector(row.input_ids, np.int64, index, "input_ids"),
            _vector(row.completion_mask, np.int64, index, "completion_mask"),
            _vector(row.old_log_probs, np.float32, index, "old_log_probs"),
        )
        for index, row in enumerate(rows)
    ]
    if values is None:
        return arrays, None
    given = [_vector(value, np.float32, index, "values") for index, value in enumerate(values)]
    if len(given) != len(arrays):
        raise ConfigError(f"there are {len(arrays)} rows, but values for {len(given)}")
    return arrays, given


def _vector(array: ArrayLike, dtype: type[_Scalar], row: int, name: str) -> NDArray[_Scalar]:
    vector = np.ascontiguousarray(array, dtype)
    if vector.ndim != 1:
        raise ConfigError(f"row {row}: {name} has the shape {vector.shape}, not one element for each token")
    return vector


def _limits(max_length: int | None, on_overflow: str, vocab_size: int | None) -> tuple[int | None, str, int | None]:
    if max_length is not None and max_length < 1:
        raise ConfigError(f"max_length={max_length}: it is at least 1, or None for no limit")
    if vocab_size is not None and vocab_size < 1:
        raise ConfigError(f"vocab_size={vocab_size}: it is at least 1, or None for no check")
    if on_overflow not in get_args(OnOverflow):
        raise ConfigError(f"on_overflow={on_overflow!r}: it is one of {', '.join(map(repr, get_args(OnOverflow)))}")
    # Tokenizers without a limit say int(1e30).
    return None if max_length is None else min(max_length, sys.maxsize), on_overflow, vocab_size
