"""Messages as TRL prints them with `log_completions`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any


def printable(messages: Any) -> list[dict[str, str]] | str:
    """The messages with all that they say as text.

    TRL reads tool calls and parts as well, and raises for what it does not expect there: arguments that are no JSON
    object, say, which a model that is still learning writes all the time.
    """
    if not isinstance(messages, list):
        return _encodable(str(messages))
    return [{"role": str(_of(each, "role")), "content": _encodable("\n".join(_lines(each)))} for each in messages]


def _lines(message: Any) -> Iterator[str]:
    for name in ("reasoning_content", "content"):
        parts = _of(message, name) or ""
        for part in parts if isinstance(parts, list) else [parts]:
            text = _of(part, "text") if isinstance(part, Mapping) else part
            if text:
                yield str(text)
    for call in _of(message, "tool_calls") or ():
        function = _of(call, "function")
        yield f"{_of(function, 'name')}({_of(function, 'arguments')})"


def _of(owner: Any, name: str) -> Any:
    return owner.get(name) if isinstance(owner, Mapping) else None


def _encodable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
