"""The fake agent server that turnloom offers for tests."""

from __future__ import annotations

import asyncio
import doctest
import socket

import httpx
import pytest

import turnloom.testing
from turnloom.testing import FakeAgent, agent, gym_answer

ANSWER = gym_answer({"id": 7}, turns=[([1], [2], [-1.0])])
JSON = {"content-type": "application/json"}


def test_its_examples_run():
    failed, tried = doctest.testmod(agent)
    assert (failed, tried > 3) == (0, True)


def test_its_names_are_those_of_the_package():
    for name in turnloom.testing.__all__:
        assert name in turnloom.testing._MODULE_OF
    with pytest.raises(AttributeError, match="nothing"):
        _ = turnloom.testing.nothing


async def test_it_answers_as_nemo_gym_does():
    async with FakeAgent(ANSWER) as agent, httpx.AsyncClient(base_url=agent.url) as http:
        answer = await http.post("/run", json={"id": 7})
        assert (answer.status_code, answer.json()) == (200, ANSWER)
        assert "session" in answer.cookies
        assert (await http.post("/walk", json={})).json() == {"detail": "Not Found"}
        assert (await http.get("/run")).status_code == 405
        assert (await http.post("/run", content=b"{")).status_code == 500  # no content-type
        assert (await http.post("/run", content=b"{", headers=JSON)).status_code == 422
        assert [await call.body() for call in agent.calls] == [b'{"id":7}', b"{"]
        assert (agent.connections, agent.open_connections) == (1, 1)


async def test_a_behaviour_sees_the_call_and_chooses_the_answer():
    async def behave(call):
        assert await call.read(2) == b'{"'
        assert await call.body() == b'id":7}'
        await call.answer(b"[]", status=503, headers={"retry-after": "1"})

    async with FakeAgent(behave) as agent, httpx.AsyncClient() as http:
        answer = await http.post(agent.url + "/run", json={"id": 7})
    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (503, b"[]", "1")


async def test_it_can_reset_a_connection():
    async def behave(call):
        call.reset()

    async with FakeAgent(behave) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(agent.url.rpartition(":")[2]))
        writer.write(b"POST /run HTTP/1.1\r\ncontent-type: application/json\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_it_can_refuse_connections_for_a_while():
    async with FakeAgent(ANSWER) as agent, httpx.AsyncClient(base_url=agent.url) as http:
        assert (await http.post("/run", json={})).json() == ANSWER
        async with agent.refusing():
            last = await http.post("/run", json={})  # over the connection that there is
            assert (last.json(), last.headers["connection"]) == (ANSWER, "close")
            with pytest.raises(httpx.ConnectError):
                await http.post("/run", json={})
        assert (await http.post("/run", json={})).json() == ANSWER
        assert agent.connections == 2


async def test_connections_that_wait_when_it_begins_to_refuse_are_not_lost():
    async with FakeAgent(ANSWER) as agent:
        # Nothing is awaited before `refusing`: the connection is open to its client, and not accepted yet.
        with socket.create_connection(("127.0.0.1", int(agent.url.rpartition(":")[2]))) as waiting:
            waiting.sendall(b"POST /run HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            async with agent.refusing():
                await agent.until(lambda agent: len(agent.calls) == 1)
                assert (await asyncio.to_thread(waiting.recv, 12)) == b"HTTP/1.1 200"


async def mistaken(call):
    raise KeyError("a mistake of the test's own")


async def test_a_mistake_in_a_behaviour_comes_out_at_the_end():
    async def test():
        async with FakeAgent(mistaken) as agent, httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError):  # closed, or reset where the row was not read
                await http.post(agent.url + "/run", json={})

    with pytest.raises(KeyError):
        await test()


def test_in_a_thread_it_serves_and_tells_mistakes_too():
    with FakeAgent(ANSWER) as agent:
        assert httpx.post(agent.url + "/run", json={}).json() == ANSWER
    with pytest.raises(httpx.ConnectError):
        httpx.post(agent.url + "/run", json={})
    with (
        pytest.raises(KeyError),
        FakeAgent(mistaken) as agent,
        pytest.raises(httpx.TransportError),
    ):  # closed, or reset where the row was not read
        httpx.post(agent.url + "/run", json={})


def test_in_a_thread_a_port_that_is_taken_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"), FakeAgent(ANSWER, port=taken.getsockname()[1]):
            pass
