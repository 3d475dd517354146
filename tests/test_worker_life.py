"""The worker's process: it ends when it is asked to, with its trainer, and never without a word."""

import asyncio
import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from trl_loops import answering, broken_reward, scored
from trl_workers import BIG_TOKENS, big_answer, ends_within, forkserver, make_worker, pid_of, started, until
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
from turnloom.testing import AgentCall, FakeAgent
from turnloom.testing.cpu import cpu_training

END_S = 5.0
"""How long an end may take that was asked for."""
IN_FLIGHT = 300


async def silent(call: AgentCall) -> None:
    """Never answers."""
    await call.body()
    await call.gone()


def big_then_silent(answers: int) -> Callable[[AgentCall], Any]:
    """So many big answers, then none."""
    calls = iter(range(10**9))
    answer = answering(big_answer)

    async def behave(call: AgentCall) -> None:
        await (answer if next(calls) < answers else silent)(call)

    return behave


def load(agent: FakeAgent, worker: NemoGymRolloutWorker) -> None:
    """Wait until nobody has read the worker's big samples, and hundreds of its rollouts are in flight."""
    until(worker, lambda: worker.rollout_buffer.full() and agent.open_connections >= IN_FLIGHT)


def unread(items: Any) -> int:
    """How many whole items there still are, once the process has ended."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            items.get(timeout=10)
            count += 1
    return count


LOADED = {"max_inflight_tasks": IN_FLIGHT, "queue_maxsize": 3}


def until_heard_of(worker: NemoGymRolloutWorker) -> None:
    """The end of a process is told by the server that has forked it, a moment later."""
    assert worker._process is not None
    worker._process.join()


# An end that was asked for


def test_stop_ends_it_at_once_with_a_full_queue_and_hundreds_in_flight() -> None:
    with FakeAgent(big_then_silent(6)) as agent, started(agent.url, **LOADED) as worker:
        process = worker._process
        assert process is not None
        load(agent, worker)
        os.kill(pid_of(worker), signal.SIGINT)  # as Ctrl-C does: it is the trainer that stops it
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < END_S
        assert process.exitcode == 0, "it ended by itself"
        assert unread(worker.rollout_buffer) < 4, "and the reader did not wait for the rest of the last"
        assert unread(worker.metrics_queue) > 0, "which the trainer may still look at"


def test_sigterm_ends_it_at_once_and_the_trainer_hears_of_it() -> None:
    with FakeAgent(big_then_silent(6)) as agent, started(agent.url, **LOADED) as worker:
        load(agent, worker)
        os.kill(pid_of(worker), signal.SIGTERM)
        assert ends_within(END_S, pid_of(worker))
        assert unread(worker.rollout_buffer) < 4
        until_heard_of(worker)
        with pytest.raises(RuntimeError, match=r"has ended \(exit status 0\).*SIGTERM"):
            worker.check_health(300)


class Stuck:
    """A reward function that never comes back, in a thread."""

    def __call__(self, **_: Any) -> list[float]:
        threading.Event().wait()
        return []


class StuckAsync:
    """The same in the event loop."""

    async def __call__(self, **_: Any) -> list[float]:
        await asyncio.Event().wait()
        return []


@pytest.mark.parametrize("reward", [Stuck(), StuckAsync()])
@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_a_reward_function_that_never_comes_back_keeps_it_no_longer(reward: Any, how: str) -> None:
    with FakeAgent(answering(scored(1.0))) as agent, started(agent.url, reward_funcs=[reward]) as worker:
        pid = pid_of(worker)
        until(worker, lambda: len(agent.calls) > 4)  # a group is complete
        if how == "SIGTERM":
            os.kill(pid, signal.SIGTERM)
        else:
            worker.stop()
        assert ends_within(END_S if how == "SIGTERM" else 0, pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_stop_waits_for_no_process_that_cannot_hear(number: int) -> None:
    with FakeAgent(silent) as agent, started(agent.url) as worker:
        until(worker, lambda: len(agent.calls) == 4)
        pid = pid_of(worker)
        os.kill(pid, number)
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < END_S
        assert ends_within(0, pid)


# The trainer's end


def train(url: str, started_pid: Connection, settings: dict[str, Any]) -> None:
    """A trainer that reads nothing, in a process of its own."""
    with started(url, context="fork", **settings) as worker:
        if settings.get("reward_funcs"):
            worker._failed_event.wait()
        started_pid.send(pid_of(worker))
        while True:
            signal.pause()


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (signal.SIGKILL, LOADED),
        (signal.SIGKILL, {"reward_funcs": [broken_reward]}),
        (signal.SIGTERM, LOADED),
        (signal.SIGINT, LOADED),
    ],
)
def test_it_ends_with_its_trainer(number: int, settings: dict[str, Any]) -> None:
    context = forkserver()
    ours, theirs = context.Pipe(duplex=False)
    with FakeAgent(big_then_silent(6)) as agent:
        trainer = context.Process(target=train, args=(agent.url, theirs, settings))
        trainer.start()
        worker = ours.recv()
        assert trainer.pid is not None
        try:
            os.kill(trainer.pid, number)
            if number == signal.SIGINT:
                os.kill(worker, number)  # Ctrl-C reaches both
            began = time.monotonic()
            trainer.join(END_S)
            assert trainer.exitcode is not None
            assert ends_within(END_S - (time.monotonic() - began), worker)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


# An end that was not


class OneGroupOnly:
    """Scores one group, and no more."""

    groups = 0

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        self.groups += 1
        if self.groups > 1:
            raise LookupError("my own mistake")
        return [0.0] * len(completions)


def test_a_failure_is_told_after_every_sample_was_read() -> None:
    with (
        FakeAgent(answering(big_answer)) as agent,
        started(agent.url, reward_funcs=[OneGroupOnly()]) as worker,
    ):
        process = worker._process
        assert process is not None
        assert worker._failed_event.wait(30)
        samples = [worker.rollout_buffer.get(timeout=10) for _ in range(2)]
        assert all(len(sample.input_ids) == 1 + BIG_TOKENS for sample in samples)
        with pytest.raises(RuntimeError) as caught:
            worker.check_health(300)
        assert "LookupError: my own mistake" in str(caught.value.__cause__)
        worker.stop()
        assert process.exitcode == 1


def test_a_run_that_can_only_fail_is_told_by_the_health_check() -> None:
    with FakeAgent(answering(422)) as agent, started(agent.url) as worker:
        assert ends_within(30, pid_of(worker))
        with pytest.raises(RuntimeError) as caught:
            worker.check_health(300)
    told = str(caught.value.__cause__)
    assert told.startswith("ConfigError: 8 groups in a row ended without one scored rollout")
    assert "HTTP 422: the agent does not take this row; the body begins '\"it broke\"'" in told


def test_a_death_in_the_middle_of_a_sample_is_told_at_once() -> None:
    with FakeAgent(answering(big_answer)) as agent, started(agent.url) as worker:
        until(worker, lambda: not worker.rollout_buffer.empty())
        os.kill(pid_of(worker), signal.SIGKILL)
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(timeout=10)
        assert ends_within(END_S, pid_of(worker))
        until_heard_of(worker)
        with pytest.raises(RuntimeError, match=r"has ended \(signal 9\).*memory"):
            worker.check_health(300)


def test_a_process_that_cannot_begin_is_told_at_once() -> None:
    with cpu_training():
        worker = make_worker()
    worker._mp_ctx = forkserver()
    worker._loop_kwargs["nobody_takes"] = 1
    with pytest.raises(RuntimeError, match=r"exited during init \(exitcode=1\)"):
        worker.start()
    worker.stop()
