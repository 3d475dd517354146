"""What a trainer's queue gets: every number once, each in its one shape."""

import json
import queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import turnloom
from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout, timed, without_ids
from turnloom._metrics import MAX_FIELDS, METRICS, Ledger
from turnloom.testing import gym_answer


def means(ledger: Ledger) -> dict[str, float]:
    return {name: value[0] / value[1] for name, value in ledger.metrics.new().items() if isinstance(value, tuple)}


def test_a_full_queue_loses_no_number() -> None:
    ledger, taken = Ledger(), queue.Queue[Any](maxsize=1)

    def enter(*rewards: float, total_s: float) -> None:
        for reward in rewards:
            ledger.enter(timed(rollout(reward=reward), total_s))

    enter(0.0, 1.0, total_s=3.0)
    assert ledger.metrics.push(taken)
    enter(1.0, 1.0, 1.0, total_s=1.0)
    assert not ledger.metrics.push(taken)
    enter(0.5, total_s=2.0)
    first = taken.get_nowait()
    assert ledger.metrics.push(taken)
    second = taken.get_nowait()
    found = [
        {name: put[f"nemo_gym/{name}"] for name in ("rollouts_total", "reward", "latency_s_max", "reward_min")}
        for put in (first, second)
    ]
    assert found == [
        {"rollouts_total": 2.0, "reward": (1.0, 2.0), "latency_s_max": 3.0, "reward_min": 0.0},
        {"rollouts_total": 4.0, "reward": (3.5, 4.0), "latency_s_max": 2.0, "reward_min": 0.5},
    ]
    assert ledger.metrics.push(taken)
    assert taken.empty(), "nothing new is nothing sent"
    assert ledger.metrics.counts()["nemo_gym/rollouts_total"] == 6


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
        ledger.enter(timed(each, 1.0 + seconds))
    ledger.enter_cancelled("code")
    ledger.enter_cancelled(None)
    counts, mean = ledger.metrics.counts(), means(ledger)
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
    assert counts["nemo_gym/trained_tokens_total"] == 3 + 2 + 3
    assert mean["nemo_gym/success_frac"] == 3 / 7
    assert mean["nemo_gym/agent/math/success_frac"] == 2 / 4
    assert mean["nemo_gym/latency_s"] == 4.0
    assert mean["nemo_gym/turns"] == 2.0
    assert mean["nemo_gym/reward"] == pytest.approx(0.5 / 3)
    assert mean["nemo_gym/rows_per_rollout"] == pytest.approx(4 / 3)
    assert mean["nemo_gym/trained_tokens"] == pytest.approx((3 + 2 + 3) / 3)
    assert mean["nemo_gym/drift/clean_frac"] == 2 / 4
    assert mean["nemo_gym/drift/realign_frac"] == mean["nemo_gym/drift/fork_frac"] == 1 / 4
    new = ledger.metrics.new()
    assert new["nemo_gym/latency_s_max"] == 7.0
    assert new["nemo_gym/agent/math/drift/tokens_max"] == 1.0
    assert new["nemo_gym/success_frac"] == (3.0, 7.0)
    assert (new["nemo_gym/reward_min"], new["nemo_gym/reward_max"]) == (-1.0, 1.0)
    assert (new["nemo_gym/agent/math/reward_min"], new["nemo_gym/agent/math/reward_max"]) == (0.5, 1.0)
    assert new["nemo_gym/reward_std"] == pytest.approx(np.std([1.0, 0.5, -1.0]))
    assert new["nemo_gym/agent/math/reward_std"] == pytest.approx(0.25)


def test_what_is_in_flight_is_what_was_sent_and_has_not_ended() -> None:
    ledger = Ledger()
    for agent in ("math", "math", "code", "math"):
        ledger.enter_sent(agent)
    ledger.enter(rollout(agent="code"))
    ledger.enter_cancelled("math")
    agents = {"math": SimpleNamespace(in_flight=1, queued=1, oldest_s=7.5)}
    new = ledger.metrics.new(agents)
    names = ("sent_total", "in_flight", "queued", "oldest_s_max")
    assert [new[f"nemo_gym/{name}"] for name in names] == [4.0, 2.0, 1.0, 7.5]
    assert [new[f"nemo_gym/agent/math/{name}"] for name in names] == [3.0, 2.0, 1.0, 7.5]
    assert [new[f"nemo_gym/agent/code/{name}"] for name in names] == [1.0, 0.0, 0.0, 0.0]


def test_a_retry_is_a_rollout_more() -> None:
    ledger = Ledger()
    ledger.enter_sent("math")
    ledger.enter(failed())
    ledger.enter_retry("math")
    assert ledger.metrics.new()["nemo_gym/in_flight"] == 1.0
    ledger.enter(rollout())
    new = ledger.metrics.new()
    names = ("sent_total", "retries_total", "rollouts_total", "in_flight")
    assert [new[f"nemo_gym/{name}"] for name in names] == [2.0, 1.0, 2.0, 0.0]


def test_an_agent_that_is_silent_is_told_of_when_another_is_not() -> None:
    ledger, taken = Ledger(), queue.Queue[Any]()
    ledger.enter_sent("hung")
    ledger.metrics.push(taken)
    ledger.enter(rollout())
    ledger.metrics.push(taken, {"hung": SimpleNamespace(in_flight=1, queued=0, oldest_s=900.0)})
    _, second = taken.get_nowait(), taken.get_nowait()
    assert second["nemo_gym/agent/hung/oldest_s_max"] == second["nemo_gym/oldest_s_max"] == 900.0
    assert second["nemo_gym/agent/hung/in_flight"] == 1.0
    assert "nemo_gym/agent/hung/sent_total" not in second


def test_the_time_of_an_answer_is_told_by_stage() -> None:
    ledger = Ledger()
    stages = {"queue_s": 1.0, "first_byte_s": 2.0, "download_s": 3.0, "parse_s": 0.5}
    ledger.enter(timed(rollout(), 6.0, body_bytes=100, **stages))
    ledger.enter(timed(failed("unreachable"), 2.0, queue_s=2.0))  # it has no other stage
    ledger.enter(rollout())  # no client made it
    mean = means(ledger)
    assert {name: mean[f"nemo_gym/{name}"] for name in stages} == {**stages, "queue_s": 1.5}
    assert mean["nemo_gym/latency_s"] == 4.0
    assert ledger.metrics.counts()["nemo_gym/body_bytes_total"] == 100


def test_forks_whose_prompt_begins_as_what_is_held_are_not_unrelated() -> None:
    ledger = Ledger()
    related = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 9], [6], [-1.0])]
    for turns in (FORK, related, related):
        ledger.enter(rollout(turns, threshold=0))
    assert ledger.snapshot().transitions["fork"] == 3
    assert ledger.snapshot().unrelated_prompts == 1


def test_what_is_wrong_in_an_answer_is_counted() -> None:
    ledger = Ledger()
    ledger.enter(rollout([([1], [2, 3], [None, -0.5]), ([1], [9], [-1, -1]), ([1, 2, 3], [4], [0.5])]))
    answer = gym_answer({}, turns=[([1], [2], [-0.5])])
    answer["response"] |= {"status": "incomplete"}
    answer["response"]["output"] += [{"type": "mcp_call"}, {"type": "function_call", "name": "f"}]
    ledger.enter(turnloom.parse_run(json.dumps(answer)))
    counts, mean = ledger.metrics.counts(), means(ledger)
    assert counts["nemo_gym/unusable_tokens_total"] == counts["nemo_gym/positive_logprobs_total"] == 1
    assert counts["nemo_gym/defects_total"] == counts["nemo_gym/defects/length_mismatch_total"] == 1
    assert counts["nemo_gym/skipped_items_total"] == 1
    assert mean["nemo_gym/truncated_frac"] == mean["nemo_gym/tool_calls"] == 0.5
    assert "nemo_gym/agent/unknown/turns" in mean


def test_fields_of_the_environment_are_means_whatever_they_are_called() -> None:
    ledger = Ledger()
    for run_time in (1.0, 2.0):
        fields = {"total_run_time": run_time, "max_depth": 3, "done": True, "odd": float("nan"), "text": "x"}
        ledger.enter(rollout(reward_components={"format": 0.5}, **fields))
    new = ledger.metrics.new()
    assert {name: value for name, value in new.items() if name.startswith("nemo_gym/env/")} == {
        "nemo_gym/env/math/total_run_time": (3.0, 2.0),
        "nemo_gym/env/math/max_depth": (6.0, 2.0),
        "nemo_gym/env/math/done": (2.0, 2.0),
        "nemo_gym/env/math/reward_components/format": (1.0, 2.0),
    }
    assert new["nemo_gym/agent/math/env_left_out_total"] == 2.0, "NaN is no value"


def test_numbers_as_large_as_they_come_make_no_warning() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.enter(rollout(reward=1.7e308, score=-1.7e308))
    ledger.metrics.new()
    found = ledger.snapshot().agents["math"]
    assert found.reward is not None
    assert (found.reward.p99, found.env["score"].p50) == (1.7e308, -1.7e308)


def test_fields_without_end_are_bounded_and_counted() -> None:
    ledger = Ledger()
    for number in range(MAX_FIELDS // 2 + 3):
        ledger.enter(rollout(**{f"a{number}": 1, f"b{number}": 1}))
    ledger.enter(rollout(a0=3))
    new = ledger.metrics.new()
    assert sum(name.startswith("nemo_gym/env/") for name in new) == MAX_FIELDS
    assert new["nemo_gym/env_left_out_total"] == 6.0
    assert new["nemo_gym/env/math/a0"] == (4.0, 2.0)


def test_a_group_is_mixed_when_its_rewards_differ() -> None:
    ledger = Ledger()
    for rewards in ([1.0, 0.0], [1.0, 1.0], [0.5], []):
        ledger.enter_group("math", rewards)
    ledger.enter(rollout())
    new = ledger.metrics.new()
    assert new["nemo_gym/groups_total"] == 4.0
    assert new["nemo_gym/mixed_groups_frac"] == (1.0, 4.0)


def of_every_kind() -> Ledger:
    ledger = Ledger()
    ledger.enter_sent("math")
    ledger.enter_retry("math")
    ledger.enter_stale_group("math")
    ledger.enter_group("math", [0.0, 1.0])
    for outcome in turnloom.OUTCOMES:
        ledger.enter(failed(outcome))
    for each in (rollout(), rollout(FORK), rollout(REALIGN), without_ids(), rollout([([1], [2], [])]), rollout(x=1)):
        ledger.enter(timed(each, 0.5, body_bytes=9))
    ledger.enter(rollout([([1], [2, 3], [None, 0.5])], x=10**400))
    answer = gym_answer({}, turns=CLEAN)
    answer["response"]["output"] += [{"type": "mcp_call"}]
    ledger.enter(turnloom.parse_run(json.dumps(answer)))
    ledger.enter(turnloom.parse_run(json.dumps(gym_answer({}, turns=FORK)), fork_threshold_tokens=0))
    return ledger


def in_the_table(name: str) -> str:
    """A metric's name as `METRICS` has it."""
    parts = name.split("/")[1:]
    if parts[0] == "env":
        return "env/<field>"
    if parts[0] == "agent":
        parts = parts[2:]
    of_several = {"outcome": "<outcome>_total", "defects": "<code>_total", "drift": "<kind>_frac"}
    if parts[-1] not in ("tokens", "tokens_max") and parts[0] in of_several:
        parts[1] = of_several[parts[0]]
    return "/".join(parts)


def test_every_metric_is_in_the_table_and_the_other_way_round() -> None:
    new = of_every_kind().metrics.new()
    assert {in_the_table(name) for name in new} == METRICS.keys()


def test_every_metric_has_the_shape_that_the_table_says() -> None:
    """TRL chooses what it makes of a float by the words of its name."""
    for name, value in of_every_kind().metrics.new().items():
        shape, _ = METRICS[in_the_table(name)]
        words = set(name.split("/")[-1].split("_"))
        assert isinstance(value, tuple if shape == "mean" else float), name
        assert np.isfinite(value).all(), name
        if shape != "mean":
            assert {"count": "total", "max": "max", "min": "min"}.get(shape) == next(
                iter(words & {"total", "max", "min"}), None
            ), name
