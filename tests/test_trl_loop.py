"""The loop for TRL, against a fake agent, with TRL's own scoring; no trainer yet."""

import pickle
import queue
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnloom
from trl_loops import (
    ONE_TURN,
    TWO_ROWS,
    TWO_TURNS,
    Run,
    Turns,
    answering,
    broken_reward,
    dataset_of,
    later_turn,
    make_loop,
    pushed,
    running,
    scored,
)
from turnloom.testing import AgentCall, FakeAgent, gym_answer

# From a row to samples


async def test_rows_become_samples_with_the_agents_reward() -> None:
    async with running(answering(scored(1.0, TWO_TURNS), scored(0.0), scored(0.0)), dataset_of({"a": 1})) as run:
        samples = await run.samples(3)
    best = max(samples, key=lambda sample: sample.advantage)
    assert best.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert best.completion_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert best.old_log_probs.tolist() == [0, 0, -0.5, -0.25, 0, -1.0]
    assert [array.dtype for array in (best.input_ids, best.completion_mask, best.old_log_probs)] == [
        np.int64,
        np.int64,
        np.float32,
    ]
    assert best.input_ids.flags.writeable
    assert best.prompt == [{"role": "user", "content": "hi"}]
    assert [message["role"] for message in best.completion] == ["assistant", "assistant"]
    assert best.advantage == pytest.approx(2**0.5)
    assert best.metrics["reward"] == best.metrics["rewards/nemo_gym"] == 1.0
    assert {sample.group_id for sample in samples} == {0}
    pickle.loads(pickle.dumps(samples))


async def test_the_sampling_and_the_row_reach_the_agent_and_the_threshold_the_core() -> None:
    realign: Turns = [*ONE_TURN, ([1, 2, 3, 9], [6], [-1.0])]
    own = {"verifier": {"x": None}, "agent_ref": {"name": "math"}}
    settings = {"temperature": 0.7, "top_p": 0.9, "fork_threshold_tokens": 0}
    async with running(answering(scored(1.0, realign)), dataset_of(own), **settings) as run:
        samples = await run.samples(6)
        sent = await run.agent.calls[0].row()
    assert {name: value for name, value in sent.items() if not name.startswith("_ng_")} == {
        **own,
        "responses_create_params": {"input": "hi", "max_output_tokens": 64, "temperature": 0.7, "top_p": 0.9},
    }
    assert [sample.input_ids.tolist() for sample in samples[:2]] == [[1, 2, 3, 4], [1, 2, 3, 9, 6]]


async def test_rows_go_to_the_agents_they_name() -> None:
    async with (
        FakeAgent(answering(scored(1.0, ONE_TURN))) as math,
        FakeAgent(answering(scored(0.5, TWO_TURNS))) as code,
    ):
        agents = {"math": math.url, "code": code.url}
        run = Run(make_loop(agents, dataset_of({"agent_ref": {"name": "code"}}, {}), num_generations=1), math)
        samples = await run.samples(4)
        run.stop.set()
        await run.work
        run.loop._loop.close()
    assert {(len(sample.input_ids), sample.metrics["reward"]) for sample in samples} == {(4, 1.0), (6, 0.5)}
    assert ["agent_ref" in await call.row() for call in math.calls[:2]] == [False, False]
    assert [(await call.row())["agent_ref"]["name"] for call in code.calls[:2]] == ["code", "code"]


async def test_forks_share_the_advantage_and_the_group_of_their_rollout() -> None:
    async with running(
        answering(scored(1.0, TWO_ROWS), scored(0.0)), dataset_of({}), num_generations=2, max_inflight_tasks=2
    ) as run:
        samples = await run.samples(3)
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0, 1.0])
    assert {sample.group_id for sample in samples} == {0}
    assert samples[0].metrics is not samples[1].metrics


class Format:
    """1 for a completion of two messages, else 0, also for an empty one; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, completions: list[Any], **columns: Any) -> list[float]:
        self.asked.append({"completions": completions, **columns})
        return [float(len(completion) == 2) for completion in completions]

    __name__ = "format"


async def test_a_failed_member_belongs_to_no_mean_and_no_reward_function() -> None:
    format_reward = Format()
    answers = answering(scored(1.0, TWO_TURNS), scored(0.0), 500)
    async with running(answers, dataset_of({}, {}), reward_funcs=[format_reward]) as run:
        samples = await run.samples(2)
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0])
    assert samples[0].metrics["reward_std"] == pytest.approx(1.0)
    asked = format_reward.asked[0]
    assert {name: len(column) for name, column in asked.items()} == {
        "completions": 2,
        "prompts": 2,
        "completion_ids": 2,
        "nemo_gym_row": 2,
        "number": 2,
    }
    assert [] not in asked["completions"]
    assert sorted(asked["completion_ids"]) == [[3, 4], [3, 4, 6]]


@pytest.mark.parametrize(
    "failure",
    [500, scored(None), scored(float("nan")), scored(1.0, []), scored(1.0, mask_sample=True), lambda row: b"{"],
)
async def test_no_failure_becomes_a_reward_or_a_row(failure: Any) -> None:
    async with running(answering(scored(1.0), failure, scored(0.0)), dataset_of({})) as run:
        samples = await run.samples(2)
    assert sorted(sample.metrics["reward"] for sample in samples) == [0.0, 1.0]
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0])


async def test_groups_that_fail_leave_no_hole_and_ask_no_reward_function() -> None:
    format_reward = Format()

    def by_number(row: dict[str, Any]) -> Any:
        return 500 if row["fails"] else gym_answer(row, turns=ONE_TURN, reward=1.0)

    rows = dataset_of({"fails": True}, {"fails": False}, {"fails": True}, {"fails": False}, {"fails": False})
    settings = {"num_generations": 2, "max_inflight_tasks": 2, "reward_funcs": [format_reward]}
    async with running(answering(by_number), rows, **settings) as run:
        samples = await run.samples(6)
    assert [sample.group_id for sample in samples] == [0, 0, 1, 1, 2, 2]
    assert all(len(asked["completions"]) == 2 for asked in format_reward.asked)


async def test_only_the_turns_wanted_are_trained() -> None:
    answers = answering(scored(1.0, TWO_TURNS), scored(0.0, ONE_TURN), scored(0.0, TWO_ROWS))
    async with running(answers, dataset_of({}), train_turn_fn=later_turn) as run:
        samples = sorted(await run.samples(2), key=lambda sample: -len(sample.input_ids))
    assert [(sample.input_ids.tolist(), sample.completion_mask.tolist()) for sample in samples] == [
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1]),
        ([7, 8, 9], [0, 0, 1]),
    ]
    # The member with nothing to train still counts in its group's mean.
    assert [sample.advantage for sample in samples] == pytest.approx([2**0.5, -(2**-0.5)])


async def test_a_function_that_wants_no_turn_leaves_the_loop_at_work_and_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(answering(scored(1.0, ONE_TURN)), dataset_of({}), train_turn_fn=later_turn) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 90)
        assert run.loop.rollout_buffer.empty()
    assert [message for message in caplog.messages if "train_turn_fn has refused every turn" in message]


async def test_a_prompt_is_filled_in_and_kept_where_there_is_one() -> None:
    rows = [
        {"responses_create_params": {"input": [{"role": "user", "content": "listed"}]}},
        {"responses_create_params": {"input": "hi"}, "prompt": [{"role": "user", "content": "mine"}]},
    ]
    async with running(answering(scored(1.0)), rows, num_generations=1, max_inflight_tasks=1) as run:
        samples = await run.samples(2)
        sent = await run.agent.calls[1].row()
    assert [sample.prompt[0]["content"] for sample in samples] == ["listed", "mine"]
    assert "prompt" not in sent


# Metrics


async def test_metrics_reach_the_trainer_in_its_shapes() -> None:
    answers = answering(scored(1.0, TWO_TURNS, total_run_time=2.0), scored(0.0), 500)
    async with running(answers, dataset_of({})) as run:
        await run.samples(2)
    ours: dict[str, list[Any]] = {}
    for put in pushed(run.loop):
        for name, value in put.items():
            assert isinstance(value, (float, tuple)), name
            ours.setdefault(name, []).append(value)
    assert {type(value) for values in ours.values() for value in values} == {float, tuple}
    assert all(len({type(value) for value in values}) == 1 for values in ours.values())
    assert {"rollout/turns_mean", "rollout/duration_s", "completions/mean_length"} <= ours.keys()
    rollouts = sum(ours["nemo_gym/rollouts_total"])
    assert (
        sum(ours["nemo_gym/outcome/ok_total"])
        + sum(ours["nemo_gym/outcome/http_error_total"])
        + sum(ours.get("nemo_gym/outcome/cancelled_total", []))
        == rollouts
    )
    assert sum(total for total, _ in ours["nemo_gym/env/math/total_run_time"]) == 2.0 * sum(
        count for _, count in ours["nemo_gym/env/math/total_run_time"]
    )
    for name in ("success_frac", "latency_s", "turns", "reward", "rows_per_rollout", "drift/clean_frac"):
        assert all(isinstance(value, tuple) for value in ours[f"nemo_gym/{name}"])
        assert f"nemo_gym/agent/math/{name}" in ours


async def test_a_full_metrics_queue_delays_our_numbers_and_loses_none() -> None:
    metrics_queue: queue.Queue[Any] = queue.Queue(maxsize=1)
    metrics_queue.put({})
    settings = {"num_generations": 1, "max_inflight_tasks": 1, "metrics_queue": metrics_queue}
    async with running(answering(scored(1.0)), dataset_of({}), **settings) as run:
        await run.samples(20)
        metrics_queue.get_nowait()
    sums = [put.get("nemo_gym/rollouts_total", 0.0) for put in pushed(run.loop)]
    run.loop._ledger.metrics.push(metrics_queue)
    sums += [put.get("nemo_gym/rollouts_total", 0.0) for put in pushed(run.loop)]
    assert sum(sums) == run.loop._ledger.metrics.counts()["nemo_gym/rollouts_total"] >= 20


# Ends


async def test_stopping_gives_up_what_is_in_flight() -> None:
    async def silent(call: AgentCall) -> None:
        await call.body()
        await call.gone()

    async with running(silent, dataset_of({})) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert run.loop._ledger.metrics.counts() == {
        "nemo_gym/sent_total": 3,
        "nemo_gym/rollouts_total": 3,
        "nemo_gym/outcome/cancelled_total": 3,
        "nemo_gym/agent/math/sent_total": 3,
        "nemo_gym/agent/math/rollouts_total": 3,
        "nemo_gym/agent/math/outcome/cancelled_total": 3,
    }
    assert run.loop.rollout_buffer.empty()


async def test_answers_without_ids_end_the_run_with_one_error() -> None:
    def without_ids(row: dict[str, Any]) -> dict[str, Any]:
        items = [{"type": "function_call", "name": "f"}, {"type": "message", "role": "assistant", "content": "4"}]
        return {**row, "response": {"output": items}, "reward": 1.0}

    settings = {"num_generations": 16, "max_inflight_tasks": 16}
    with pytest.raises(turnloom.ConfigError, match=r"return_token_id_information.*1 function_call, 1 message"):
        async with running(answering(without_ids), dataset_of({}), **settings) as run:
            await run.work


async def test_an_unknown_agent_in_a_stream_of_rows_ends_the_run() -> None:
    stream = dataset_of({}, {"agent_ref": {"name": "chess"}}).to_iterable_dataset()
    with pytest.raises(turnloom.ConfigError, match="agents: math"):
        async with running(answering(scored(1.0)), stream) as run:
            await run.work


async def test_what_is_no_row_in_a_stream_ends_the_run() -> None:
    with pytest.raises(turnloom.ConfigError, match=r"a row is a mapping.* not str"):
        async with running(answering(scored(1.0)), iter(["{}"])) as run:
            await run.work


async def test_an_error_of_a_reward_function_ends_the_run_and_is_told() -> None:
    with pytest.raises(LookupError, match="my own mistake"):
        async with running(answering(scored(1.0)), dataset_of({}), reward_funcs=[broken_reward]) as run:
            await run.work


async def test_rollouts_of_the_loop_are_recorded(tmp_path: Path) -> None:
    async with running(answering(scored(1.0), 500, scored(0.0)), dataset_of({}), record_dir=str(tmp_path)) as run:
        samples = await run.samples(2)
    found = {record.outcome: record for record in turnloom.Records(tmp_path)}
    assert found.keys() >= {"ok", "http_error"}
    rows = [row for record in turnloom.Records(tmp_path) for row in record.rollout().rows]
    assert [row.input_ids.tolist() for row in rows[:2]] == [sample.input_ids.tolist() for sample in samples]
