"""An answer as chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from turnloom._gym._items import as_string, carries_ids, item_type, items_of


def messages_from_agent_output(output: Any) -> list[dict[str, Any]]:
    """An agent's output as chat messages, as chat templates and reward functions know them.

    All items of one model call become one assistant message with `content`, and where there are any,
    `reasoning_content` and `tool_calls` (`arguments` as an object when they are one, else the raw string). A tool's
    output becomes a message of the role `tool`; messages of other roles stay. Items of other types are skipped (see
    `skipped_item_types`). Odd text is carried, never an error.

    A call ends where its token ids are, which its last item carries, or at an item that its model did not write. Where
    the ids are absent, its items' order tells: reasoning, then at most one message, then tool calls.

    Args:
        output: `response.output`, `response`, or the whole answer.

    Raises:
        TypeError: `output` is no part of a parsed answer.

    Examples:
        >>> messages_from_agent_output([
        ...     {"type": "reasoning", "summary": [{"text": "I look it up."}]},
        ...     {"type": "function_call", "name": "price", "arguments": '{"of": "tea"}', "call_id": "c1"},
        ...     {"type": "function_call_output", "call_id": "c1", "output": "4"},
        ...     {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 4."}]},
        ... ])  # doctest: +NORMALIZE_WHITESPACE
        [{'role': 'assistant', 'content': '', 'reasoning_content': 'I look it up.',
          'tool_calls': [{'id': 'c1', 'type': 'function', 'function': {'name': 'price', 'arguments': {'of': 'tea'}}}]},
         {'role': 'tool', 'tool_call_id': 'c1', 'content': '4'},
         {'role': 'assistant', 'content': 'It is 4.'}]
    """
    messages: list[dict[str, Any]] = []
    call = _Call()
    items = items_of(output)
    for item, call_has_ids in zip(items, _of_calls_with_ids(items), strict=True):
        kind = _kind(item)
        if kind in _CALL_ORDER:
            if not (call_has_ids or call.takes(kind)):
                call.end(messages)
            call.add(kind, item)
        elif kind is not None:
            call.end(messages)
            messages.append(_tool_message(item) if kind == "tool" else _other_message(item))
        if isinstance(item, Mapping) and carries_ids(item):
            call.end(messages)
    call.end(messages)
    return messages


def skipped_item_types(output: Any) -> dict[str, int]:
    """How many items of which types `messages_from_agent_output` skips.

    Examples:
        >>> skipped_item_types([{"type": "web_search_call"}, {"type": "message", "role": "assistant", "content": "4"}])
        {'web_search_call': 1}
    """
    counts: dict[str, int] = {}
    for item in items_of(output):
        if _kind(item) is None:
            name = item_type(item)
            counts[name] = counts.get(name, 0) + 1
    return counts


# The order in which one model call writes its items.
_CALL_ORDER: Final = {"reasoning": 0, "assistant": 1, "function_call": 2}


def _kind(item: Any) -> str | None:
    """What an item is in a chat; None for what has no place in one."""
    if not isinstance(item, Mapping):
        return None
    given = item_type(item)
    if given == "message":
        return "assistant" if item.get("role") in (None, "assistant") else "other"
    if given == "function_call_output":
        return "tool"
    return given if given in ("reasoning", "function_call") else None


def _of_calls_with_ids(items: list[Any]) -> list[bool]:
    """For each item, whether it belongs to a call whose ids are there, so that their place tells the call's end."""
    found: list[bool] = []
    has_ids = False
    for item in reversed(items):
        if _kind(item) in ("tool", "other"):
            has_ids = False
        elif isinstance(item, Mapping) and carries_ids(item):
            has_ids = True
        found.append(has_ids)
    return found[::-1]


class _Call:
    """The items of one model call, gathered into one assistant message."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._last: str | None = None
        self._content = ""
        self._reasoning: str | None = None
        self._tool_calls: list[dict[str, Any]] = []

    def takes(self, kind: str) -> bool:
        """Whether an item of this kind can still belong to the call."""
        if self._last is None:
            return True
        if kind == self._last:
            return kind != "assistant"
        return _CALL_ORDER[kind] > _CALL_ORDER[self._last]

    def add(self, kind: str, item: Mapping[str, Any]) -> None:
        self._last = kind
        if kind == "reasoning":
            text = _text(item.get("summary")) or _text(item.get("content"))
            self._reasoning = (self._reasoning or "") + text
        elif kind == "assistant":
            self._content += _text(item.get("content"))
        else:
            self._tool_calls.append(_tool_call(item))

    def end(self, messages: list[dict[str, Any]]) -> None:
        if self._last is None:
            return
        message: dict[str, Any] = {"role": "assistant", "content": self._content}
        if self._reasoning is not None:
            message["reasoning_content"] = self._reasoning
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        messages.append(message)
        self._clear()


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": as_string(item.get("name")), "arguments": _arguments(item.get("arguments"))}
    return {"id": as_string(item.get("call_id")), "type": "function", "function": function}


def _arguments(given: Any) -> dict[str, Any] | str:
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str):
        return as_string(given)
    try:
        parsed = json.loads(given)
    except (ValueError, RecursionError):
        return given
    return parsed if isinstance(parsed, dict) else given


def _tool_message(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    parts = isinstance(output, list) and output and all(isinstance(part, Mapping) and "text" in part for part in output)
    content = _text(output) if parts else as_string(output)
    return {"role": "tool", "tool_call_id": as_string(item.get("call_id")), "content": content}


def _other_message(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": as_string(item.get("role")), "content": _text(item.get("content"))}


def _text(content: Any) -> str:
    """The text of a string, of a part, or of a list of these; anything else has none."""
    return "".join(map(_part_text, content if isinstance(content, list) else [content]))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    return next((part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)), "")
