"""Silence, time that is up, and servers that do not read: nothing hangs, and no socket is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

import turnloom
from one_row import (
    ANSWER,
    BIG_ROW,
    BODY,
    ROW,
    SAMPLING,
    assert_failed,
    own_sockets,
    response,
    send,
    sized,
    until_no_byte_moves,
)
from turnloom.testing import FakeAgent


def client_sockets(agent: FakeAgent) -> int:
    """How many sockets of this process lead to the agent."""
    port = int(agent.url.rpartition(":")[2])
    count = 0
    for copy in own_sockets():
        with contextlib.suppress(OSError):  # not connected
            count += copy.getpeername()[1:2] == (port,)
    return count


HALF = BODY[: len(BODY) // 2]


async def until_closed(agent: FakeAgent) -> None:
    for _ in range(10):  # asyncio closes sockets one turn of the loop later
        await asyncio.sleep(0)
    assert client_sockets(agent) == 0


async def test_silence_before_the_answer_ends_in_a_timeout():
    async def silent(call):
        await call.body()
        await call.gone()

    async with FakeAgent(silent) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=0.2) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        await agent.until(lambda agent: agent.open_connections == 0)
        assert len(agent.calls) == 1
    assert_failed(rollout, "timeout")
    assert "no byte moved for 0.2 s (while waiting for the answer" in rollout.reason


async def test_silence_within_the_answer_ends_in_a_timeout():
    async def stuck(call):
        await call.body()
        await call.send(sized(HALF, len(BODY)))
        await call.gone()

    async with FakeAgent(stuck) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=0.2) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        await agent.until(lambda agent: agent.open_connections == 0)
    assert_failed(rollout, "timeout")
    assert "HTTP 200" in rollout.reason
    assert f"{len(HALF)} bytes so far" in rollout.reason


async def test_bytes_that_drip_are_no_silence():
    async def drip(call):
        await call.body()
        await call.send(sized(BODY[:-25], len(BODY)))
        for at in range(len(BODY) - 25, len(BODY)):
            await asyncio.sleep(0.05)
            await call.send(BODY[at : at + 1])

    async with FakeAgent(drip) as agent:
        began = time.monotonic()
        assert (await send(agent, run_timeout=1.0)).outcome == "ok"
        assert time.monotonic() - began > 1.0


async def test_the_deadline_ends_what_still_drips():
    async def drip(call):
        await call.body()
        await call.send(response(b"[", "transfer-encoding: chunked")[:-1])
        while True:
            await call.send(b"1\r\n[\r\n")
            await asyncio.sleep(0.01)

    async with FakeAgent(drip) as agent, turnloom.GymClient({"math": agent.url}, deadline=0.2) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        await agent.until(lambda agent: agent.open_connections == 0)
    assert_failed(rollout, "timeout")
    assert "the deadline of 0.2 s passed" in rollout.reason


async def deaf(call):
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("settings", [{"run_timeout": 0.3}, {"run_timeout": None, "deadline": 0.5}])
async def test_a_server_that_does_not_read_ends_in_a_timeout_and_keeps_no_socket(settings):
    async with FakeAgent(deaf) as agent, turnloom.GymClient({"math": agent.url}, **settings) as gym:
        rollout = await gym.run(BIG_ROW, **SAMPLING)
        assert agent.open_connections == 1
        await until_closed(agent)
    assert_failed(rollout, "timeout")
    assert "while the row was sent" in rollout.reason


async def test_a_server_that_reads_slowly_is_not_silent():
    async def slow(call):
        for _ in range(10):
            await call.read(2_000_000)
            await asyncio.sleep(0.1)
        await call.body()
        await call.send(sized(BODY))

    async with FakeAgent(slow) as agent:
        assert (await send(agent, BIG_ROW, run_timeout=0.8)).outcome == "ok"


async def test_cancelling_while_the_row_is_sent_keeps_no_socket():
    async with FakeAgent(deaf) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = asyncio.create_task(gym.run(BIG_ROW, **SAMPLING))
        await agent.until(lambda agent: len(agent.calls) == 1)
        await until_no_byte_moves(gym)
        assert client_sockets(agent) == 1
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        await until_closed(agent)


async def test_closing_the_client_while_a_row_is_sent_does_not_wait_for_the_server():
    async with FakeAgent(deaf) as agent:
        async with turnloom.GymClient({"math": agent.url}) as gym:
            rollout = asyncio.create_task(gym.run(BIG_ROW, **SAMPLING))
            await agent.until(lambda agent: len(agent.calls) == 1)
            await until_no_byte_moves(gym)
        assert_failed(await rollout, "disconnected")
        await until_closed(agent)


async def test_an_error_that_comes_before_the_row_is_read_is_heard():
    error = sized(b"too large").replace(b"200 OK", b"413 Payload Too Large")
    sending = asyncio.Event()

    async def refuse(call):
        await sending.wait()
        await call.send(error)
        await deaf(call)

    async with FakeAgent(refuse) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = asyncio.create_task(gym.run(BIG_ROW, **SAMPLING))
        await agent.until(lambda agent: len(agent.calls) == 1)
        await until_no_byte_moves(gym)
        sending.set()
        assert_failed(await rollout, "http_error")
        await until_closed(agent)
    assert (rollout.result().error.status, rollout.result().error.body) == (413, "too large")


async def test_a_rollout_that_has_ended_leaves_no_timer_behind():
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=1000.0) as gym:
        assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
        loop = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() > loop.time() + 500] == []
