"""Opening and closing: a client that closes leaves no rollout behind, wherever it is on its way."""

from __future__ import annotations

import asyncio

import httpx
import pytest

import turnloom
from one_row import ANSWER, BIG_ROW, ROW, SAMPLING, assert_failed, response, until_no_byte_moves
from turnloom._client import _backoff, _transport
from turnloom.testing import FakeAgent

# --- Open, and where ---


async def test_a_client_runs_rows_only_while_it_is_open():
    gym = turnloom.GymClient({"math": "http://127.0.0.1:1"})
    with pytest.raises(turnloom.ConfigError, match="async with"):
        await gym.run(ROW, **SAMPLING)
    async with gym:
        with pytest.raises(turnloom.ConfigError, match="open already"):
            await gym.__aenter__()
    with pytest.raises(turnloom.ConfigError, match="async with"):
        await gym.run(ROW, **SAMPLING)


async def test_a_client_can_be_opened_again():
    async with FakeAgent(ANSWER) as agent:
        gym = turnloom.GymClient({"math": agent.url})
        for _ in range(2):
            async with gym:
                assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"


def test_a_client_can_be_opened_again_in_another_loop():
    async def both(gym):
        async with gym:
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"

    with FakeAgent(ANSWER) as agent:
        gym = turnloom.GymClient({"math": agent.url})
        for _ in range(2):
            asyncio.run(both(gym))


async def test_a_client_belongs_to_the_loop_that_opened_it():
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        await gym.run(ROW, **SAMPLING)  # the session is bound to its loop when it is first used
        for use in (lambda: gym.run(ROW, **SAMPLING), lambda: gym.__aexit__(None, None, None)):
            with pytest.raises(turnloom.ConfigError, match="another event loop"):
                await asyncio.to_thread(lambda use=use: asyncio.run(use()))
        assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
        assert len(agent.calls) == 2


# --- Closing ---


async def closed_while(gym: turnloom.GymClient, reached, row=ROW) -> turnloom.Rollout:
    """What becomes of a rollout when the client is closed once `reached()` has ended."""
    async with asyncio.timeout(10):
        async with gym:
            rollout = asyncio.create_task(gym.run(row, **SAMPLING))
            await reached()
        assert not gym._under_way
        return await rollout


def assert_closed(rollout: turnloom.Rollout, stage: str) -> None:
    assert_failed(rollout, "disconnected")
    assert "this GymClient was closed" in rollout.reason
    assert stage in rollout.reason


async def silent(call):
    await call.body()
    await call.gone()


async def half(call):
    await call.body()
    await call.send(response(b"{", "content-length: 1000"))
    await call.gone()


async def deaf(call):
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("settings", [{}, {"run_timeout": None}, {"deadline": 60}])
@pytest.mark.parametrize("transport", [None, httpx.AsyncHTTPTransport])
@pytest.mark.parametrize(
    ("behaviour", "row", "stage"),
    [
        (silent, ROW, "while waiting for the answer"),
        (half, ROW, "while the answer arrived, 1 bytes so far); the body begins '{'"),
        (deaf, BIG_ROW, "while the row was sent"),
    ],
)
async def test_closing_the_client_ends_what_is_under_way(behaviour, row, stage, transport, settings):
    async with FakeAgent(behaviour) as agent:
        gym = turnloom.GymClient({"math": agent.url}, transport=transport and transport(), **settings)

        async def reached():
            await agent.until(lambda agent: len(agent.calls) == 1)
            await until_no_byte_moves(gym)

        assert_closed(await closed_while(gym, reached, row), stage)
        if behaviour is not deaf:  # which does not notice
            await agent.until(lambda agent: agent.open_connections == 0)


async def test_closing_the_client_ends_what_is_connecting(monkeypatch):
    connecting = asyncio.Event()

    async def forever(*_, **__):
        connecting.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", forever)
    gym = turnloom.GymClient({"math": "http://agents.example"})
    assert_closed(await closed_while(gym, connecting.wait), "try 1, no connection yet")


async def test_closing_the_client_ends_a_pause_between_tries(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)
    paused = asyncio.Event()
    real_pause = _backoff.pause
    monkeypatch.setattr(_backoff, "pause", lambda failures: (paused.set(), real_pause(failures))[1])
    gym = turnloom.GymClient({"math": "http://127.0.0.1:1"})
    assert_closed(await closed_while(gym, paused.wait), "try 1, no connection yet after ")


@pytest.mark.parametrize("settings", [{}, {"deadline": 60}])
async def test_closing_the_client_ends_the_wait_for_a_file_descriptor(monkeypatch, settings):
    waits = asyncio.Event()

    def no_socket(address):
        waits.set()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(_transport, "_new_socket", no_socket)
    gym = turnloom.GymClient({"math": "http://127.0.0.1:1"}, run_timeout=None, **settings)
    assert_closed(await closed_while(gym, waits.wait), "no connection yet")


@pytest.mark.parametrize("steps", range(12))
async def test_closing_the_client_at_any_moment_ends_in_a_rollout(monkeypatch, steps):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.0)
    async with FakeAgent(ANSWER) as agent, asyncio.timeout(10):
        async with turnloom.GymClient({"math": agent.url, "down": "http://127.0.0.1:1"}) as gym:
            rows = [{**ROW, "agent_ref": {"name": name}} for name in ("math", "down") * 5]
            rollouts = [asyncio.create_task(gym.run(row, **SAMPLING)) for row in rows]
            await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
        outcomes = {(await rollout).outcome for rollout in rollouts}
    assert outcomes <= {"ok", "unreachable", "disconnected"}


async def test_leaving_by_an_exception_ends_what_is_under_way():
    async with FakeAgent(half) as agent:
        rollouts: list[asyncio.Task[turnloom.Rollout]] = []

        async def leave():
            async with turnloom.GymClient({"math": agent.url}, run_timeout=None) as gym:
                rollouts.extend(asyncio.create_task(gym.run(ROW, **SAMPLING)) for _ in range(3))
                await agent.until(lambda agent: len(agent.calls) == 3)
                raise KeyError("left")

        with pytest.raises(KeyError, match="left"):
            await leave()
        async with asyncio.timeout(10):
            for rollout in rollouts:
                assert_failed(await rollout, "disconnected")
        await agent.until(lambda agent: agent.open_connections == 0)


async def test_a_rollout_that_is_cancelled_as_the_client_closes_stays_cancelled():
    async with FakeAgent(half) as agent:
        for cancel in (asyncio.Task.cancel, lambda task: asyncio.get_running_loop().call_soon(task.cancel)):
            async with turnloom.GymClient({"math": agent.url}) as gym:
                rollout = asyncio.create_task(gym.run(ROW, **SAMPLING))
                await until_no_byte_moves(gym)
                cancel(rollout)
            await asyncio.wait([rollout])
            assert rollout.cancelled()


async def test_an_error_of_the_server_stays_one_when_the_client_closes():
    async def refuse(call):
        await call.body()
        await call.send(response(b"out of mem", "content-length: 100", status="500 Internal Server Error"))
        await call.gone()

    async with FakeAgent(refuse) as agent:
        gym = turnloom.GymClient({"math": agent.url})

        async def reached():
            await agent.until(lambda agent: len(agent.calls) == 1)
            await until_no_byte_moves(gym)

        assert_failed(await closed_while(gym, reached), "http_error")
