"""What NeMo Gym means by its JSON: answers as messages and as turns."""

import doctest
import importlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences

import turnloom
from conftest import RealBody
from turnloom._gym import skipped_item_types
from turnloom.integrations.nemo_gym.rollout import messages_from_agent_output, turns_from_agent_output


@pytest.mark.parametrize("module", ["_messages", "_request", "_turns"])
def test_the_examples_in_the_docstrings_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"turnloom._gym.{module}"))
    assert result.failed == 0
    assert result.attempted > 0


# Messages

IDS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}


def said(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content, **more}


def call(name: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": f"call-{name}", **more}


def result(name: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call-{name}", "output": output}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **more}


def shape(messages: list[dict[str, Any]]) -> list[str]:
    """Each message in a word: its role's letter, then reasoning, content and the names of its calls."""
    return [
        " ".join(
            [
                message["role"][0],
                *([f"({message['reasoning_content']})"] if "reasoning_content" in message else []),
                *([message["content"]] if message["content"] else []),
                *(f"{called['function']['name']}!" for called in message.get("tool_calls", ())),
            ]
        )
        for message in messages
    ]


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ([thought("t"), said("a"), call("f"), call("g")], ["a (t) a f! g!"]),
        ([thought("t"), thought("u"), said("a")], ["a (tu) a"]),
        (
            [call("f"), call("g", **IDS), result("g", "2"), result("f", "1"), said("a")],
            ["a f! g!", "t 2", "t 1", "a a"],
        ),
        ([said("a"), said("b")], ["a a", "a b"]),
        ([said("a", **IDS), said("b", **IDS)], ["a a", "a b"]),
        ([call("f", **IDS), call("g", **IDS)], ["a f!", "a g!"]),
        ([call("f"), thought("t"), call("g")], ["a f!", "a (t) g!"]),
        ([call("f"), said("a")], ["a f!", "a a"]),
        ([thought("t", **IDS), said("a", **IDS)], ["a (t)", "a a"]),
        ([said("a", **IDS), said("")], ["a a", "a"]),
        ([said("a", prompt_token_ids=[], generation_token_ids=[]), call("f")], ["a a f!"]),
        ([call("f"), said("a", **IDS)], ["a a f!"]),
        ([said("a"), said("b", **IDS)], ["a ab"]),
        ([said("a"), thought("t"), said("b"), call("f", **IDS), said("c")], ["a (t) ab f!", "a c"]),
        ([call("f"), {"type": "mcp_call"}, said("a"), call("g", **IDS)], ["a a f! g!"]),
        ([call("f"), {"type": "mcp_call", **IDS}, said("a", **IDS)], ["a f!", "a a"]),
        ([said("a"), said("b"), result("f", "1"), said("c", **IDS)], ["a a", "a b", "t 1", "a c"]),
        ([said("a"), said("b"), {**result("f", "1"), **IDS}], ["a a", "a b", "t 1"]),
        ([said("a"), {"role": "user", "content": "no"}, said("b")], ["a a", "u no", "a b"]),
        ([{"content": "without type and role"}, call("f")], ["a without type and role f!"]),
        ([thought("t"), {"type": "web_search_call"}, said("a")], ["a (t) a"]),
        ([{"type": "mcp_call", **IDS}, 7, None, "x"], []),
        ([{"type": "mcp_call", **IDS}, said("a")], ["a a"]),
    ],
)
def test_the_items_of_one_model_call_become_one_message(items: list[Any], wanted: list[str]) -> None:
    assert shape(messages_from_agent_output(items)) == wanted


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"summary": [{"text": "a"}, {"text": "b"}], "content": [{"text": "c"}]}, "ab"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "c"}]}, "c"),
        ({"summary": None, "content": [{"type": "output_text", "text": "c"}]}, "c"),
        ({"content": "c"}, "c"),
        ({"summary": None, "content": None}, ""),
        ({}, ""),
    ],
)
def test_reasoning_is_found_wherever_it_is(item: dict[str, Any], text: str) -> None:
    (message,) = messages_from_agent_output([{"type": "reasoning", **item}])
    assert message == {"role": "assistant", "content": "", "reasoning_content": text}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ({"a": 1}, {"a": 1}),
        ('{"a": 1,', '{"a": 1,'),
        ("", ""),
        ("[1,2]", "[1,2]"),
        ("null", "null"),
        ('"text"', '"text"'),
        ("[" * 100_000, "[" * 100_000),
        (None, ""),
        (12, "12"),
    ],
)
def test_arguments_are_an_object_or_the_raw_string(sent: Any, told: Any) -> None:
    (message,) = messages_from_agent_output([call("f", sent)])
    assert message["tool_calls"] == [{"id": "call-f", "type": "function", "function": {"name": "f", "arguments": told}}]


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("plain", "plain"),
        (None, ""),
        ({"error": "é"}, '{"error": "é"}'),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
        (["a", "b"], '["a", "b"]'),
        ([], "[]"),
        (4, "4"),
    ],
)
def test_a_tool_says_what_it_sent(output: Any, content: str) -> None:
    assert messages_from_agent_output([result("f", output)]) == [
        {"role": "tool", "tool_call_id": "call-f", "content": content}
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}, {"type": "image"}], "ab"),
        ([None, 3, "c", {"text": None}], "c"),
        ({"text": "d"}, "d"),
        (5, ""),
    ],
)
def test_a_message_says_its_text_parts(content: Any, text: str) -> None:
    item = {"type": "message", "role": "assistant", "content": content}
    assert messages_from_agent_output([item]) == [{"role": "assistant", "content": text}]


def test_skipped_items_are_counted_by_type() -> None:
    items = [{"type": "mcp_call"}, said("a"), {"type": "web_search_call"}, {"type": "mcp_call"}, None]
    assert skipped_item_types(items) == {"mcp_call": 2, "web_search_call": 1, "NoneType": 1}


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("role", "content", "summary", "name", "arguments", "call_id", "output", *IDS)
TYPES = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "mcp_call"]) | ODD
ITEMS = st.fixed_dictionaries({"type": TYPES}, optional=dict.fromkeys(FIELDS, ODD)) | ODD


@given(st.lists(ITEMS, max_size=6))
def test_odd_items_never_cost_a_rollout(items: list[Any]) -> None:
    messages = messages_from_agent_output(items)
    assert all(isinstance(message["role"], str) and isinstance(message["content"], str) for message in messages)
    json.dumps(messages)
    turns_from_agent_output(items)


def test_any_part_of_an_answer_is_taken() -> None:
    items = [said("a", **IDS)]
    for given_ in (items, tuple(items), {"output": items}, {"response": {"output": items}, "output": 3}):
        assert shape(messages_from_agent_output(given_)) == ["a a"]
        assert len(turns_from_agent_output(given_)) == 1
    for nothing in (None, {}, {"response": None}, {"response": {"output": "x"}}, {"detail": "Not Found"}):
        assert messages_from_agent_output(nothing) == turns_from_agent_output(nothing) == []
    for wrong in ("[]", b"[]", 7):
        with pytest.raises(TypeError, match="a parsed answer is needed"):
            messages_from_agent_output(wrong)


# Turns


def bundle(prompt: Any, generation: Any, log_probs: Any) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "generation_token_ids": generation, "generation_log_probs": log_probs}


@pytest.mark.parametrize(
    "item",
    [
        bundle([], [2], [-0.5]),
        bundle(None, [2], [-0.5]),
        bundle("12", [2], [-0.5]),
        bundle([1], [], []),
        bundle([1], None, None),
        bundle([1], "2", [-0.5]),
        bundle([1], [2, 3], [-0.5]),
        bundle([1], [2], None),
        bundle([1], [2], [[-0.5]]),
        bundle([1], [2], [{}]),
        bundle([1.0], [2], [-0.5]),
        bundle([True], [2], [-0.5]),
        bundle([1], [-2], [-0.5]),
        bundle([1], [2**31], [-0.5]),
        bundle([1], ["2 "], [-0.5]),
        bundle([1], ["٣"], [-0.5]),
        bundle([1], ["token_id:"], [-0.5]),
        bundle([1], ["-2"], [-0.5]),
        bundle([1], ["9" * 5000], [-0.5]),
        bundle([1], [None], [-0.5]),
    ],
)
def test_an_unsound_bundle_is_no_turn(item: dict[str, Any]) -> None:
    assert turns_from_agent_output([item]) == []
    assert not turnloom.parse_run(json.dumps({"response": {"output": [item]}})).turns


def test_ids_may_be_strings() -> None:
    item = bundle(["101", "token_id:102", 2**31 - 1], ["0" * 5000 + "7"], [-1])
    (turn,) = turns_from_agent_output([item])
    assert (turn.prompt_ids, turn.output_ids, turn.output_mask) == ([101, 102, 2**31 - 1], [7], None)


def test_a_token_without_a_usable_logprob_is_masked() -> None:
    sent = [-0.5, None, float("nan"), float("inf"), -float("inf"), True, "-0.5", -9999, -9999.5, 1e39, 10**400]
    used = [-9998.99, 0.25, 0, -0.0, 1e-45]
    (turn,) = turns_from_agent_output([bundle([1], list(range(16)), sent + used)])
    assert turn.output_mask == [1] + [0] * 10 + [1] * 5
    assert turn.output_log_probs == [-0.5] + [0.0] * 10 + used


def test_a_call_told_twice_is_one_turn() -> None:
    first, other = bundle([1], [2], [-0.5]), bundle([1], [2], [-0.25])
    told = [first, first, bundle([], [5], [0]), first, other, first, bundle([1], ["2"], [-0.5 + 1e-12])]
    assert [turn.output_log_probs for turn in turns_from_agent_output(told)] == [[-0.5], [-0.25], [-0.5]]
    assert len(turns_from_agent_output([bundle([1], [2], [None]), bundle([1], [2], [0.0])])) == 2


# Both against the native path


@pytest.mark.parametrize("threshold", [0, 1024])
def test_turns_and_messages_agree_with_the_native_path(real_body: RealBody, threshold: int) -> None:
    document = json.loads(real_body.content)
    rollout = turnloom.parse_run(real_body.content, fork_threshold_tokens=threshold)
    if not isinstance(document, dict):
        assert not rollout.turns
        return
    turns = turns_from_agent_output(document)
    assert [(len(turn.prompt_ids), len(turn.output_ids)) for turn in turns] == [
        (turn.prompt_tokens, turn.output_tokens) for turn in rollout.turns
    ]
    sequences, tally = _chain_to_sequences(turns, "rollout", threshold)
    rows = rollout.rows or rollout.unscored_rows
    assert len(rows) == len(sequences)
    for row, sequence in zip(rows, sequences, strict=True):
        assert row.input_ids.tolist() == sequence.input_ids
        assert row.completion_mask.tolist() == sequence.completion_mask
        assert row.old_log_probs.tobytes() == np.asarray(sequence.old_log_probs, np.float32).tobytes()
    assert all(getattr(rollout.drift, name) == count for name, count in tally.items())
    assert rollout.messages() == messages_from_agent_output(document)
