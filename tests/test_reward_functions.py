"""Reward functions of every kind that can be pickled, in a real worker whose process is spawned as a trainer's is."""

import asyncio
import functools
from typing import Any

import pytest

import turnloom
from trl_loops import TWO_TURNS, answering, dataset_of, running, scored
from trl_workers import started
from turnloom.testing import FakeAgent


def plain(completions: list[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def of_columns(number: list[int], completion_ids: list[list[int]], *, bonus: float, **_: Any) -> list[float]:
    return [bonus + row + len(ids) for row, ids in zip(number, completion_ids, strict=True)]


async def coroutine(completions: list[Any], **_: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return [0.25, None, *[0.25] * (len(completions) - 2)]


async def slowly(completions: list[Any], *, factor: float, **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return [factor] * len(completions)


class Instance:
    """State that was given before the pickle."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        return [self.value] * len(completions)

    def method(self, completions: list[Any], **_: Any) -> list[float]:
        return [2 * self.value] * len(completions)


class AsyncInstance(Instance):
    async def __call__(self, completions: list[Any], **_: Any) -> list[float]:  # type: ignore[override]
        await asyncio.sleep(0)
        return [self.value] * len(completions)


def infinite(completions: list[Any], **_: Any) -> list[float]:
    return [float("inf"), *[0.0] * (len(completions) - 1)]


def partly(completions: list[Any], **_: Any) -> list[float | None]:
    return [float("nan"), None, *[0.5] * (len(completions) - 2)]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of TRL, which goes on
async def test_an_infinite_reward_ends_the_run_and_never_reaches_the_policy() -> None:
    with pytest.raises(turnloom.ConfigError, match=r"'rewards/infinite': inf.*finite"):
        async with running(answering(scored(1.0)), dataset_of({}), reward_funcs=[infinite]) as run:
            await run.samples(1)


async def test_a_reward_that_is_nan_is_none_at_all() -> None:
    async with running(answering(scored(1.0), scored(0.0), scored(0.0)), dataset_of({}), reward_funcs=[partly]) as run:
        samples = await run.samples(3)
    assert sorted(sample.metrics["reward"] for sample in samples) in ([0.0, 0.5, 1.0], [0.0, 0.0, 1.5])
    assert sum(sample.advantage for sample in samples) == pytest.approx(0.0)


@pytest.mark.timeout(240)
def test_a_spawned_worker_takes_every_kind_of_reward_function() -> None:
    functions = [
        plain,
        functools.partial(of_columns, bonus=100.0),
        coroutine,
        functools.partial(functools.partial(slowly), factor=3.0),
        Instance(4.0),
        AsyncInstance(5.0),
        Instance(6.0).method,
    ]
    with (
        FakeAgent(answering(scored(0.5, TWO_TURNS), 500, scored(0.5, TWO_TURNS))) as agent,
        started(
            agent.url,
            context="spawn",
            num_generations=3,
            max_inflight_tasks=3,
            dataset=dataset_of({}, {}),
            reward_funcs=functions,
        ) as worker,
    ):
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(4)]
    for number, group in enumerate((samples[:2], samples[2:])):
        told = {name: [sample.metrics[name] for sample in group] for name in group[0].metrics}
        assert told.pop("rewards/coroutine")[0] == 0.25
        assert {name: set(values) for name, values in told.items() if name.startswith("rewards/")} == {
            "rewards/plain": {1.0},
            "rewards/of_columns": {100.0 + number + 3},
            "rewards/slowly": {3.0},
            "rewards/Instance": {4.0},
            "rewards/AsyncInstance": {5.0},
            "rewards/method": {12.0},
            "rewards/nemo_gym": {0.5},
        }
        assert told["reward"] == [125.75 + 3 + number, 125.5 + 3 + number]
