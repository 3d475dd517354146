"""Decoders of JSON, each as its documentation would have it: from a body to the model calls that it tells."""

# No `from __future__ import annotations`: msgspec reads those of its structs.

import importlib.util
import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from turnloom._gym import TurnRecord

Turns = Callable[[bytes], list[TurnRecord]]
"""The turns of a body that nothing is wrong with. What it does with another is its own affair."""


def turns_by(loads: Callable[[bytes], Any]) -> Turns:
    """The decoder makes Python objects of everything."""

    def turns(body: bytes) -> list[TurnRecord]:
        return [
            TurnRecord(item["prompt_token_ids"], item["generation_token_ids"], item["generation_log_probs"])
            for item in loads(body)["response"]["output"]
            if item.get("generation_token_ids")
        ]

    return turns


json_turns: Final = turns_by(json.loads)


def _orjson() -> Turns:
    import orjson

    return turns_by(orjson.loads)


def _msgspec() -> Turns:
    """Typed: what is no token array is checked and skipped."""
    import msgspec

    class Item(msgspec.Struct):
        prompt_token_ids: list[int] | None = None
        generation_token_ids: list[int] | None = None
        generation_log_probs: list[float] | None = None

    class Response(msgspec.Struct):
        output: list[Item]

    class Answer(msgspec.Struct):
        response: Response

    decoder = msgspec.json.Decoder(Answer)

    def turns(body: bytes) -> list[TurnRecord]:
        answer: Any = decoder.decode(body)
        return [
            TurnRecord(item.prompt_token_ids, item.generation_token_ids, item.generation_log_probs)
            for item in answer.response.output
            if item.generation_token_ids
        ]

    return turns


def _simdjson() -> Turns:
    """Lazy: only the token arrays become Python objects."""
    import simdjson

    def turns(body: bytes) -> list[TurnRecord]:
        answer: Any = simdjson.Parser().parse(body)
        return [
            TurnRecord(
                item["prompt_token_ids"].as_list(),
                item["generation_token_ids"].as_list(),
                item["generation_log_probs"].as_list(),
            )
            for item in answer["response"]["output"]
            if item.get("generation_token_ids")
        ]

    return turns


_MAKE: Final[Mapping[str, Callable[[], Turns]]] = {
    "json": lambda: json_turns,
    "orjson": _orjson,
    "msgspec": _msgspec,
    "simdjson": _simdjson,
}
DECODERS: Final = tuple(_MAKE)
_DISTRIBUTIONS: Final = ("orjson", "msgspec", "pysimdjson")


def decoders() -> dict[str, Turns]:
    """Those that are installed, of `DECODERS`."""
    missing = missing_decoders()
    return {name: make() for name, make in _MAKE.items() if name not in missing}


def missing_decoders() -> list[str]:
    """The decoders that are not installed; the extra `bench` has all of them."""
    return [name for name in DECODERS if importlib.util.find_spec(name) is None]


def versions() -> dict[str, str]:
    """What takes part in a measurement, by package; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in ("turnloom", "numpy", "trl", *_DISTRIBUTIONS):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
