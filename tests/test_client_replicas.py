"""Several servers per agent: which one a rollout goes to, and what becomes of those that take no connection."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

import turnloom
from one_row import ANSWER, ROW, SAMPLING, assert_failed, closed_port, response
from turnloom._client import _backoff, _transport
from turnloom._client._replicas import Attempt, Replicas
from turnloom._client._urls import server_urls
from turnloom.testing import FakeAgent


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def attempts(monkeypatch) -> Counter[int]:
    """How many connections were attempted, by port."""
    counted: Counter[int] = Counter()
    new_socket = _transport._new_socket

    def count(address):
        counted[address[4][1]] += 1
        return new_socket(address)

    monkeypatch.setattr(_transport, "_new_socket", count)
    return counted


class Held:
    """Answers when it is told to, and not before; each connection is for one answer."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(0)

    async def __call__(self, call) -> None:
        await call.body()
        await self._turns.acquire()
        await call.answer(ANSWER, headers={"connection": "close"})

    def answer(self, count: int) -> None:
        for _ in range(count):
            self._turns.release()


def dead_url() -> str:
    return f"http://127.0.0.1:{closed_port()}"


def start(gym: turnloom.GymClient, count: int) -> list[asyncio.Task[turnloom.Rollout]]:
    return [asyncio.create_task(gym.run(ROW, **SAMPLING)) for _ in range(count)]


async def outcomes(rollouts) -> Counter[str]:
    return Counter(rollout.outcome for rollout in await asyncio.gather(*rollouts))


async def until_queued(gym: turnloom.GymClient, count: int) -> None:
    for _ in range(10_000):
        if gym.agents["math"].queued >= count:
            return
        await asyncio.sleep(0)
    raise AssertionError(gym.agents)


def put_aside(gym: turnloom.GymClient) -> list[bool]:
    return [replica.put_aside for replica in gym.agents["math"].replicas]


def log_lines(caplog) -> tuple[int, int]:
    """How often a server was said to be put aside, and to be back."""
    told = [record.getMessage() for record in caplog.records]
    return sum("put aside" in line for line in told), sum("connections again" in line for line in told)


# --- Which one ---


async def test_a_rollout_goes_to_the_server_with_the_fewest_in_flight():
    one_held, two_held = Held(), Held()
    async with FakeAgent(one_held) as one, FakeAgent(two_held) as two:
        async with turnloom.GymClient({"math": [one.url, two.url]}) as gym:
            rollouts = start(gym, 6)
            await one.until(lambda agent: len(agent.calls) == 3)
            await two.until(lambda agent: len(agent.calls) == 3)
            assert [replica.in_flight for replica in gym.agents["math"].replicas] == [3, 3]
            two_held.answer(2)
            done, _ = await asyncio.wait(rollouts, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 2:
                done, _ = await asyncio.wait(rollouts, timeout=0.01)
            rollouts += start(gym, 2)
            await two.until(lambda agent: len(agent.calls) == 5)
            assert len(one.calls) == 3
            one_held.answer(10)
            two_held.answer(10)
            assert await outcomes(rollouts) == {"ok": 8}
        assert Counter(rollout.result().server for rollout in rollouts) == {one.url: 3, two.url: 5}


async def test_of_servers_with_as_many_in_flight_each_has_its_turn():
    async with FakeAgent(ANSWER) as one, FakeAgent(ANSWER) as two, FakeAgent(ANSWER) as three:
        async with turnloom.GymClient({"math": (one.url, two.url, three.url)}) as gym:
            for _ in range(6):
                assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
        assert [len(agent.calls) for agent in (one, two, three)] == [2, 2, 2]


# --- A server that takes no connection ---


async def test_the_rollouts_of_a_server_that_refuses_go_to_the_others(caplog):
    async with FakeAgent(ANSWER) as up:
        dead = dead_url()
        async with turnloom.GymClient({"math": [dead, up.url]}) as gym:
            rollouts = await asyncio.gather(*start(gym, 100))
            assert put_aside(gym) == [True, False]
        assert len(up.calls) == 100
    assert {(rollout.outcome, rollout.server) for rollout in rollouts} == {("ok", up.url)}
    assert log_lines(caplog) == (1, 0)
    [line] = [record.getMessage() for record in caplog.records if "put aside" in record.getMessage()]
    assert dead in line
    assert "'math'" in line
    assert "Connect call failed" in line
    assert "1 other:" in line


async def test_a_server_put_aside_is_probed_by_few_whatever_the_number_of_rollouts(attempts, monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)
    monkeypatch.setattr(_backoff, "MAX_PAUSE_S", 60)
    async with FakeAgent(ANSWER) as up:
        port = closed_port()
        async with turnloom.GymClient({"math": [f"http://127.0.0.1:{port}", up.url]}) as gym:
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            assert await outcomes(start(gym, 200)) == {"ok": 200}
    assert attempts[port] == 1


async def test_a_server_that_stays_away_is_probed_ever_less(attempts, monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.05)
    async with FakeAgent(ANSWER) as up:
        port = closed_port()
        async with turnloom.GymClient({"math": [f"http://127.0.0.1:{port}", up.url]}) as gym:
            began = time.monotonic()
            while attempts[port] < 5:
                assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            elapsed = time.monotonic() - began
    shortest = _backoff.FIRST_PAUSE_S / 2
    assert elapsed >= shortest * (1 + 2 + 4 + 8)


async def test_a_server_that_is_back_is_used_again(caplog):
    async with FakeAgent(ANSWER) as up:
        port = closed_port()
        async with turnloom.GymClient({"math": [f"http://127.0.0.1:{port}", up.url]}) as gym:
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            assert put_aside(gym) == [True, False]
            async with FakeAgent(ANSWER, port=port) as back, asyncio.timeout(10):
                while not back.calls:
                    assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
                assert put_aside(gym) == [False, False]
                before = len(back.calls), len(up.calls)
                assert await outcomes(start(gym, 20)) == {"ok": 20}
                assert (len(back.calls), len(up.calls)) == (before[0] + 10, before[1] + 10)
    assert log_lines(caplog) == (1, 1)


async def test_a_server_that_loses_rollouts_is_not_put_aside_and_nothing_is_sent_twice():
    async def reset(call):
        await call.body()
        call.reset()

    async def silent(call):
        await call.body()
        await call.gone()

    async def refuse(call):
        await call.body()
        await call.send(response(b"", "content-length: 0", status="503 Service Unavailable"))

    for lossy, lost in ((reset, "disconnected"), (silent, "timeout"), (refuse, "http_error")):
        async with FakeAgent(lossy) as bad, FakeAgent(ANSWER) as good:
            run_timeout = 1.0 if lossy is silent else 30.0
            async with turnloom.GymClient({"math": [bad.url, good.url]}, run_timeout=run_timeout) as gym:
                assert await outcomes(start(gym, 4)) == {lost: 2, "ok": 2}
                assert put_aside(gym) == [False, False]
            assert len(bad.calls) == len(good.calls) == 2


# --- No server that takes connections ---


async def test_rollouts_wait_for_a_server_and_one_connection_ends_the_wait_of_all(attempts, caplog, monkeypatch):
    monkeypatch.setattr(_backoff, "MAX_TRIES", 1000)
    everyone = asyncio.Barrier(50)

    async def together(call):
        await call.body()
        await everyone.wait()  # no answer comes before all have been sent
        await call.answer(ANSWER)

    port = closed_port()
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{port}"}, run_timeout=30) as gym:
        rollouts = start(gym, 50)
        await until_queued(gym, 1)
        async with FakeAgent(together, port=port) as agent:
            assert await outcomes(rollouts) == {"ok": 50}
            assert len(agent.calls) == 50
        assert gym.agents["math"] == turnloom.AgentState(
            0, 0, 0.0, (turnloom.ReplicaState(f"http://127.0.0.1:{port}", 0, False),)
        )
        failed_probes = gym._agents["math"].replicas.failures - 1
    assert attempts[port] == 50 + failed_probes + 50
    assert log_lines(caplog) == (1, 1)


async def test_a_rollout_is_unreachable_after_some_failed_tries_its_own_or_others(attempts, caplog):
    port = closed_port()
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{port}"}) as gym:
        assert await outcomes(start(gym, 200)) == {"unreachable": 200}
        assert attempts[port] == 200 + _backoff.MAX_TRIES - 1  # all at once, and then one at a time
        attempts.clear()
        rollouts = await asyncio.gather(*start(gym, 200))  # known to be down, now
        assert attempts[port] == _backoff.MAX_TRIES
    for rollout in rollouts:
        assert_failed(rollout, "unreachable")
        assert f"{_backoff.MAX_TRIES} tries" in rollout.reason
        assert "Connect call failed" in rollout.reason
    assert {rollout.server for rollout in rollouts} == {None, f"http://127.0.0.1:{port}"}
    assert log_lines(caplog) == (1, 0)


async def test_many_dead_servers_are_all_tried_and_do_not_shorten_the_wait(attempts):
    urls = [dead_url() for _ in range(5)]
    async with turnloom.GymClient({"math": urls}) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        assert gym._agents["math"].replicas.failures == _backoff.MAX_TRIES
    assert_failed(rollout, "unreachable")
    assert len(attempts) == len(urls)


@pytest.mark.parametrize("steps", range(8))
async def test_who_is_cancelled_leaves_the_probe_to_another(steps, attempts):
    port = closed_port()
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{port}"}, run_timeout=30) as gym:
        first, second, third = start(gym, 3)
        await until_queued(gym, 3)
        for _ in range(steps):
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        async with FakeAgent(ANSWER, port=port), asyncio.timeout(10):
            assert (await third).outcome in ("ok", "unreachable")
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"


async def test_cancelled_probes_do_not_make_the_next_come_sooner(attempts, monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.2)
    port = closed_port()
    connecting = asyncio.Event()

    async def hang(*_):
        connecting.set()
        await asyncio.get_running_loop().create_future()

    async with turnloom.GymClient({"math": f"http://127.0.0.1:{port}"}) as gym:
        rollouts = start(gym, 30)
        await until_queued(gym, 30)
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", hang)
        monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)  # for the pause after the probe that comes now
        monkeypatch.setattr(_backoff, "MAX_PAUSE_S", 60)
        attempts.clear()
        await connecting.wait()
        for rollout in rollouts:
            rollout.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        await asyncio.wait(rollouts)
    assert attempts[port] == 1


async def test_the_deadline_holds_while_no_server_takes_connections(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 60)
    monkeypatch.setattr(_backoff, "MAX_PAUSE_S", 60)
    async with turnloom.GymClient({"math": dead_url()}, deadline=0.5) as gym:
        tried = await gym.run(ROW, **SAMPLING)
        waited = await gym.run(ROW, **SAMPLING)
    for rollout, said in ((tried, "try 1, no connection yet after"), (waited, "not sent yet after")):
        assert_failed(rollout, "timeout")
        assert f"the deadline of 0.5 s passed ({said} ClientConnectorError" in rollout.reason


async def test_answers_from_before_an_outage_do_not_lengthen_it(attempts):
    """A server that ends no longer listens, and still finishes what it has."""
    held = Held()
    async with FakeAgent(held) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=30) as gym:
        earlier = start(gym, 20)
        await agent.until(lambda agent: len(agent.calls) == 20)
        agent._server.close()
        [later] = start(gym, 1)

        async def one_by_one():
            while True:
                held.answer(1)
                await asyncio.sleep(0.005)

        answers = asyncio.create_task(one_by_one())
        assert_failed(await later, "unreachable")
        answers.cancel()
        held.answer(20)
        assert await outcomes(earlier) == {"ok": 20}
    assert attempts[int(agent.url.rpartition(":")[2])] == 20 + _backoff.MAX_TRIES


async def test_failed_tries_of_an_earlier_outage_do_not_count():
    """For a rollout that was in the queue all the while."""
    replicas = Replicas("math", server_urls({"math": dead_url()})["math"])

    async def attempt() -> Attempt:
        found = await replicas.attempt(failures_before=0)
        assert found is not None
        return found

    for _ in range(_backoff.MAX_TRIES - 1):
        with await attempt() as failed:
            failed.refused("no connection")
    with await attempt() as delivered:
        delivered.delivered()
    for _ in range(_backoff.MAX_TRIES):
        with await attempt() as failed:
            failed.refused("no connection")
    assert await replicas.attempt(failures_before=0) is None
