"""Makes workers for TRL, and starts their processes against a fake agent."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from trl_loops import dataset_of, make_tokenizer
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
from turnloom.testing import gym_answer
from turnloom.testing.cpu import cpu_training

BIG_TOKENS = 100_000


def make_worker(**settings: Any) -> NemoGymRolloutWorker:
    """A worker whose process is not started; within `cpu_training`, where there is no vLLM."""
    return NemoGymRolloutWorker(
        **{
            "agent_servers": {"math": "http://127.0.0.1:9", "code": "http://127.0.0.1:9"},
            "dataset": dataset_of({}),
            "processing_class": make_tokenizer(),
            "max_tokens": 64,
            **settings,
        },
    )


def forkserver() -> Any:
    """Processes that are forked from one that has imported everything; spawning would import it each time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["turnloom.integrations.nemo_gym._trl", "trl_workers"])
    return context


@contextmanager
def started(url: str, *, context: str | None = None, **settings: Any) -> Iterator[NemoGymRolloutWorker]:
    """A worker at work on one agent."""
    with cpu_training():
        worker = make_worker(**{"num_generations": 2, "max_inflight_tasks": 4, **settings})
    worker._mp_ctx = multiprocessing.get_context(context) if context else forkserver()
    worker._loop_kwargs["agent_servers"] = {"math": url}
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        assert not multiprocessing.active_children()


def pid_of(worker: NemoGymRolloutWorker) -> int:
    assert worker._process is not None
    assert worker._process.pid is not None
    return worker._process.pid


def until(worker: NemoGymRolloutWorker, condition: Callable[[], bool]) -> None:
    """Wait for what the worker's process is to bring about."""
    process = worker._process
    assert process is not None
    while not condition():
        process.join(0.01)
        assert process.exitcode is None, "the worker's process has ended"


def ends_within(seconds: float, pid: int) -> bool:
    """Whether a process ends in that time, also one that isn't a child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(wait([handle], seconds))
    finally:
        os.close(handle)


def big_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Makes a sample above 1 MB: the pipe between the processes holds 64 KiB."""
    generation = list(range(BIG_TOKENS))
    return gym_answer(row, turns=[([1], generation, [-0.5] * BIG_TOKENS)], reward=1.0)
