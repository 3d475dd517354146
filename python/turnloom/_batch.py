"""Rows → padded or packed arrays, which torch shares without a copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnloom import _native
from turnloom._exceptions import ConfigError
from turnloom._rollout import TrainingRow

if TYPE_CHECKING:
    import torch

_Ids = NDArray[np.int64]
_LogProbs = NDArray[np.float32]


class _Batch:
    """What the three layouts share."""

    def to_torch(self) -> dict[str, torch.Tensor]:
        """The arrays as tensors that share their memory. A number stays one.

        Raises:
            ImportError: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise ImportError('to_torch() needs torch: pip install "turnloom[torch]"') from error
        values = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in values}


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
    """[T], the row that the token is of."""
    cu_seqlens: NDArray[np.int32]
    """[B + 1], where each row begins, and the end."""
    max_seqlen: int
    """Length of the longest row."""


def pad(
    rows: Iterable[TrainingRow],
    *,
    pad_token_id: int = 0,
    padding_side: Literal["left", "right"] = "right",
    multiple_of: int = 1,
) -> PaddedBatch:
    """Rows padded to the longest, rounded up to a multiple of `multiple_of`.

    Lengths decide what is padding: a token that equals `pad_token_id` stays one. No rows give arrays of shape [0, 0].

    Raises:
        ConfigError: an unknown `padding_side`, or a `multiple_of` below 1.
        ValueError: the arrays of a row differ in length.
    """
    if padding_side not in ("left", "right"):
        raise ConfigError(f'padding_side={padding_side!r}: it is "left" or "right"')
    if multiple_of < 1:
        raise ConfigError(f"multiple_of={multiple_of}: it is at least 1")
    left = padding_side == "left"
    return PaddedBatch(*_native.pad(_arrays(rows), pad_token_id=pad_token_id, left=left, multiple_of=multiple_of))


def pad_prompt_completion(rows: Iterable[TrainingRow], *, pad_token_id: int = 0) -> PromptCompletionBatch:
    """Rows in two halves, as TRL's `GRPOTrainer` lays them out; a prompt ends before the row's first trained token.

    Raises:
        ValueError: the arrays of a row differ in length.
    """
    return PromptCompletionBatch(*_native.pad_prompt_completion(_arrays(rows), pad_token_id=pad_token_id))


def pack(rows: Iterable[TrainingRow]) -> PackedBatch:
    """Rows one behind the other, with what variable-length attention kernels ask for.

    Raises:
        ValueError: the arrays of a row differ in length, or there are more than 2**31 - 1 tokens.
    """
    return PackedBatch(*_native.pack(_arrays(rows)))


def _arrays(rows: Iterable[Any]) -> list[tuple[_Ids, _Ids, _LogProbs]]:
    """The rows' arrays in the core's types; those of a rollout pass as they are."""
    return [
        (
            np.ascontiguousarray(row.input_ids, np.int64),
            np.ascontiguousarray(row.completion_mask, np.int64),
            np.ascontiguousarray(row.old_log_probs, np.float32),
        )
        for row in rows
    ]
