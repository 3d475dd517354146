"""The items of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def items_of(output: Any) -> list[Any]:
    """The items of an answer, whichever part of it is at hand: `response.output`, `response`, or all of it.

    An answer that has none gives an empty list.

    Raises:
        TypeError: what was given is no part of a parsed answer.
    """
    if isinstance(output, Mapping):
        response = output.get("response", output)
        output = response.get("output") if isinstance(response, Mapping) else None
        return output if isinstance(output, list) else []
    if output is None:
        return []
    if isinstance(output, Sequence) and not isinstance(output, (str, bytes, bytearray)):
        return list(output)
    raise TypeError(f"a list of items or a parsed answer is needed, not {type(output).__name__}")


def item_type(item: Any) -> str:
    """An item's type for a person; where there is none it is a message, as in the Responses API."""
    if not isinstance(item, Mapping):
        return type(item).__name__
    given = item.get("type")
    return "message" if given is None else str(given)


def carries_ids(item: Mapping[str, Any]) -> bool:
    """Whether token ids are on the item, sound or not: the last of a model call."""
    generation, prompt = item.get("generation_token_ids"), item.get("prompt_token_ids")
    return (generation is not None and generation != []) or (isinstance(prompt, list) and prompt != [])


def as_string(value: Any) -> str:
    """The string itself, nothing for null, and JSON for anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return str(type(value))
