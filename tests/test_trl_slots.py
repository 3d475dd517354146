"""TRL's slots and the agents' own: a slow agent beside a fast one, and what is said of a queue that holds too many."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from trl_loops import ONE_TURN, Run, dataset_of, make_loop, running
from turnloom._client import AgentState, ReplicaState
from turnloom._groups._slots import SlotsWatch
from turnloom.integrations.nemo_gym import _trl
from turnloom.testing import AgentCall, FakeAgent, gym_answer

EACH = 4
"""Requests that each agent may have in flight."""
FAST_ROWS = 40


async def held(call: AgentCall) -> None:
    """Keeps every call."""
    await call.row()
    await call.gone()


def in_full_rounds() -> Callable[[AgentCall], Any]:
    """Answers when as many calls are there as there may be: an agent that is at its full rate, or stands still."""
    round_is_full = asyncio.Event()
    here = 0

    async def behave(call: AgentCall) -> None:
        nonlocal here, round_is_full
        row, mine = await call.row(), round_is_full
        here += 1
        if here == EACH:
            here, round_is_full = 0, asyncio.Event()
            mine.set()
        await mine.wait()
        await call.answer(gym_answer(row, turns=ONE_TURN))

    return behave


@pytest.mark.parametrize(("slots", "answered"), [(2 * EACH, FAST_ROWS), (2 * EACH - 1, 0)])
async def test_the_fast_agent_is_at_full_rate_beside_a_slow_one_when_the_slots_are_enough(
    slots: int, answered: int
) -> None:
    rows = dataset_of(*[{"agent_ref": {"name": name}} for name in ["slow"] * EACH + ["fast"] * FAST_ROWS])
    settings = {"num_generations": 1, "max_inflight_tasks": slots, "max_concurrency": EACH}
    async with FakeAgent(held) as slow, FakeAgent(in_full_rounds()) as fast:
        run = Run(make_loop({"slow": slow.url, "fast": fast.url}, rows, **settings), fast)
        samples = await run.samples(answered)
        await slow.until(lambda agent: len(agent.calls) == EACH)
        await fast.until(lambda agent: len(agent.calls) >= max(answered, slots - EACH))
        in_flight = {name: state.in_flight for name, state in run.loop._gym.agents.items()}
        run.stop.set()
        await run.work
        run.close()
    assert len(samples) == answered
    assert in_flight["slow"] == EACH, "all this while"
    if not answered:
        assert in_flight["fast"] == EACH - 1, "the slots of TRL are used up, so that no round is ever full"


# What is said


def state(queued: int, *aside: bool) -> dict[str, AgentState]:
    replicas = tuple(ReplicaState("http://127.0.0.1:9", 0, each) for each in aside)
    return {"slow": AgentState(in_flight=1, queued=queued, oldest_s=0.0, replicas=replicas)}


def test_a_queue_in_more_than_half_of_the_slots_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = SlotsWatch(8)
    watch.look(state(4, False))
    watch.look(state(7, True, True))  # which waits for servers, not for slots
    assert not caplog.messages
    for queued in (5, 7):
        watch.look(state(queued, False, True))
    (told,) = caplog.messages
    assert told.startswith("5 rollouts wait for a slot of agent 'slow' and hold more than half of the 8")
    assert "Set max_inflight_tasks to at least the sum of the agents' max_concurrency" in told
    watch.look({"other": state(5, False)["slow"]})
    assert len(caplog.messages) == 2


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    monkeypatch.setattr(_trl, "WATCH_S", 0.01)
    event = asyncio.Event()
    look = SlotsWatch.look

    def looked(self: SlotsWatch, agents: Any) -> None:
        look(self, agents)
        if caplog.messages:
            event.set()

    monkeypatch.setattr(SlotsWatch, "look", looked)
    return event


async def test_the_loop_tells_of_such_a_queue(told: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"num_generations": 2, "max_inflight_tasks": 8, "max_concurrency": 1}
    async with running(held, dataset_of({}), **settings):
        await told.wait()
    (message,) = caplog.messages
    assert message.startswith("7 rollouts wait for a slot of agent 'math' and hold more than half of the 8")
