"""Changes that chat templates and agents make to what a model said, and how to undo them in a text.

Two texts that agree once a change is undone in both differ by that change, and by nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

_THINKING: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<seed:think>", "</seed:think>"),
)
"""How models mark what they think: the beginning, and the end."""

_AFTER_THINKING: Final = r"(?:<\|start\|>assistant)?\s*"
"""What comes between thinking and the answer, and goes with the thinking."""

_BLOCKS: Final = re.compile(
    "|".join(rf"{re.escape(begin)}.*?(?:{re.escape(end)}{_AFTER_THINKING}|\Z)" for begin, end in _THINKING), re.DOTALL
)
_BEGUN_BEFORE: Final = re.compile(
    "|".join(rf"\A(?:(?!{re.escape(begin)}).)*?{re.escape(end)}{_AFTER_THINKING}" for begin, end in _THINKING[:3]),
    re.DOTALL,
)
"""Thinking whose beginning is no longer in the text: the prompt had it."""

_TAGGED_CALL: Final = re.compile(r"<(tool_call|function_calls?)>.*?</\1>", re.DOTALL)
_decode: Final = json.JSONDecoder().raw_decode


def without_thinking(text: str) -> str:
    """The text without what the model thought."""
    return _BLOCKS.sub("", _BEGUN_BEFORE.sub("", text))


def with_plain_calls(text: str) -> str:
    """The text with each JSON object written in one way, and no white space in tagged calls."""
    pieces = []
    done = at = 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = _decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        pieces += [text[done:at], json.dumps(_plain(value), sort_keys=True)]
        done = at = end
    pieces.append(text[done:])
    return _TAGGED_CALL.sub(lambda call: "".join(call[0].split()), "".join(pieces))


def _plain(value: Any) -> Any:
    """The value with objects in the place of strings that are JSON objects, as `arguments` are sent."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return _plain(json.loads(value))
        except (ValueError, RecursionError):
            return value
    return value


class Ends:
    """What stands around an answer and means nothing: white space, and special tokens.

    Args:
        special_tokens: their texts, longer ones first.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        special = list(map(re.escape, special_tokens))
        blank = "|".join((r"\s", *special))
        self._start = re.compile(rf"\A(?:{blank})+")
        self._end = re.compile(rf"(?:{blank})+\Z")
        self._end_of_answer = re.compile(rf"\s*(?:{'|'.join(special)}|\Z)" if special else r"\s|\Z")

    def stripped(self, text: str) -> str:
        """The text without them."""
        return self._end.sub("", self.stripped_start(text))

    def stripped_start(self, text: str) -> str:
        """The text without those at its beginning."""
        return self._start.sub("", text)

    def end_answer(self, rest: str) -> bool:
        """Whether an answer can end where this is the rest of the text."""
        return self._end_of_answer.match(rest) is not None
