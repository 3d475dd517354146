"""A real NeMo Gym whose servers die in mid-run.

What it does then is its own: its agents ask a dead server again for ever, until NeMo Gym looks after its processes,
once a minute, and shuts all of them down.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import turnloom
from gyms import COUNTER, MODEL, WEATHER, WEATHER_TOO, WEATHER_TOOLS, Gym, wait_until

pytestmark = [pytest.mark.gym, pytest.mark.timeout(400)]

CALLS = 10


@asynccontextmanager
async def in_mid_run(gym: Gym, **hasty: float) -> AsyncIterator[tuple[asyncio.Task, asyncio.Task]]:
    """Two rollouts of several seconds on their way, one by a client that has time and one by a client that has not."""
    row = gym.row(WEATHER, f"calls={CALLS} slow=0.4")
    before = gym.model_calls()
    async with turnloom.GymClient(gym.agents) as patient, turnloom.GymClient(gym.agents, **hasty) as other:
        runs = [
            asyncio.create_task(client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0))
            for client in (patient, other)
        ]
        await asyncio.to_thread(wait_until, lambda: gym.model_calls() >= before + 4)
        yield runs[0], runs[1]


@pytest.mark.parametrize("server", [WEATHER_TOOLS, MODEL])
async def test_a_dead_server_hangs_a_run_until_its_deadline_or_until_it_is_back(gym_to_break, server):
    async with in_mid_run(gym_to_break, deadline=4.0) as (patient, hasty):
        start_again = gym_to_break.kill(server)
        given_up = await hasty
        assert given_up.outcome == "timeout"
        assert "the deadline of 4 s passed (while waiting for the answer" in given_up.reason
        assert WEATHER in given_up.reason
        assert not patient.done()
        start_again()
        rollout = await patient
    assert (rollout.outcome, rollout.reward, len(rollout.turns)) == ("ok", 1.0, CALLS + 1), rollout.reason
    assert (len(rollout.rows), rollout.drift.clean) == (1, CALLS)


async def test_a_silent_policy_hangs_a_run_until_run_timeout(gym_to_break):
    async with in_mid_run(gym_to_break, run_timeout=3.0) as (patient, hasty):
        with gym_to_break.silent_policy():
            given_up = await hasty
            assert given_up.outcome == "timeout"
            assert "no byte moved for 3 s (while waiting for the answer" in given_up.reason
            assert not patient.done()
        rollout = await patient
    assert (rollout.outcome, len(rollout.turns)) == ("ok", CALLS + 1), rollout.reason


async def test_a_dead_agent_is_disconnected_then_unreachable_then_back(gym_to_break):
    async with in_mid_run(gym_to_break) as runs:
        start_again = gym_to_break.kill(WEATHER)
        for lost in await asyncio.gather(*runs):
            assert (lost.outcome, lost.reward) == ("disconnected", None), lost.reason
    async with turnloom.GymClient(gym_to_break.agents) as client:
        row = gym_to_break.row(WEATHER, "calls=1")
        refused = await client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0)
        assert refused.outcome == "unreachable", refused.reason
        other = await client.run(gym_to_break.row(COUNTER, "calls=4"), max_tokens=1000, temperature=1.0, top_p=1.0)
        assert (other.outcome, other.reward) == ("ok", 1.0), other.reason
        start_again()
        await asyncio.to_thread(wait_until, lambda: gym_to_break.answers(WEATHER))
        rollout = await client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0)
        assert (rollout.outcome, rollout.reward) == ("ok", 1.0), rollout.reason


async def test_a_dead_replica_costs_what_it_was_at_work_on_until_it_is_back(gym_to_break):
    first, second = gym_to_break.agents[WEATHER], gym_to_break.more_agents[WEATHER_TOO]

    async def rollouts(directive: str) -> list[turnloom.Rollout]:
        row = gym_to_break.row(WEATHER, directive)
        return await asyncio.gather(*(client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0) for _ in range(4)))

    async with turnloom.GymClient({WEATHER: [first, second]}) as client:
        before = gym_to_break.model_calls()
        at_work = asyncio.create_task(rollouts(f"calls={CALLS} slow=0.4"))
        await asyncio.to_thread(wait_until, lambda: gym_to_break.model_calls() >= before + 8)
        start_again = gym_to_break.kill(WEATHER)
        ended = {(rollout.server, rollout.outcome) for rollout in await at_work}
        assert ended == {(first, "disconnected"), (second, "ok")}
        ended = {(rollout.server, rollout.outcome) for rollout in await rollouts("calls=1")}
        assert ended == {(second, "ok")}
        start_again()
        await asyncio.to_thread(wait_until, lambda: gym_to_break.answers(WEATHER))
        async with asyncio.timeout(60):
            while first not in {rollout.server for rollout in await rollouts("calls=1")}:
                pass
        ended = {(rollout.server, rollout.outcome) for rollout in await rollouts("calls=1")}
        assert ended == {(first, "ok"), (second, "ok")}


async def test_when_nemo_gym_shuts_down_its_runs_have_failed_by_name(gym_to_break):
    async with in_mid_run(gym_to_break) as runs:
        gym_to_break.kill(MODEL)
        gym_to_break.wake_supervisor()
        for lost in await asyncio.gather(*runs):
            # An agent that is interrupted may still have time for a 500.
            assert lost.outcome in ("disconnected", "http_error"), lost.reason
            assert (lost.reward, lost.rows) == (None, ())
            assert WEATHER in lost.reason
    async with turnloom.GymClient(gym_to_break.agents) as client:
        row = gym_to_break.row(WEATHER, "calls=1")
        refused = await client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0)
        assert refused.outcome == "unreachable", refused.reason
