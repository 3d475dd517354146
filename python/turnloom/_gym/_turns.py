"""An answer as turns, in Python lists."""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from turnloom._gym._items import items_of

MAX_TOKEN_ID: Final = 2**31 - 1
LOGPROB_SENTINEL: Final = -9999.0
"""vLLM's stand-in for minus infinity; it and all below are no logprobs."""

_TOKEN_ID = re.compile(r"(?:token_id:)?([0-9]+)")


@dataclass(frozen=True)
class TurnRecord:
    """One model call as TRL's reconciler takes it (the field names are TRL's)."""

    prompt_ids: list[int]
    """All ids of the prompt."""
    output_ids: list[int]
    """The generated ids."""
    output_log_probs: list[float] = field(default_factory=list)
    """One logprob per generated id; 0.0 where none is usable."""
    output_mask: list[int] | None = None
    """1 for each generated id to train, 0 where no logprob is usable; None when all are trained."""


def turns_from_agent_output(output: Any) -> list[TurnRecord]:
    """The turns of an agent's output, by the rules of the native parser, for those who want them as Python lists.

    An item without token ids is no turn; one whose ids or logprobs are not sound is left out whole; a turn told twice
    in a row counts once. A token without a usable logprob has `output_mask` 0. (One thing is lost once `json` has
    read the body: the id `-0`, which the native parser refuses, has become 0.)

    Args:
        output: `response.output`, `response`, or the whole answer.

    Raises:
        TypeError: `output` is no part of a parsed answer.

    Examples:
        >>> turns_from_agent_output([{"type": "message", "prompt_token_ids": [1, 2],
        ...                           "generation_token_ids": ["token_id:3"], "generation_log_probs": [-0.5]}])
        [TurnRecord(prompt_ids=[1, 2], output_ids=[3], output_log_probs=[-0.5], output_mask=None)]
    """
    turns: list[TurnRecord] = []
    for item in items_of(output):
        turn = turn_of(item) if isinstance(item, Mapping) else None
        if turn is not None and not (turns and _told_again(turns[-1], turn)):
            turns.append(turn)
    return turns


def turn_of(item: Mapping[str, Any]) -> TurnRecord | None:
    """The model call that an item tells; None where it has no token ids, or ids that are not sound."""
    prompt, generation, log_probs = (
        item.get(name) for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    )
    if not (isinstance(generation, list) and isinstance(prompt, list) and isinstance(log_probs, list)):
        return None
    if not generation or not prompt or len(log_probs) != len(generation):
        return None
    prompt_ids, output_ids = _ids(prompt), _ids(generation)
    if prompt_ids is None or output_ids is None or any(isinstance(value, (list, dict)) for value in log_probs):
        return None
    usable = [_log_prob(value) for value in log_probs]
    mask = None if None not in usable else [int(value is not None) for value in usable]
    return TurnRecord(prompt_ids, output_ids, [value if value is not None else 0.0 for value in usable], mask)


def _ids(values: list[Any]) -> list[int] | None:
    ids = [_id(value) for value in values]
    return None if None in ids else ids  # type: ignore[return-value]


def _id(value: Any) -> int | None:
    if isinstance(value, str):
        match = _TOKEN_ID.fullmatch(value)
        # Python refuses to read very long numbers, and these are none of ours anyway.
        digits = (match[1].lstrip("0") or "0") if match else "-1"
        value = int(digits) if len(digits) <= 10 else -1
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_ID:
        return value
    return None


def _log_prob(value: Any) -> float | None:
    """The logprob as a float if it can be used: finite in single precision and above vLLM's sentinel."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
        struct.pack("<f", number)  # raises where single precision would be infinite
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > LOGPROB_SENTINEL else None


def _told_again(earlier: TurnRecord, later: TurnRecord) -> bool:
    return (
        earlier.output_ids == later.output_ids
        and earlier.prompt_ids == later.prompt_ids
        and earlier.output_mask == later.output_mask
        and array("f", earlier.output_log_probs).tobytes() == array("f", later.output_log_probs).tobytes()
    )
