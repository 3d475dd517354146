"""Groups in the loop for TRL under faults: retries, stale groups, cancellations, and the end of a run that fails."""

import asyncio
import gc
import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import turnloom
from trl_loops import ONE_TURN, Run, answering, broken_reward, dataset_of, make_loop, running, scored
from turnloom._groups import _runner
from turnloom.integrations.nemo_gym import _trl
from turnloom.testing import AgentCall, FakeAgent, gym_answer

ENDLESS = dataset_of(*[{}] * 1000)
"""More rows than a test has groups."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runner, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(_trl, "WATCH_S", 0.01)


def outcomes(run: Run) -> dict[str, int]:
    """What has become of the rollouts, of which each has one outcome."""
    counts = run.loop._ledger.metrics.counts()
    found = {
        name.removeprefix("nemo_gym/outcome/").removesuffix("_total"): count
        for name, count in counts.items()
        if name.startswith("nemo_gym/outcome/")
    }
    assert sum(found.values()) == counts["nemo_gym/rollouts_total"]
    return found


# Which rollout a request is


async def test_requests_have_their_place_in_the_dataset_after_a_resume_and_over_epochs() -> None:
    settings = {"num_generations": 2, "max_inflight_tasks": 2, "dataset_start_index": 7}
    async with running(answering(scored(1.0)), dataset_of({}, {}, {}), **settings) as run:
        samples = await run.samples(8)
        sent = [await call.row() for call in run.agent.calls[:8]]
    assert [row["_ng_task_index"] for row in sent] == [1, 1, 2, 2, 0, 0, 1, 1]
    assert [row["_ng_rollout_index"] for row in sent] == [0, 1] * 4
    assert [sample.group_id for sample in samples] == [0, 0, 1, 1, 2, 2, 3, 3], "which TRL adds to where it resumed"


# Failures


async def test_a_lone_survivor_has_no_advantage() -> None:
    async with running(answering(scored(1.0), 500, 500), dataset_of({})) as run:
        (sample,) = await run.samples(1)
    assert sample.advantage == 0.0
    assert sample.completion_mask.any()


async def test_a_retried_group_is_whole_and_keeps_the_version_of_its_first_dispatch() -> None:
    run: Run

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        if row["_ng_rollout_index"] and not row["_ng_attempt_index"]:
            run.loop._model_version_value.value = 2
            await call.answer("it broke", status=500)
        else:
            await call.answer(gym_answer(row, turns=ONE_TURN, reward=float(row["_ng_rollout_index"])))

    async with running(behave, dataset_of({}), on_failure="retry") as run:
        samples = await run.samples(3)
    assert sorted(sample.metrics["reward"] for sample in samples) == [0.0, 1.0, 2.0]
    assert {sample.model_version for sample in samples} == {1}
    assert {sample.group_id for sample in samples} == {0}
    assert run.loop._ledger.metrics.counts()["nemo_gym/retries_total"] >= 2
    assert outcomes(run)["http_error"] >= 2


async def test_a_run_that_can_only_fail_ends_with_one_error(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeAgent(answering(422)) as agent:
        run = Run(make_loop({"math": agent.url}, dataset_of({})), agent)
        with pytest.raises(turnloom.ConfigError, match=r"(?s)8 groups in.*24 http_error 422.*the rows of the dataset"):
            await run.work
        run.close()
    assert len(agent.calls) == 24
    assert outcomes(run)["http_error"] == 24
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("reward_funcs", [[], [broken_reward]], ids=["generating", "scoring"])
async def test_what_is_cancelled_by_anothers_error_is_counted(reward_funcs: list[Any]) -> None:
    async def behave(call: AgentCall) -> None:
        row = await call.row()
        if row["_ng_task_index"] == 1:
            await call.gone()
        elif reward_funcs:
            await call.answer(gym_answer(row, turns=ONE_TURN))
        else:
            await call.answer("it broke", status=500)

    async with FakeAgent(behave) as agent:
        run = Run(make_loop({"math": agent.url}, ENDLESS, max_inflight_tasks=6, reward_funcs=reward_funcs), agent)
        with pytest.raises((turnloom.ConfigError, LookupError)):
            await run.work
        run.close()
        await agent.until(lambda agent: agent.open_connections == 0)
    assert outcomes(run)["cancelled"] >= 3


# Stale groups


def waiting_first(calls: int) -> Callable[[AgentCall], Any]:
    """The first calls wait until the client goes away; the others are answered."""
    number = iter(range(10**9))

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        if next(number) < calls:
            await call.gone()
        else:
            await call.answer(gym_answer(row, turns=ONE_TURN))

    return behave


async def test_a_stale_group_is_cancelled_and_leaves_no_hole() -> None:
    async with running(waiting_first(3), dataset_of({}), max_staleness=1) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        run.loop._model_version_value.value = 3
        samples = await run.samples(3)
        assert outcomes(run)["cancelled"] == 3
    assert {(sample.group_id, sample.model_version) for sample in samples} == {(0, 3)}
    assert run.loop._ledger.metrics.counts()["nemo_gym/stale_groups_total"] == 1


async def test_what_has_ended_of_a_stale_group_is_not_trained_and_what_has_not_begun_is_not_sent() -> None:
    asked: list[int] = []

    def counts(completions: list[Any], **_: Any) -> list[float]:
        asked.append(len(completions))
        return [0.0] * len(completions)

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        if run.loop.model_version == 1 and row["_ng_rollout_index"] > 0:
            await call.gone()
        await call.answer(gym_answer(row, turns=ONE_TURN))

    # Of the first group's four members one is answered, one begins then, and the last two have no slot yet.
    settings = {"num_generations": 4, "max_inflight_tasks": 2, "max_staleness": 0, "reward_funcs": [counts]}
    async with running(behave, ENDLESS, **settings) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        run.loop._model_version_value.value = 2
        samples = await run.samples(4)
        sent = Counter([(await call.row())["_ng_task_index"] for call in run.agent.calls])
        assert outcomes(run)["cancelled"] == 3
    assert sent[0] == 3
    assert {(sample.group_id, sample.model_version) for sample in samples} == {(0, 2)}
    assert set(asked) == {4}


@pytest.mark.parametrize(("max_staleness", "version"), [(None, 50), (2, 3)])
async def test_a_group_that_is_not_too_old_is_finished(max_staleness: int | None, version: int) -> None:
    released = asyncio.Event()

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        await released.wait()
        await call.answer(gym_answer(row, turns=ONE_TURN))

    async with running(behave, dataset_of({}), max_staleness=max_staleness) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        looks = asyncio.Semaphore(0)
        look = run.loop._runner.look
        run.loop._runner.look = lambda seen: (look(seen), looks.release() if seen == version else None)
        run.loop._model_version_value.value = version
        await looks.acquire()
        released.set()
        samples = await run.samples(3)
    assert {sample.model_version for sample in samples} == {1}


# Cancellations


async def test_cancellations_leave_nothing_behind() -> None:
    """Nothing grows with the number of stale groups: no task, no socket, no slot, no object."""
    rollouts, in_flight, rounds = 1_000, 50, 10
    settings = {
        "num_generations": rollouts,
        "max_inflight_tasks": rollouts,
        "max_concurrency": in_flight,
        "max_staleness": 0,
    }
    left = []
    async with FakeAgent(waiting_first(10**9)) as agent:
        run = Run(make_loop({"math": agent.url}, dataset_of({}), **settings), agent)
        for number in range(1, rounds + 1):
            await agent.until(lambda agent: len(agent.calls) == agent.open_connections == in_flight)
            agent.calls.clear()
            if number % 2 == 0:
                gc.collect()
                files = len(os.listdir("/proc/self/fd"))
                left.append((files, len(asyncio.all_tasks()), len(run.loop._runner._open), len(gc.get_objects())))
            run.loop._model_version_value.value += 1
        run.stop.set()
        await run.work
        run.close()
        await agent.until(lambda agent: agent.open_connections == 0)
    (state,) = run.loop._gym.agents.values()
    assert (state.in_flight, state.queued) == (0, 0)
    counted = outcomes(run)
    assert counted == {"cancelled": counted["cancelled"]}
    assert counted["cancelled"] >= rollouts * rounds == 10_000
    for before, after in itertools.pairwise(left):
        assert max(b - a for a, b in zip(before[:3], after[:3], strict=True)) <= 2, left  # a task of TRL's more or less
    objects = [number for *_, number in left[1:]]  # the first rounds fill what is there once
    assert max(objects) - min(objects) < rollouts, "objects are far fewer than the rollouts since"
