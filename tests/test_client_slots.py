"""`max_concurrency`: how many requests an agent has at once, and what those that wait are spared."""

from __future__ import annotations

import asyncio

import pytest

import turnloom
from one_row import ANSWER, ROW, SAMPLING
from turnloom.testing import FakeAgent


class Counting:
    """Answers after some turns of the loop, and counts how many calls it has had at once."""

    def __init__(self, turns: int = 5) -> None:
        self.now = 0
        self.most = 0
        self.ids: list[int] = []
        self._turns = turns

    async def __call__(self, call) -> None:
        self.ids.append((await call.row())["id"])
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self.now -= 1
        await call.answer(ANSWER)


class Gate:
    """Answers once it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, call) -> None:
        await call.body()
        await self.open.wait()
        await call.answer(ANSWER)


def start(gym: turnloom.GymClient, count: int, agent: str | None = None) -> list[asyncio.Task[turnloom.Rollout]]:
    rows = [{**ROW, "id": number, "agent_ref": {"name": agent}} for number in range(count)]
    return [asyncio.create_task(gym.run(row, **SAMPLING)) for row in rows]


async def all_ok(rollouts) -> None:
    assert {rollout.outcome for rollout in await asyncio.gather(*rollouts)} == {"ok"}


@pytest.mark.parametrize("count", [0, -1, 1.5, 8.0, True, "8", float("inf")])
def test_it_is_an_integer_of_at_least_one_or_none(count):
    with pytest.raises(turnloom.ConfigError, match="max_concurrency"):
        turnloom.GymClient({"math": "http://127.0.0.1:1"}, max_concurrency=count)
    turnloom.GymClient({"math": "http://127.0.0.1:1"}, max_concurrency=None)
    turnloom.GymClient({"math": "http://127.0.0.1:1"}, max_concurrency=1)


async def test_1000_rollouts_on_8_slots_are_never_more_than_8_at_the_server():
    counting = Counting()
    async with FakeAgent(counting) as agent, turnloom.GymClient({"math": agent.url}, max_concurrency=8) as gym:
        await all_ok(start(gym, 1000))
        assert gym.agents["math"].queued == gym.agents["math"].in_flight == 0
    assert counting.most == 8
    assert len(counting.ids) == 1000


async def test_it_bounds_all_servers_of_an_agent_together():
    counting = Counting()
    async with FakeAgent(counting) as one, FakeAgent(counting) as two:
        gym = turnloom.GymClient({"math": [one.url, two.url]}, max_concurrency=3)
        async with gym:
            await all_ok(start(gym, 60))
    assert counting.most == 3


async def test_who_comes_first_is_served_first():
    counting = Counting()
    async with FakeAgent(counting) as agent, turnloom.GymClient({"math": agent.url}, max_concurrency=1) as gym:
        await all_ok(start(gym, 30))
    assert counting.ids == list(range(30))


async def test_one_agents_queue_does_not_delay_anothers():
    gate = Gate()
    async with FakeAgent(gate) as slow, FakeAgent(ANSWER) as fast:
        gym = turnloom.GymClient({"slow": slow.url, "fast": fast.url}, max_concurrency=2)
        async with gym:
            waiting = start(gym, 50, "slow")
            await slow.until(lambda agent: len(agent.calls) == 2)
            await all_ok(start(gym, 50, "fast"))
            assert not any(rollout.done() for rollout in waiting)
            assert (gym.agents["slow"].in_flight, gym.agents["slow"].queued) == (2, 48)
            gate.open.set()
            await all_ok(waiting)


@pytest.mark.parametrize("settings", [{"deadline": 1.5}, {"run_timeout": 1.5}])
async def test_waiting_for_a_slot_is_charged_to_no_bound(settings):
    async def slow(call):
        await call.body()
        await asyncio.sleep(0.2)
        await call.answer(ANSWER)

    async with FakeAgent(slow) as agent:
        gym = turnloom.GymClient({"math": agent.url}, max_concurrency=1, **settings)
        async with gym:
            rollouts = start(gym, 9)
            await all_ok(rollouts)
    timings = [rollout.result().timing for rollout in rollouts]
    assert timings[-1].queue_s > 1.5
    assert [timing.queue_s for timing in timings] == sorted(timing.queue_s for timing in timings)
    assert all(timing.queue_s + timing.first_byte_s <= timing.total_s for timing in timings)


async def test_the_deadline_holds_once_there_is_a_slot():
    gate = Gate()
    async with FakeAgent(gate) as agent:
        async with turnloom.GymClient({"math": agent.url}, max_concurrency=1, deadline=0.5) as gym:
            rollouts = await asyncio.gather(*start(gym, 3))
        assert len(agent.calls) == 3
    for rollout in rollouts:
        assert rollout.outcome == "timeout"
        assert "the deadline of 0.5 s passed (while waiting for the answer" in rollout.reason


async def test_cancelling_one_that_waits_leaves_nothing_behind():
    gate = Gate()
    async with FakeAgent(gate) as agent, turnloom.GymClient({"math": agent.url}, max_concurrency=1) as gym:
        before = asyncio.all_tasks()
        first, second, third = start(gym, 3)
        await agent.until(lambda agent: len(agent.calls) == 1)
        assert gym.agents["math"].queued == 2
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert gym.agents["math"].queued == 1
        gate.open.set()
        await all_ok([first, third])
        assert [(await call.row())["id"] for call in agent.calls] == [0, 2]
        assert not gym._under_way
        assert gym.agents["math"] == turnloom.AgentState(0, 0, 0.0, (turnloom.ReplicaState(agent.url, 0, False),))
        await agent.until(lambda agent: agent.open_connections <= 1)
        assert {task for task in asyncio.all_tasks() - before if "FakeAgent" not in repr(task)} == set()


async def test_cancelling_one_that_has_a_slot_frees_it():
    gate = Gate()
    async with FakeAgent(gate) as agent, turnloom.GymClient({"math": agent.url}, max_concurrency=1) as gym:
        first, second = start(gym, 2)
        await agent.until(lambda agent: len(agent.calls) == 1)
        first.cancel()
        await agent.until(lambda agent: len(agent.calls) == 2)
        gate.open.set()
        await all_ok([second])


async def test_closing_the_client_ends_those_that_wait():
    gate = Gate()
    async with FakeAgent(gate) as agent:
        async with turnloom.GymClient({"math": agent.url}, max_concurrency=1, deadline=60) as gym:
            rollouts = start(gym, 9)
            await agent.until(lambda agent: len(agent.calls) == 1)
        rollouts = await asyncio.gather(*rollouts)
        assert len(agent.calls) == 1
    for rollout in rollouts:
        assert rollout.outcome == "disconnected"
    assert "this GymClient was closed (not sent yet)" in rollouts[-1].reason
    assert rollouts[-1].server is None


async def test_what_an_agent_has_in_flight_and_in_its_queue_can_be_seen():
    gate = Gate()
    async with FakeAgent(gate) as agent, turnloom.GymClient({"math": agent.url + "/"}, max_concurrency=2) as gym:
        assert gym.agents == {"math": turnloom.AgentState(0, 0, 0.0, (turnloom.ReplicaState(agent.url, 0, False),))}
        rollouts = start(gym, 5)
        await agent.until(lambda agent: len(agent.calls) == 2)
        state = gym.agents["math"]
        assert (state.in_flight, state.queued, state.replicas[0].in_flight) == (2, 3, 2)
        assert 0 < state.oldest_s < gym.agents["math"].oldest_s
        gate.open.set()
        await all_ok(rollouts)
    assert gym.agents["math"].in_flight == gym.agents["math"].oldest_s == 0
