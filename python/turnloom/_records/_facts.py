"""The facts of a record: what is told of a rollout beside the bytes of its answer."""

from __future__ import annotations

import json
import operator
import platform
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import metadata
from typing import Any, Final

from turnloom import _exceptions
from turnloom._exceptions import TurnloomError
from turnloom._native import __version__
from turnloom._rollout import Rollout

_OTHERS: Final = ("trl", "transformers", "torch", "vllm")
"""Packages whose versions say something about a rollout, where they are installed."""


FACTS: Final = frozenset(
    {"request", "agent", "server", "outcome", "reason", "reward", "error", "rows", "tokens", "trained_tokens"}
    | {"body_bytes", "timing", "settings", "versions"}
)
"""What every record tells, at the least."""


def facts_of(rollout: Rollout, *, body_bytes: int, began_at: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All facts but the request."""
    return {
        "rollout_id": rollout.id,
        "began_at": began_at,
        "agent": rollout.agent,
        "server": rollout.server,
        "outcome": rollout.outcome,
        "reason": rollout.reason,
        "reward": rollout.reward,
        "error": None if rollout.error is None else _error_facts(rollout.error),
        "turns": len(rollout._parsed.turns),
        "rows": len(rollout.rows),
        "tokens": sum(len(row.input_ids) for row in rollout.rows),
        "trained_tokens": sum(int(row.completion_mask.sum()) for row in rollout.rows),
        "body_bytes": body_bytes,
        "timing": asdict(rollout.timing),
        "settings": dict(settings),
        "versions": versions(),
    }


def to_line(facts: Mapping[str, Any], request: bytes) -> bytes:
    """One line of JSON, the request in it as it was sent."""
    return b'{"request":%b,%b\n' % (
        request,
        json.dumps(facts, separators=(",", ":"), default=operator.index).encode()[1:],
    )


def error_from(facts: Mapping[str, Any]) -> TurnloomError:
    """The exception that the facts of an error tell of."""
    fields = {name: value for name, value in facts.items() if name not in ("type", "message")}
    error: TurnloomError = getattr(_exceptions, facts["type"])(facts["message"], **fields)
    return error


def _error_facts(error: TurnloomError) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error), **vars(error)}


@cache
def versions() -> dict[str, str]:
    """Of this library, of Python, and of what else has a part in a rollout."""
    found = {"turnloom": __version__, "python": platform.python_version()}
    for name in _OTHERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
