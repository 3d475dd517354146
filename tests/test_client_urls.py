"""The URLs of agent servers: what is taken, what is refused at once, and what only sending finds out."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

import turnloom
from one_row import ANSWER, ROW, SAMPLING, assert_failed, send
from turnloom._client import _backoff
from turnloom.testing import FakeAgent

REFUSED = [
    None,
    b"http://127.0.0.1:8001",
    "",
    "127.0.0.1:8001",
    "localhost",
    "ftp://127.0.0.1",
    "http://",
    "http://:8001",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:0",
    "http://127.0.0.1:http",
    "http://[::1",
    "http://[::zz]:8001",
    "http://a[::1]",
    "http://[::1]a:8001",
    "http://127.0.0.256",
    "http://a..b",
    "http://.a",
    "http://.",
    "http://" + "a" * 64 + ".example",
    "http://" + "a." * 127 + "ab",
    "http://xn--a.example",
    "http://XN--A.example",
    "http://\N{GRINNING FACE}.example",
    "http://a b",
    "http://a/b c",
    "http://a%20b",
    "http://a,b",
    "http://a/\n",
    " http://a",
    "http://a/\0",
    "http://a\\b",
    "http://127.0.0.1:8001\\@x",
    "http://me\\@x",
    "http://a/\ud800",
    "http://\ud800@a",
]

NAMES_REFUSED = ["", None, 5, "a\nb", "\x1b[31m", "\ud800", "\u202ea", ("a",)]

TAKEN = [
    "http://127.0.0.1:8001",
    "https://127.0.0.1",
    "http://[::1]:8001",
    "http://localhost:8001/",
    "http://gym",
    "http://gym_math-1.cluster.local.:8001/a/b?c=d%20e",
    "HTTP://GYM:8001",
    "http://me:secret@gym:8001",
    "http://" + "a" * 63 + ".example",
    "http://m\xfcnchen.example",
    "http://xn--mnchen-3ya.example",
    "http://a/m\xfcnchen",
]


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_no_url_of_a_server_is_refused_at_once(url):
    with pytest.raises(turnloom.ConfigError, match="'math'"):
        turnloom.GymClient({"math": url})


@pytest.mark.parametrize("agent_servers", [{}, None, ["http://127.0.0.1:1"], "http://127.0.0.1:1"])
def test_agent_servers_are_urls_by_name(agent_servers):
    with pytest.raises(turnloom.ConfigError, match="agent_servers"):
        turnloom.GymClient(agent_servers)


@pytest.mark.parametrize("name", NAMES_REFUSED)
def test_the_name_of_an_agent_is_printable_text(name):
    with pytest.raises(turnloom.ConfigError, match="no name of an agent"):
        turnloom.GymClient({name: "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ([], "empty"),
        (["http://a", 3], "3 is no URL"),
        (["http://a", "b"], "'b' is no URL"),
        (["http://a", ["http://b"]], "is no URL"),
        (["http://a", "http://b", "http://a"], "named twice"),
        (["http://a:80", "http://me:secret@a:80/"], "named twice"),
        (3, "neither a URL nor a list"),
        ({"http://a"}, "neither a URL nor a list"),
        ({"url": "http://a"}, "neither a URL nor a list"),
    ],
)
def test_an_agent_with_servers_that_are_none_is_refused_at_once(servers, said):
    with pytest.raises(turnloom.ConfigError, match="'code'") as caught:
        turnloom.GymClient({"math": "http://a", "code": servers})
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_two_agents_may_have_one_server():
    turnloom.GymClient({"math": "http://a", "code": ["http://a", "http://b"]})


@pytest.mark.parametrize("url", TAKEN)
async def test_what_is_taken_can_be_sent_to(monkeypatch, url):
    asked: list[str] = []

    async def no_address(host, *_, **__):
        host.encode("idna")  # as the real one does
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def no_connection(*_, **__):
        asked.append("address")
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(_backoff, "MAX_TRIES", 1)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", no_connection)
    rollout = await send(url)
    assert_failed(rollout, "unreachable")
    assert len(asked) == 1, rollout.reason


async def test_a_host_that_cannot_be_encoded_is_unreachable(monkeypatch):
    async def too_long(host, *_, **__):
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", too_long)
    rollout = await send("http://agents.example:8001")
    assert_failed(rollout, "unreachable")
    assert "UnicodeError: label empty or too long" in rollout.reason


async def test_after_the_row_was_sent_such_an_error_is_a_bug_and_sends_nothing_again():
    asked = 0

    class Wrong(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal asked
            asked += 1
            await request.aread()
            raise UnicodeError("a bug")

    async with turnloom.GymClient({"math": "http://gym"}, transport=Wrong()) as gym:
        with pytest.raises(UnicodeError, match="a bug"):
            await gym.run(ROW, **SAMPLING)
    assert asked == 1


async def test_a_url_may_have_a_path_and_a_slash_at_its_end():
    async with FakeAgent(ANSWER) as agent:
        assert (await send(agent.url + "/")).outcome == "ok"
        lost = await send(agent.url + "/gym/math")
    assert lost.error.status == 404
    assert f"{agent.url}/gym/math/run" in lost.reason


async def test_a_password_in_the_url_is_sent_and_never_told():
    async with FakeAgent({"reward": 1.0}) as agent:
        rollout = await send(agent.url.replace("http://", "http://me:s%40cret@"))
        assert agent.calls[0].headers["authorization"] == "Basic bWU6c0BjcmV0"
    assert rollout.outcome == "agent_failure"
    assert "cret" not in rollout.reason
    assert "127.0.0.1" in rollout.reason
