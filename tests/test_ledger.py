"""What becomes of rollouts in metrics, in the log, and in what is watched."""

import json
import logging
import queue
from typing import Any

import numpy as np
import pytest

import turnloom
from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout, without_ids
from turnloom import Rollout
from turnloom._metrics import DRIFT_WINDOW, ROLLOUTS_WITHOUT_IDS, Ledger, Metrics
from turnloom.testing import gym_answer

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
    ledger.enter_cancelled("code")
    ledger.enter_cancelled(None)
    counts, means = ledger.metrics.counts(), ledger.metrics.means()
    assert counts["nemo_gym/rollouts_total"] == 9
    assert {name.split("/")[-1]: n for name, n in counts.items() if name.startswith("nemo_gym/outcome/")} == {
        "ok_total": 3,
        "masked_total": 1,
        "timeout_total": 2,
        "http_error_total": 1,
        "cancelled_total": 2,
    }
    assert counts["nemo_gym/agent/code/outcome/timeout_total"] == 2
    assert counts["nemo_gym/agent/code/rollouts_total"] == 4
    assert counts["nemo_gym/agent/code/outcome/cancelled_total"] == 1
    assert counts["nemo_gym/agent/unknown/outcome/cancelled_total"] == 1
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
    assert "agent 'math': timeout, 10 of its 10 rollouts so far; the latest: reason 10" in caplog.messages


def test_an_agents_failures_are_set_against_its_own_rollouts(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for _ in range(10):
        ledger.enter(rollout(agent="code"), latency_s=1.0)
        ledger.enter_cancelled("code")
    ledger.enter_cancelled("math")
    ledger.enter(failed(), latency_s=1.0)
    assert caplog.messages == ["agent 'math': timeout, 1 of its 2 rollouts so far; the latest: no data for 300 s"]


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
