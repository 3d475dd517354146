"""Rows as requests: what is sent to an agent, and what is refused."""

import copy
import json
import logging
from typing import Any

import numpy as np
import pytest

import turnloom
from turnloom._gym import _request, agent_of, prompt_of
from turnloom.integrations.nemo_gym.rollout import agent_request

SAMPLING = {"max_tokens": 64, "temperature": 0.7, "top_p": 0.9}
SENT_SAMPLING = {"max_output_tokens": 64, "temperature": 0.7, "top_p": 0.9}


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
    ("own", "sent"), [(None, 64), (16, 16), (64.0, 64), (32.0, 32), (1000, 64), (10**400, 64), (np.int32(9), 9)]
)
def test_the_smaller_token_limit_is_sent(own: Any, sent: int) -> None:
    params = {"input": "hi", "max_output_tokens": own}
    limit = agent_request({"responses_create_params": params}, **SAMPLING)["responses_create_params"][
        "max_output_tokens"
    ]
    assert (limit, type(limit)) == (sent, int)


@pytest.mark.parametrize("own", ["16", True, 0, -1, 2.5, 1e400, float("nan"), [16], {}])
def test_a_token_limit_of_the_rows_own_that_is_none_is_refused(own: Any) -> None:
    params = {"input": "hi", "max_output_tokens": own}
    for row in ({"responses_create_params": params}, gym_row_column(responses_create_params=params)):
        with pytest.raises(turnloom.ConfigError, match=r"the row's max_output_tokens is .*, not a positive integer"):
            agent_request(row, **SAMPLING)
    with pytest.raises(turnloom.ConfigError, match="is inf, not"):
        agent_request({"nemo_gym_row": '{"responses_create_params": {"max_output_tokens": 1e400}}'}, **SAMPLING)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, True, 64.0, "64", None, float("inf"))),
        *(("temperature", value) for value in (-0.1, float("nan"), float("inf"), 10**400, True, "1", None)),
        *(("top_p", value) for value in (0, 0.0, 1.1, -1, float("nan"), True, "1", None)),
    ],
)
def test_sampling_out_of_its_range_is_refused_by_name(name: str, value: Any) -> None:
    row = {"responses_create_params": {"input": "hi"}}
    with pytest.raises(turnloom.ConfigError, match=rf"^{name}={value!r}: "):
        agent_request(row, **{**SAMPLING, name: value})


def test_sampling_may_come_as_numbers_of_numpy() -> None:
    sampling = {"max_tokens": np.int64(64), "temperature": np.float32(0.5), "top_p": np.float64(1)}
    sent = agent_request({"responses_create_params": {"input": "hi"}}, **sampling)
    assert json.dumps(sent["responses_create_params"]) == (
        '{"input": "hi", "max_output_tokens": 64, "temperature": 0.5, "top_p": 1.0}'
    )
    agent_request({"responses_create_params": {}}, max_tokens=1, temperature=0, top_p=1)


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


@pytest.mark.parametrize("row", ["{}", b"{}", None, [], [{}], 7, object()])
def test_what_is_no_row_is_refused(row: Any) -> None:
    for take in (prompt_of, lambda row: agent_request(row, **SAMPLING)):
        with pytest.raises(turnloom.ConfigError, match=f"a row is a mapping.* not {type(row).__name__}: it begins"):
            take(row)


def test_rows_that_no_json_can_be_made_of_are_refused() -> None:
    deep: Any = 1
    for _ in range(3000):
        deep = [deep] if deep == 1 else {"a": deep}
    around: list[Any] = []
    around.append({"around": around})
    for value in (deep, around):
        with pytest.raises(turnloom.ConfigError, match="nested too deeply, or contains itself"):
            agent_request({"responses_create_params": {"input": "hi"}, "answer": value}, **SAMPLING)


def test_a_null_column_is_warned_of_as_well(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_request, "_warned", set())
    row = {"responses_create_params": {"input": "hi"}, "answer": None, "prompt": None, "nemo_gym_row": None}
    assert "answer" not in agent_request(row, **SAMPLING)
    (warning,) = caplog.records
    assert "first in answer:" in warning.message


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


def test_no_warning_is_given_for_rows_in_the_json_column(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        agent_request(gym_row_column(responses_create_params={"input": "hi"}, note=None), **SAMPLING)
    assert not caplog.records
