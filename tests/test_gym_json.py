"""What NeMo Gym means by its JSON: rows as requests, answers as messages and as turns."""

import copy
import doctest
import importlib
import json
import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences

import turnloom
from conftest import RealBody
from turnloom._gym import _request, agent_of, prompt_of, skipped_item_types
from turnloom.integrations.nemo_gym.rollout import (
    agent_request,
    messages_from_agent_output,
    turns_from_agent_output,
)

SAMPLING = {"max_tokens": 64, "temperature": 0.7, "top_p": 0.9}
SENT_SAMPLING = {"max_output_tokens": 64, "temperature": 0.7, "top_p": 0.9}


@pytest.mark.parametrize("module", ["_items", "_messages", "_request", "_turns"])
def test_the_examples_in_the_docstrings_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"turnloom._gym.{module}"))
    assert result.failed == 0
    assert result.attempted > 0 or module == "_items"


# The request


def gym_row_column(**row: Any) -> dict[str, Any]:
    return {"nemo_gym_row": json.dumps(row), "prompt": "not sent", "id": 1}


def test_the_json_column_is_sent_as_it_is_and_wins() -> None:
    own = {
        "responses_create_params": {"input": "hi", "tools": []},
        "a": {"b": None, "c": [None, {"d": None}]},
        "z": None,
    }
    sent = agent_request(gym_row_column(**own), **SAMPLING)
    assert sent == {**own, "responses_create_params": {"input": "hi", "tools": [], **SENT_SAMPLING}}


def test_without_the_json_column_all_columns_but_the_prompt_are_sent() -> None:
    row = {"prompt": [{"role": "user"}], "nemo_gym_row": None, "responses_create_params": {"input": "hi"}, "answer": 4}
    sent = agent_request(row, **SAMPLING)
    assert sent == {"responses_create_params": {"input": "hi", **SENT_SAMPLING}, "answer": 4}


def test_null_members_that_arrow_added_are_left_out_but_never_elements_of_lists(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_request, "_warned", set())
    row = {
        "responses_create_params": {"input": [{"role": "user", "name": None}], "top_logprobs": None},
        "ground_truth": {"calls": [None, {"name": "f", "arguments": {"x": None, "y": 0}}], "note": None},
        "agent_ref": None,
    }
    before = copy.deepcopy(row)
    for _ in range(3):
        sent = agent_request(row, **SAMPLING)
    assert sent == {
        "responses_create_params": {"input": [{"role": "user"}], **SENT_SAMPLING},
        "ground_truth": {"calls": [None, {"name": "f", "arguments": {"y": 0}}]},
    }
    assert row == before
    (warning,) = caplog.records
    assert "ground_truth.note" in warning.message
    assert "nemo_gym_row" in warning.message


def test_nulls_directly_in_the_parameters_are_dropped_from_every_row_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_request, "_warned", set())
    params = {"input": "hi", "top_logprobs": None, "temperature": None, "metadata": {"x": None}}
    from_json = agent_request(gym_row_column(responses_create_params=params), **SAMPLING)
    assert from_json["responses_create_params"] == {"input": "hi", "metadata": {"x": None}, **SENT_SAMPLING}
    agent_request({"responses_create_params": {"input": "hi", "top_logprobs": None}}, **SAMPLING)
    assert not caplog.records


@pytest.mark.parametrize(
    ("own", "sent"), [(None, 64), (16, 16), (64.0, 64), (32.0, 32), (1000, 64), ("16", 64), (True, 64)]
)
def test_the_smaller_token_limit_is_sent(own: Any, sent: int) -> None:
    params = {"input": "hi", "max_output_tokens": own}
    for row in ({"responses_create_params": params}, gym_row_column(responses_create_params=params)):
        limit = agent_request(row, **SAMPLING)["responses_create_params"]["max_output_tokens"]
        assert (limit, type(limit)) == (sent, int)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"nemo_gym_row": "{"}, "not JSON"),
        ({"nemo_gym_row": "[" * 100_000}, "not JSON"),
        ({"nemo_gym_row": "[]"}, "not a JSON object"),
        ({"nemo_gym_row": {"responses_create_params": {}}}, "not dict"),
        ({"nemo_gym_row": "{}"}, "responses_create_params is missing"),
        ({"prompt": "hi", "answer": 4}, "responses_create_params is missing"),
        ({"responses_create_params": "hi"}, "is not an object"),
    ],
)
def test_rows_that_no_agent_could_take_are_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        agent_request(row, **SAMPLING)


@pytest.mark.parametrize(
    ("request_", "agent"),
    [
        ({}, "code"),
        ({"agent_ref": None}, "code"),
        ({"agent_ref": {}}, "code"),
        ({"agent_ref": {"name": None}}, "code"),
        ({"agent_ref": {"type": "responses_api_agents", "name": "math"}}, "math"),
    ],
)
def test_a_row_goes_to_the_agent_it_names_or_to_the_first(request_: dict[str, Any], agent: str) -> None:
    assert agent_of(request_, {"code": "http://a", "math": "http://b"}) == agent


@pytest.mark.parametrize("reference", [{"name": "chess"}, {"name": ""}, {"name": 3}, {"name": ["math"]}, "math", 7])
def test_an_agent_that_there_is_not_is_refused_with_those_there_are(reference: Any) -> None:
    with pytest.raises(turnloom.ConfigError, match="agents: code, math"):
        agent_of({"agent_ref": reference}, ["code", "math"])


def test_a_prompt_is_made_of_the_input() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2 + "}, {"text": "2?"}]},
        {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"},
    ]
    wanted = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": {}}}],
        },
    ]
    assert prompt_of({"responses_create_params": {"input": items}}) == wanted
    assert prompt_of(gym_row_column(responses_create_params={"input": items})) == wanted
    assert prompt_of(gym_row_column(responses_create_params={"input": "hi"})) == [{"role": "user", "content": "hi"}]
    assert prompt_of({"answer": 4}) == prompt_of({"responses_create_params": {"input": None}}) == []


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


def test_no_warning_is_given_for_rows_in_the_json_column(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        agent_request(gym_row_column(responses_create_params={"input": "hi"}, note=None), **SAMPLING)
    assert not caplog.records
