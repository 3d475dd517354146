"""Faster decoders of JSON in the place of `json`, each as its documentation would have it."""

from functools import partial

import msgspec
import orjson
import simdjson

from pure_python import TurnRecord, Turns, turns_of

orjson_turns = partial(turns_of, loads=orjson.loads)


class _Item(msgspec.Struct):
    prompt_token_ids: list[int] | None = None
    generation_token_ids: list[int] | None = None
    generation_log_probs: list[float] | None = None


class _Response(msgspec.Struct):
    output: list[_Item]


class _Answer(msgspec.Struct):
    response: _Response


_decoder = msgspec.json.Decoder(_Answer)


def msgspec_turns(body: bytes) -> Turns:
    """Typed: what is no token array is checked and skipped."""
    return [
        TurnRecord(item.prompt_token_ids, item.generation_token_ids, item.generation_log_probs)
        for item in _decoder.decode(body).response.output
        if item.generation_token_ids
    ]


def simdjson_turns(body: bytes) -> Turns:
    """Lazy: only the token arrays become Python objects."""
    return [
        TurnRecord(
            item["prompt_token_ids"].as_list(),
            item["generation_token_ids"].as_list(),
            item["generation_log_probs"].as_list(),
        )
        for item in simdjson.Parser().parse(body)["response"]["output"]
        if item.get("generation_token_ids")
    ]
