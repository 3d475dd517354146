"""Rows that are not delivered: what is sent again, how often, and what becomes of it."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
import time

import pytest

import turnloom
from one_row import ANSWER, ROW, SAMPLING, assert_failed, closed_port, send
from turnloom._client import _backoff, _transport
from turnloom.testing import FakeAgent


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.01)


async def test_a_refused_row_is_sent_again_until_it_is_taken():
    port = closed_port()
    pauses = 0

    async with FakeAgent(ANSWER) as agent:

        class Late(_transport.AgentTransport):
            """An agent that is not up yet when it is first asked."""

            async def handle_async_request(self, request):
                nonlocal pauses
                if pauses < 2:
                    pauses += 1
                    request.url = request.url.copy_with(port=port)
                else:
                    request.url = request.url.copy_with(port=int(agent.url.rpartition(":")[2]))
                return await super().handle_async_request(request)

        assert (await send(agent, transport=Late(trust_env=False))).outcome == "ok"
        assert len(agent.calls) == 1
    assert pauses == 2


async def test_a_refused_row_is_given_up_after_some_tries():
    rollout = await send(f"http://127.0.0.1:{closed_port()}")
    assert_failed(rollout, "unreachable")
    assert f"{_backoff.MAX_TRIES} tries" in rollout.reason
    assert "Connect call failed" in rollout.reason


async def test_a_failed_tls_handshake_is_never_delivered_and_tried_again():
    connections = 0

    async def not_tls(reader, writer):
        nonlocal connections
        connections += 1
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(not_tls, "127.0.0.1", 0) as server:
        rollout = await send(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert_failed(rollout, "unreachable")
    assert connections == _backoff.MAX_TRIES


async def test_a_host_that_has_no_address_is_unreachable(monkeypatch):
    asked: list[str] = []

    async def no_address(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    assert_failed(await send("http://agents.example:8001"), "unreachable")
    assert asked == ["agents.example"] * _backoff.MAX_TRIES


@pytest.mark.parametrize("hang", ["getaddrinfo", "connect", "tls"])
async def test_connecting_is_bounded_and_counts_as_never_delivered(monkeypatch, hang):
    async def forever(*_, **__):
        await asyncio.get_running_loop().create_future()

    with socket.socket() as full, socket.socket() as filler:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        url = f"{'https' if hang == 'tls' else 'http'}://127.0.0.1:{port}"
        if hang == "connect":  # the kernel answers no further connection once its queue is full
            filler.connect(("127.0.0.1", port))
        elif hang == "getaddrinfo":
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", forever)
            url = "http://agents.example"
        began = time.monotonic()
        rollout = await send(url, run_timeout=0.1)
    assert_failed(rollout, "unreachable")
    assert "Connection timeout" in rollout.reason
    assert 0.1 * _backoff.MAX_TRIES <= time.monotonic() - began < 5


async def test_the_deadline_holds_between_tries(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)
    rollout = await send(f"http://127.0.0.1:{closed_port()}", deadline=0.2)
    assert_failed(rollout, "timeout")
    assert "the deadline of 0.2 s passed" in rollout.reason
    assert "Connect call failed" in rollout.reason


async def test_cancelling_holds_between_tries(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)
    paused = asyncio.Event()
    real_pause = _backoff.pause

    def pause(failures):
        paused.set()
        return real_pause(failures)

    monkeypatch.setattr(_backoff, "pause", pause)
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{closed_port()}"}) as gym:
        rollout = asyncio.create_task(gym.run(ROW, **SAMPLING))
        await paused.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout


def test_pauses_grow_are_spread_and_are_bounded(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.5)
    for failures, middle in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (9, 4.0), (10_000, 4.0)):
        pauses = [_backoff.pause(failures) for _ in range(200)]
        assert middle * 0.5 <= min(pauses) < middle < max(pauses) <= middle * 1.5


async def test_an_agent_that_was_down_is_used_as_soon_as_it_is_up():
    port = closed_port()
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{port}"}) as gym:
        rollouts = await asyncio.gather(*(gym.run(ROW, **SAMPLING) for _ in range(20)))
        assert {rollout.outcome for rollout in rollouts} == {"unreachable"}
        async with FakeAgent(ANSWER, port=port) as agent:
            rollouts = await asyncio.gather(*(gym.run(ROW, **SAMPLING) for _ in range(20)))
            assert {rollout.outcome for rollout in rollouts} == {"ok"}
            assert len(agent.calls) == 20


# --- File descriptors ---


def no_descriptor(times: float, monkeypatch) -> list[int]:
    """Let the first `times` sockets fail; gives the list of those that did."""
    failed: list[int] = []
    new_socket = _transport._new_socket

    def socket_or_not(address):
        if len(failed) < times:
            failed.append(errno.EMFILE)
            raise OSError(errno.EMFILE, "Too many open files")
        return new_socket(address)

    monkeypatch.setattr(_transport, "_new_socket", socket_or_not)
    return failed


async def test_without_a_file_descriptor_a_rollout_waits_for_one(monkeypatch, caplog):
    failed = no_descriptor(20, monkeypatch)
    async with FakeAgent(ANSWER) as agent:
        assert (await send(agent)).outcome == "ok"
        assert len(agent.calls) == 1
    assert len(failed) == 20 > _backoff.MAX_TRIES
    assert [record.levelname for record in caplog.records if "ulimit" in record.message] == ["WARNING"]


async def test_waiting_for_a_file_descriptor_is_not_counted_by_the_deadline(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.05)
    no_descriptor(20, monkeypatch)
    async with FakeAgent(ANSWER) as agent:
        began = time.monotonic()
        assert (await send(agent, deadline=0.5)).outcome == "ok"
        assert time.monotonic() - began > 0.5


async def test_waiting_for_a_file_descriptor_ends_when_nothing_moves_for_run_timeout(monkeypatch):
    no_descriptor(float("inf"), monkeypatch)
    async with FakeAgent(ANSWER) as agent:
        rollout = await send(agent, run_timeout=0.2)
        assert agent.connections == 0
    assert_failed(rollout, "unreachable")
    assert "Too many open files" in rollout.reason


MANY_ON_FEW = """
import asyncio, collections, resource, sys
import turnloom
from turnloom._client import _backoff
_backoff.FIRST_PAUSE_S = 0.02
row = {"id": 7, "responses_create_params": {"input": "?"}}
async def main():
    async with turnloom.GymClient({"math": sys.argv[1]}, run_timeout=20) as gym:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        run = lambda: gym.run(row, max_tokens=1, temperature=1.0, top_p=1.0)
        rollouts = await asyncio.gather(*(run() for _ in range(100)))
    print(dict(collections.Counter(rollout.outcome for rollout in rollouts)))
    print(*{rollout.reason for rollout in rollouts}, sep="\\n", file=sys.stderr)
asyncio.run(main())
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_100_rollouts_on_20_file_descriptors_all_end_well(host):
    async with FakeAgent(ANSWER) as agent:
        url = agent.url.replace("127.0.0.1", host)
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MANY_ON_FEW, url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await client.communicate()
        assert len(agent.calls) == 100, err.decode()
    assert out.decode().strip() == "{'ok': 100}", err.decode()
