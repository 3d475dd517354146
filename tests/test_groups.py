"""Rows, groups, outcomes and metrics, without a trainer."""

import json
import logging
import queue
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnloom
from turnloom import Rollout, Turn
from turnloom._groups import (
    DRIFT_WINDOW,
    ROLLOUTS_WITHOUT_IDS,
    DenseIds,
    Ledger,
    Metrics,
    OpenRows,
    check_rows,
    only_members,
    train_only,
)
from turnloom.testing import gym_answer

CLEAN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
REALIGN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 9], [6], [-1.0])]
FORK = [([1, 2], [3, 4], [-0.5, -0.25]), ([7], [6], [-1.0])]


def rollout(turns: Any = CLEAN, *, agent: str = "math", threshold: int = 1024, **more: Any) -> Rollout:
    body = json.dumps(gym_answer({}, turns=turns, **more))
    parsed = turnloom.parse_run(body, fork_threshold_tokens=threshold)
    parsed.agent = agent
    return parsed


def without_ids(**more: Any) -> Rollout:
    response = {"output": [{"type": "message", "role": "assistant", "content": "4"}, {"type": "reasoning"}], **more}
    parsed = turnloom.parse_run(json.dumps({"response": response, "reward": 1.0}))
    parsed.agent = "math"
    return parsed


def failed(outcome: Any = "timeout", agent: str = "math", reason: str = "no data for 300 s") -> Rollout:
    return Rollout(outcome, reason=reason, agent=agent)


# Rows


def row(**fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "hi"}, **fields}


def test_all_wrong_rows_are_told_at_once() -> None:
    rows = [row(), {"answer": 4}, *(row(agent_ref={"name": "chess"}) for _ in range(11)), row()]
    with pytest.raises(turnloom.ConfigError) as caught:
        check_rows(rows, ["code", "math"])
    told = str(caught.value)
    assert told.startswith("12 of 14 rows")
    assert "row 1: the row's responses_create_params is missing" in told
    assert "row 2: agent_ref.name is 'chess', and there is no such agent; agents: code, math" in told
    assert "row 10:" in told
    assert "row 11:" not in told
    assert told.endswith("and 2 more")


def test_sound_rows_and_streams_are_let_through() -> None:
    check_rows([row(), row(agent_ref={"name": "math"})], ["code", "math"])
    check_rows(iter([{"answer": 4}]), ["code"])
    with pytest.raises(turnloom.ConfigError, match="no rows"):
        check_rows([], ["code"])


def test_a_groups_row_is_held_until_its_last_rollout_has_begun() -> None:
    rows = OpenRows(2)
    opened = rows.open(5, row(answer=4))
    assert opened["prompt"] == [{"role": "user", "content": "hi"}]
    assert rows.take(5) is opened
    assert rows.open(5, row(answer=4)) is opened
    assert rows.take(5) is opened
    with pytest.raises(KeyError):
        rows.take(5)
    assert rows.open(6, row(prompt="mine"))["prompt"] == "mine"
    assert rows.open(7, row(prompt=None))["prompt"] == [{"role": "user", "content": "hi"}]


# Groups


def numbers_of(groups: list[tuple[int, bool]]) -> list[int]:
    """The numbers given to the groups with rows, scored in this order."""
    ids = DenseIds()
    numbered = [(ids.number(group_id, has_rows=has_rows), has_rows) for group_id, has_rows in groups]
    return [number for number, has_rows in numbered if has_rows]


def test_a_failed_group_leaves_no_hole() -> None:
    assert numbers_of([(0, True), (1, False), (2, True), (3, False), (4, False), (5, True), (6, True)]) == [0, 1, 2, 3]


@given(st.lists(st.booleans(), max_size=12).flatmap(lambda groups: st.permutations(list(enumerate(groups)))))
def test_resuming_skips_no_group_and_repeats_no_more_than_failed(groups: list[tuple[int, bool]]) -> None:
    """Whenever training stops, in whatever order the groups were scored."""
    ids = DenseIds()
    trained: dict[int, int] = {}
    scored: set[int] = set()
    for group_id, has_rows in groups:
        number = ids.number(group_id, has_rows=has_rows)
        scored.add(group_id)
        if has_rows:
            assert number not in trained
            trained[number] = group_id
        resumed_at = next(number for number in range(len(groups) + 1) if number not in trained)
        assert set(range(resumed_at)) <= scored, "a group before the place was never seen"
        repeated = [trained[number] for number in range(resumed_at) if trained[number] >= resumed_at]
        assert len(repeated) <= sum(not has_rows for group_id, has_rows in groups if group_id in scored)


@dataclass
class Group:
    prompts: list[str]
    reward_kwargs: dict[str, list[int]]
    rewards: list[float | None]
    unused: list[int]
    group_id: int = 3


def test_members_are_taken_out_of_every_parallel_list() -> None:
    group = Group(["a", "b", "c"], {"x": [1, 2, 3], "y": [4, 5, 6]}, [1.0, None, 0.0], [])
    assert only_members(group, [0, 2]) == Group(["a", "c"], {"x": [1, 3], "y": [4, 6]}, [1.0, 0.0], [])
    assert group.rewards == [1.0, None, 0.0]


def first_turn(turn: Turn) -> bool:
    return turn.item_index == 0


def second_turn(turn: Turn) -> bool:
    return turn.item_index == 1


def no_turn(turn: Turn) -> bool:
    return False


def test_only_the_wanted_turns_are_trained() -> None:
    held = rollout(CLEAN)
    (trained,) = train_only(held.rows, held.turns, second_turn)
    assert trained.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert trained.completion_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert trained.old_log_probs.tolist() == [0, 0, 0, 0, 0, -1.0]
    assert held.rows[0].completion_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert (trained.completion_mask.dtype, trained.old_log_probs.dtype) == (np.int64, np.float32)


def test_rows_with_nothing_left_to_train_are_dropped() -> None:
    held = rollout(FORK)
    (trained,) = train_only(held.rows, held.turns, second_turn)
    assert trained.input_ids.tolist() == [7, 6]
    (trained,) = train_only(held.rows, held.turns, first_turn)
    assert trained.input_ids.tolist() == [1, 2, 3, 4]
    assert train_only(held.rows, held.turns, no_turn) == ()


def test_generated_ids_are_those_of_all_turns_in_order() -> None:
    for turns in (CLEAN, FORK, REALIGN):
        assert rollout(turns).generated_ids() == [3, 4, 6]
    assert failed().generated_ids() == []


# Metrics


def test_a_full_queue_loses_no_number() -> None:
    metrics, taken = Metrics(), queue.Queue[Any](maxsize=1)
    metrics.count("a_total", 2)
    metrics.mean("b", 0.5)
    metrics.maximum("c_max", 3.0)
    assert metrics.push(taken)
    metrics.count("a_total", 3)
    metrics.mean("b", 1.5)
    metrics.maximum("c_max", 1.0)
    assert not metrics.push(taken)
    metrics.count("a_total", 4)
    metrics.maximum("c_max", 2.0)
    assert taken.get_nowait() == {"a_total": 2.0, "b": (0.5, 1.0), "c_max": 3.0}
    assert metrics.push(taken)
    assert taken.get_nowait() == {"a_total": 7.0, "b": (1.5, 1.0), "c_max": 2.0}
    assert metrics.push(taken)
    assert taken.empty(), "nothing new is nothing sent"
    assert metrics.counts() == {"a_total": 9}
    assert metrics.means() == {"b": 1.0}


def test_every_rollout_is_counted_by_outcome_and_agent() -> None:
    ledger = Ledger()
    for seconds, each in enumerate(
        [
            rollout(CLEAN, reward=1.0),
            rollout(REALIGN, reward=0.5),
            rollout(FORK, agent="code", reward=-1.0, threshold=0),
            rollout(mask_sample=True),
            failed("timeout", "code"),
            failed("timeout", "code"),
            failed("http_error"),
        ]
    ):
        ledger.enter(each, latency_s=float(seconds))
    ledger.enter_cancelled()
    counts, means = ledger.metrics.counts(), ledger.metrics.means()
    assert counts["nemo_gym/rollouts_total"] == 8
    assert {name.split("/")[-1]: n for name, n in counts.items() if name.startswith("nemo_gym/outcome/")} == {
        "ok_total": 3,
        "masked_total": 1,
        "timeout_total": 2,
        "http_error_total": 1,
        "cancelled_total": 1,
    }
    assert counts["nemo_gym/agent/code/outcome/timeout_total"] == 2
    assert counts["nemo_gym/discarded_tokens_total"] == 1
    assert counts["nemo_gym/unrelated_prompts_total"] == 1
    assert means["nemo_gym/success_frac"] == 3 / 7
    assert means["nemo_gym/agent/math/success_frac"] == 2 / 4
    assert means["nemo_gym/latency_s"] == 3.0
    assert means["nemo_gym/turns"] == 2.0
    assert means["nemo_gym/reward"] == pytest.approx(0.5 / 3)
    assert means["nemo_gym/rows_per_rollout"] == pytest.approx(4 / 3)
    assert means["nemo_gym/trained_tokens"] == pytest.approx((3 + 2 + 3) / 3)
    assert means["nemo_gym/drift/clean_frac"] == 2 / 4
    assert means["nemo_gym/drift/realign_frac"] == means["nemo_gym/drift/fork_frac"] == 1 / 4
    new = ledger.metrics.new()
    assert new["nemo_gym/latency_s_max"] == 6.0
    assert new["nemo_gym/agent/math/drift/tokens_max"] == 1.0
    assert new["nemo_gym/success_frac"] == (3.0, 7.0)


def test_what_is_wrong_in_an_answer_is_counted() -> None:
    ledger = Ledger()
    turns = [([1], [2, 3], [None, -0.5]), ([1], [9], [-1, -1]), ([1, 2, 3], [4], [0.5])]
    ledger.enter(rollout(turns), latency_s=1.0)
    answer = gym_answer({}, turns=[([1], [2], [-0.5])])
    answer["response"] |= {"status": "incomplete"}
    answer["response"]["output"] += [{"type": "mcp_call"}, {"type": "function_call", "name": "f"}]
    ledger.enter(turnloom.parse_run(json.dumps(answer)), latency_s=1.0)
    counts, means = ledger.metrics.counts(), ledger.metrics.means()
    assert counts["nemo_gym/unusable_tokens_total"] == counts["nemo_gym/positive_logprobs_total"] == 1
    assert counts["nemo_gym/defects_total"] == counts["nemo_gym/defects/length_mismatch_total"] == 1
    assert counts["nemo_gym/skipped_items_total"] == 1
    assert means["nemo_gym/truncated_frac"] == means["nemo_gym/tool_calls"] == 0.5
    assert "nemo_gym/agent/unknown/turns" in means


def test_fields_of_the_environment_are_means_whatever_they_are_called() -> None:
    ledger = Ledger()
    for run_time in (1.0, 2.0):
        fields = {"total_run_time": run_time, "max_depth": 3, "done": True, "odd": float("nan"), "text": "x"}
        ledger.enter(rollout(reward_components={"format": 0.5}, **fields), latency_s=1.0)
    sent = {name: value for name, value in ledger.metrics.new().items() if name.startswith("nemo_gym/env/")}
    assert sent == {
        "nemo_gym/env/math/total_run_time": (3.0, 2.0),
        "nemo_gym/env/math/max_depth": (6.0, 2.0),
        "nemo_gym/env/math/done": (2.0, 2.0),
        "nemo_gym/env/math/reward_components/format": (1.0, 2.0),
    }


def test_numbers_are_of_one_shape_and_finite() -> None:
    ledger = Ledger()
    for each in (rollout(), rollout(FORK), failed(), without_ids(), rollout(x=10**400)):
        ledger.enter(each, latency_s=0.5)
    for name, value in ledger.metrics.new().items():
        words = name.split("/")[-1].split("_")
        if isinstance(value, tuple):
            assert not {"total", "max", "min"} & set(words), name
            assert np.isfinite(value).all(), name
        else:
            assert {"total", "max"} & set(words), name
            assert isinstance(value, float), name


# The log


def test_a_failures_reason_is_logged_once_per_kind_and_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for number in range(1, 121):
        ledger.enter(failed(reason=f"reason {number}"), latency_s=1.0)
    ledger.enter(failed("http_error", reason="status 500"), latency_s=1.0)
    ledger.enter(failed("timeout", "code", reason="another agent"), latency_s=1.0)
    ledger.enter(rollout(), latency_s=1.0)
    told = [(record.args[2], record.args[-1]) for record in caplog.records if isinstance(record.args, tuple)]
    assert told == [
        (1, "reason 1"),
        (10, "reason 10"),
        (100, "reason 100"),
        (1, "status 500"),
        (1, "another agent"),
    ]
    assert "agent 'math': timeout, 10 of 10 rollouts so far; the latest: reason 10" in caplog.messages


def drift_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "realigned" in message]


@pytest.mark.parametrize("turns", [REALIGN, FORK])
def test_high_drift_is_warned_of_once(caplog: pytest.LogCaptureFixture, turns: Any) -> None:
    ledger = Ledger()
    for _ in range(DRIFT_WINDOW - 1):
        ledger.enter(rollout(turns), latency_s=1.0)
    assert not drift_warnings(caplog)
    for _ in range(2 * DRIFT_WINDOW):
        ledger.enter(rollout(turns), latency_s=1.0)
    (warning,) = drift_warnings(caplog)
    assert ("fork_threshold_tokens=0" in warning) == (turns is REALIGN)
    assert "chat template" in warning


def test_drift_is_judged_by_windows(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for turns in (CLEAN, CLEAN, REALIGN, CLEAN) * 2:  # a quarter of each window
        for _ in range(DRIFT_WINDOW // 4):
            ledger.enter(rollout(turns), latency_s=1.0)
    assert not drift_warnings(caplog)
    for _ in range(DRIFT_WINDOW):  # later, all: the first window does not hide it
        ledger.enter(rollout(FORK), latency_s=1.0)
    assert len(drift_warnings(caplog)) == 1


# Answers without ids


def test_answers_without_any_id_end_the_run_once() -> None:
    ledger = Ledger()
    for _ in range(ROLLOUTS_WITHOUT_IDS - 1):
        ledger.enter(without_ids(), latency_s=1.0)
    with pytest.raises(turnloom.ConfigError) as caught:
        ledger.enter(without_ids(), latency_s=1.0)
    assert ROLLOUTS_WITHOUT_IDS == 64
    assert "return_token_id_information" in str(caught.value)
    assert "1 message, 1 reasoning" in str(caught.value)
    ledger.enter(without_ids(), latency_s=1.0)
    assert ledger.metrics.counts()["nemo_gym/outcome/no_tokens_total"] == 65


@pytest.mark.parametrize(
    "one_with_ids", [rollout(), rollout(reward=None), rollout([([1], [2], [])]), rollout(mask_sample=True)]
)
def test_one_id_anywhere_is_enough_to_go_on(one_with_ids: Rollout) -> None:
    ledger = Ledger()
    ledger.enter(one_with_ids, latency_s=1.0)
    for _ in range(2 * ROLLOUTS_WITHOUT_IDS):
        ledger.enter(without_ids(), latency_s=1.0)


def test_cut_answers_and_failures_do_not_count_as_answers_without_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    ledger = Ledger()
    cut = without_ids(incomplete_details={"reason": "max_output_tokens"})
    broken = without_ids(error={"code": "x"})
    for _ in range(2 * ROLLOUTS_WITHOUT_IDS):
        for each in (cut, broken, failed("timeout"), failed("malformed")):
            ledger.enter(each, latency_s=1.0)
    for _ in range(ROLLOUTS_WITHOUT_IDS - 1):
        ledger.enter(without_ids(), latency_s=1.0)
    with pytest.raises(turnloom.ConfigError):
        ledger.enter(without_ids(status="incomplete"), latency_s=1.0)
