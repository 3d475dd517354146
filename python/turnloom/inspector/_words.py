"""The words that both views use."""

from __future__ import annotations

import json
from typing import Any, Final

from turnloom.inspector._inspection import Inspection

_NONE: Final = dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), "�")
_UNSEEN: Final = (0xAD, 0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
"""Characters without a shape, among them those that turn the direction of what comes after."""
_CONTROL: Final[dict[int, str]] = (
    _NONE
    | {code: f"^{chr(code ^ 64)}" for code in (*range(0x20), 0x7F)}
    | {code: f"<U+{code:04X}>" for code in _UNSEEN}
)
_WHITE_SPACE: Final = _CONTROL | {0x20: "·", 0x0A: "↵", 0x09: "⇥"}
_LINES: Final = {code: sign for code, sign in _CONTROL.items() if code not in (0x09, 0x0A)}


def visible(text: str, *, white_space: bool = False) -> str:
    """The text without characters that steer a terminal, that none can write, or that nobody sees.

    Args:
        white_space: whether that is shown as signs.
    """
    return text.translate(_WHITE_SPACE if white_space else _LINES)


def elided(text: str, *, limit: int) -> str:
    """A text of at most about `limit` characters: its beginning and its end, and how much is left out."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]} … {len(text) - head - tail:,} characters … {text[len(text) - tail :]}"


def counted(number: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def headline(inspection: Inspection) -> str:
    """How it ended, and how much there is of it."""
    reward = "no reward" if inspection.reward is None else f"reward {inspection.reward:g}"
    trained_rows = sum(row.row is not None for row in inspection.rows)
    parts = [inspection.outcome, reward, counted(len(inspection.turns), "turn"), counted(trained_rows, "row")]
    return " · ".join(parts + ["truncated"] * inspection.truncated)


def call_text(call: Any) -> str:
    """A tool call of a chat message as `name(arguments)`."""
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{function['name']}({text})"
