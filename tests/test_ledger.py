"""What becomes of rollouts in the log, and in what is watched."""

import logging
from typing import Any

import pytest

import turnloom
from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout, without_ids
from turnloom import Rollout
from turnloom._metrics import DRIFT_WINDOW, ROLLOUTS_WITHOUT_IDS, Ledger

# The log


def test_a_failures_reason_is_logged_once_per_kind_and_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for number in range(1, 121):
        ledger.enter(failed(reason=f"reason {number}"))
    ledger.enter(failed("http_error", reason="status 500"))
    ledger.enter(failed("timeout", "code", reason="another agent"))
    ledger.enter(rollout())
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
        ledger.enter(rollout(agent="code"))
        ledger.enter_cancelled("code")
    ledger.enter_cancelled("math")
    ledger.enter(failed())
    assert caplog.messages == ["agent 'math': timeout, 1 of its 2 rollouts so far; the latest: no data for 300 s"]


def drift_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "realigned" in message]


@pytest.mark.parametrize("turns", [REALIGN, FORK])
def test_high_drift_is_warned_of_once(caplog: pytest.LogCaptureFixture, turns: Any) -> None:
    ledger = Ledger()
    for _ in range(DRIFT_WINDOW - 1):
        ledger.enter(rollout(turns))
    assert not drift_warnings(caplog)
    for _ in range(2 * DRIFT_WINDOW):
        ledger.enter(rollout(turns))
    (warning,) = drift_warnings(caplog)
    assert ("fork_threshold_tokens=0" in warning) == (turns is REALIGN)
    assert "chat template" in warning


def test_drift_is_judged_by_windows(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    for turns in (CLEAN, CLEAN, REALIGN, CLEAN) * 2:  # a quarter of each window
        for _ in range(DRIFT_WINDOW // 4):
            ledger.enter(rollout(turns))
    assert not drift_warnings(caplog)
    for _ in range(DRIFT_WINDOW):  # later, all: the first window does not hide it
        ledger.enter(rollout(FORK))
    assert len(drift_warnings(caplog)) == 1


# Answers without ids


def test_answers_without_any_id_end_the_run_once() -> None:
    ledger = Ledger()
    for _ in range(ROLLOUTS_WITHOUT_IDS - 1):
        ledger.enter(without_ids())
    with pytest.raises(turnloom.ConfigError) as caught:
        ledger.enter(without_ids())
    assert ROLLOUTS_WITHOUT_IDS == 64
    assert "return_token_id_information" in str(caught.value)
    assert "1 message, 1 reasoning" in str(caught.value)
    ledger.enter(without_ids())
    assert ledger.metrics.counts()["nemo_gym/outcome/no_tokens_total"] == 65


@pytest.mark.parametrize(
    "one_with_ids", [rollout(), rollout(reward=None), rollout([([1], [2], [])]), rollout(mask_sample=True)]
)
def test_one_id_anywhere_is_enough_to_go_on(one_with_ids: Rollout) -> None:
    ledger = Ledger()
    ledger.enter(one_with_ids)
    for _ in range(2 * ROLLOUTS_WITHOUT_IDS):
        ledger.enter(without_ids())


def test_cut_answers_and_failures_do_not_count_as_answers_without_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    ledger = Ledger()
    cut = without_ids(incomplete_details={"reason": "max_output_tokens"})
    broken = without_ids(error={"code": "x"})
    for _ in range(2 * ROLLOUTS_WITHOUT_IDS):
        for each in (cut, broken, failed("timeout"), failed("malformed")):
            ledger.enter(each)
    for _ in range(ROLLOUTS_WITHOUT_IDS - 1):
        ledger.enter(without_ids())
    with pytest.raises(turnloom.ConfigError):
        ledger.enter(without_ids(incomplete_details={}, usage={"output_tokens": 64}))
