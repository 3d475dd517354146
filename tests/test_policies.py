"""How a 200 is judged: each outcome by an answer that ends so."""

import inspect
import json
import math
import sys
from typing import Any

import pytest

import turnloom
from rollouts import Raw, answer, turn

TURN = turn([1, 2], [3, 4])


def parse(*items: Any, response: dict[str, Any] | None = None, **fields: Any) -> turnloom.Rollout:
    return turnloom.parse_run(answer(*items, response=response, **fields))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"_ng_failure_class": "ToolError"}, "ToolError"),
        ({"_ng_failure_terminal": True}, "_ng_failure_terminal"),
        ({"_ng_failure_terminal": {"why": "x"}, "error": "disk full"}, "disk full"),
        ({"response": {"output": None}}, "not a list"),
        ({"response": {"output": {}}}, "not a list"),
        ({"response": {"output": [TURN], "error": {"code": "server_error"}}}, "server_error"),
        ({"response": {"output": [TURN], "error": False}}, "error"),
        ({"response": {"output": [TURN], "status": "failed"}}, "failed"),
        ({"response": {"output": [TURN], "status": "cancelled"}}, "cancelled"),
    ],
)
def test_a_200_that_carries_a_failure(fields: dict[str, Any], told: str) -> None:
    rollout = parse(TURN, **fields)
    assert rollout.outcome == "agent_failure"
    assert told in str(rollout.reason)
    assert (rollout.reward, rollout.rows, rollout.unscored_rows) == (None, (), ())


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"response": None}, "`response` is null"),
        ({"response": [TURN]}, "not an object"),
        ({"response": "x", "error": "no such model"}, "no such model"),
        ({"response": {}}, "no response.output"),
        *((document, "no `response`") for document in ({}, {"reward": 1.0})),
    ],
)
def test_a_200_without_a_response(document: Any, told: str) -> None:
    rollout = turnloom.parse_run(json.dumps(document))
    assert rollout.outcome == "agent_failure"
    assert told in str(rollout.reason)
    assert rollout.document == document
    assert (rollout.reward, rollout.output, rollout.turns, rollout.defects) == (None, [], (), ())
    assert rollout.messages() == []
    assert not rollout.truncated


@pytest.mark.parametrize(
    "fields",
    [{"_ng_failure_class": falsy} for falsy in (None, "", False, 0, [], {})]
    + [
        {"_ng_no_persist": True},
        {"error": "of the environment"},
        {"response": {"output": [TURN], "status": None, "error": None}},
        {"response": {"output": [TURN], "status": "queued"}},
    ],
)
def test_what_is_no_failure(fields: dict[str, Any]) -> None:
    assert parse(TURN, **fields).outcome == "ok"


@pytest.mark.parametrize("flag", [True, 1, -1, 0.5, "true", Raw("NaN"), Raw("1e999")])
def test_mask_sample(flag: Any) -> None:
    for fields in ({"mask_sample": flag}, {"instance_config": {"mask_sample": flag}, "mask_sample": False}):
        rollout = parse(TURN, **fields)
        assert rollout.outcome == "masked"
        assert rollout.reward is None
        assert rollout.rows == ()
        assert [row.input_ids.tolist() for row in rollout.unscored_rows] == [[1, 2, 3, 4]]
        honored = turnloom.parse_run(answer(TURN, **fields), honor_mask_sample=False)
        assert (honored.outcome, honored.reward) == ("ok", 1.0)


@pytest.mark.parametrize("flag", [False, 0, 0.0, Raw("-0.0"), None, "false", "True", "1", "", [], [True], {"a": 1}])
def test_no_mask_sample(flag: Any) -> None:
    assert parse(TURN, mask_sample=flag, instance_config={"mask_sample": flag}).outcome == "ok"
    assert parse(TURN, instance_config=flag).outcome == "ok"


@pytest.mark.parametrize(
    ("reward", "value"), [(1, 1.0), (0, 0.0), (-3, -3.0), (2.5, 2.5), (True, 1.0), (False, 0.0), (Raw("1e-400"), 0.0)]
)
def test_a_reward_is_any_finite_number(reward: Any, value: float) -> None:
    rollout = parse(TURN, reward=reward)
    assert (rollout.outcome, rollout.reward, rollout.reason) == ("ok", value, None)
    assert type(rollout.reward) is float


@pytest.mark.parametrize(
    "reward",
    [None, "1.0", [], [1.0], {}, Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), 10**400, -(10**400)],
)
def test_a_reward_that_is_none(reward: Any) -> None:
    rollout = parse(TURN, reward=reward)
    assert (rollout.outcome, rollout.reward, rollout.rows) == ("no_reward", None, ())
    assert len(rollout.unscored_rows) == 1


def test_a_missing_reward() -> None:
    body = answer(TURN).replace(b'"reward"', b'"rewards"')
    assert turnloom.parse_run(body).outcome == "no_reward"


@pytest.mark.parametrize(
    ("items", "response", "told"),
    [
        ([], {}, "return_token_id_information"),
        ([{"type": "reasoning"}, {"type": "reasoning"}, {}], {"usage": {"a": 1}}, "2 reasoning, 1 message"),
        ([{"type": "message"}], {"incomplete_details": {"reason": "max_output_tokens"}}, "context was too long"),
        ([], {"incomplete_details": {}, "usage": {"output_tokens": 0}}, "context was too long"),
        ([], {"incomplete_details": {}, "usage": {"output_tokens": 64}}, "return_token_id_information"),
        ([turn([1], [-1])], {}, "defect|sound"),
        ([turn([1], [2], [None])], {}, "usable logprob"),
        ([turn([1], [2]), turn([1], [3], [None])], {}, "discarded"),
    ],
)
def test_nothing_to_train(items: list[Any], response: dict[str, Any], told: str) -> None:
    rollout = parse(*items, response=response)
    assert (rollout.outcome, rollout.reward, rollout.rows, rollout.unscored_rows) == ("no_tokens", None, (), ())
    with pytest.raises(turnloom.UnscorableRollout, match=told):
        rollout.raise_for_outcome()


def test_a_200_is_judged_in_order() -> None:
    failure = {"_ng_failure_class": "x"}
    masked = {"mask_sample": True}
    no_reward = {"reward": None}
    assert parse(**failure, **masked, **no_reward).outcome == "agent_failure"
    assert parse(**masked, **no_reward).outcome == "masked"
    assert parse(**no_reward).outcome == "no_tokens"
    assert parse(TURN, **no_reward).outcome == "no_reward"
    assert parse(TURN).outcome == "ok"


def test_an_exception_for_each_outcome_that_is_not_ok() -> None:
    rollout = parse(TURN)
    assert rollout.raise_for_outcome() is rollout
    for bad in (parse(TURN, response={"error": 1}), parse(TURN, mask_sample=1), parse(), parse(TURN, reward=None)):
        with pytest.raises(turnloom.UnscorableRollout) as caught:
            bad.raise_for_outcome()
        assert caught.value.outcome == bad.outcome
        assert str(caught.value) == bad.reason


@pytest.mark.parametrize(
    ("response", "truncated"),
    [
        ({}, False),
        ({"status": "completed", "incomplete_details": None}, False),
        ({"status": "incomplete"}, True),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, True),
        ({"incomplete_details": {}}, True),
    ],
)
def test_truncated(response: dict[str, Any], truncated: bool) -> None:
    rollout = parse(TURN, response=response)
    assert rollout.truncated is truncated
    assert rollout.outcome == "ok"


def test_metrics_are_the_numbers_of_the_environment() -> None:
    rollout = parse(
        TURN,
        accuracy=0.5,
        solved=True,
        steps=7,
        huge=10**400,
        text="7",
        nothing=None,
        nested={"a": 1},
        _ng_task_index=3,
        mask_sample=False,
        reward_components={"format": 1, "answer": 0.25, "why": "x", "ok": False},
    )
    assert rollout.metrics == {
        "accuracy": 0.5,
        "huge": math.inf,
        "reward_components/answer": 0.25,
        "reward_components/format": 1.0,
        "reward_components/ok": 0.0,
        "solved": 1.0,
        "steps": 7.0,
    }
    assert {type(value) for value in rollout.metrics.values()} == {float}
    assert parse(TURN, reward_components=[1, 2]).metrics == {}


def test_text_never_costs_a_rollout() -> None:
    odd = [
        {"type": "mcp_call", "x": [1]},
        {"type": 7},
        {"type": None, "role": None, "content": None},
        {"type": "function_call", "arguments": '{"a": 1,', "call_id": None},
        {"type": "function_call", "arguments": {"a": 1}, "name": ["x"]},
        {"type": "function_call_output", "output": [{"a": 1}, None], "call_id": 7},
        {"type": "reasoning", "summary": None, "content": "x"},
        {"type": "message", "content": [None, 7, {"text": None}, {"type": "refusal", "refusal": "no"}]},
        *(None, 7, "x", [], [[]], True),
    ]
    rollout = parse(TURN, *odd, turn([1, 2, 3, 4], [5]), *odd)
    assert rollout.outcome == "ok"
    assert rollout.drift.clean == 1
    assert rollout.turns[1].item_index == len(odd) + 1
    assert len(rollout.output) == 2 * len(odd) + 2
    assert isinstance(rollout.messages(), list)


@pytest.mark.parametrize("document", [None, 7, [], "Internal"])
def test_an_answer_that_is_no_object_says_what_it_is(document: Any) -> None:
    rollout = turnloom.parse_run(json.dumps(document))
    assert (rollout.outcome, rollout.reason) == (
        "agent_failure",
        f"the answer is {json.dumps(document)}, not an object",
    )


def test_components_with_an_underscore_are_no_metrics() -> None:
    body = answer(turn([1], [2]), reward_components={"_hidden": 1, "right": True, "words": "no"}, steps=3, name="x")
    assert turnloom.parse_run(body).metrics == {"reward_components/right": 1.0, "steps": 3.0}


def test_a_large_output_is_not_decoded_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    item = {"type": "message", "role": "assistant", "content": "x" * 2_000_000}
    body = json.dumps({"reward": 1, "response": {"output": [item]}}).encode()
    decoded: list[int] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: decoded.append(len(text)) or loads(text))
    assert "bytes of them" in str(turnloom.parse_run(body).reason)
    assert sum(decoded) < 1000


@pytest.mark.parametrize("chunk", [3, "text", [123, 125], {}, None])
def test_what_is_not_bytes_is_refused(chunk: Any) -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        turnloom.RunParser().feed(chunk)


def test_a_deep_document_decodes_from_a_deep_stack() -> None:
    body = b'{"a":' + b"[" * 511 + b"]" * 511 + b"}"

    def deep(frames: int) -> Any:
        return deep(frames - 1) if frames else turnloom.parse_run(body).document

    document = deep(sys.getrecursionlimit() - 150 - len(inspect.stack()))["a"]
    depth = 1
    while document:
        (document,), depth = document, depth + 1
    assert depth == 511
