"""One row, its answer, and what holds of every rollout that has none: shared by the tests of the client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import socket
import stat
from collections.abc import Iterator

import pytest

import turnloom
from turnloom.testing import gym_answer

ROW = {"id": 7, "responses_create_params": {"input": "2 + 2?"}}
SAMPLING = {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0}
ANSWER = gym_answer(ROW, turns=[([1, 2], [3, 4], [-0.5, -0.25])])
BODY = json.dumps(ANSWER).encode()
BIG_ROW = {"id": 7, "responses_create_params": {"input": "x" * 20_000_000}}  # beyond what kernels buffer

ERRORS = {
    "http_error": turnloom.AgentHTTPError,
    "timeout": turnloom.AgentTimeout,
    "unreachable": turnloom.AgentUnreachable,
    "disconnected": turnloom.AgentDisconnected,
    "malformed": turnloom.MalformedBody,
}


def closed_port() -> int:
    """A port of this machine that takes no connection; a server may come up on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def send(agent, row=ROW, **settings) -> turnloom.Rollout:
    url = agent if isinstance(agent, str) else agent.url
    async with turnloom.GymClient({"math": url}, **settings) as gym:
        return await gym.run(row, **SAMPLING)


async def until_no_byte_moves(gym: turnloom.GymClient) -> None:
    """Until the server, or a full buffer, lets nothing more through."""
    before = -1.0
    while gym._descriptors.byte_moved_at != before:
        before = gym._descriptors.byte_moved_at
        await asyncio.sleep(0.1)


def assert_failed(rollout: turnloom.Rollout, outcome: str) -> None:
    """What holds of every rollout without a sound answer."""
    assert rollout.outcome == outcome, rollout.reason
    assert type(rollout.error) is ERRORS[outcome]
    assert str(rollout.error) == rollout.reason
    assert rollout.error.__traceback__ is None
    assert "'math' (http" in rollout.reason
    assert "id=7" in rollout.reason
    assert (rollout.reward, rollout.rows, rollout.turns, rollout.output, rollout.metrics) == (None, (), (), [], {})
    with pytest.raises(ERRORS[outcome]):
        rollout.raise_for_outcome()
    again = pickle.loads(pickle.dumps(rollout.error))
    assert (type(again), str(again), vars(again)) == (type(rollout.error), str(rollout.error), vars(rollout.error))


def response(body: bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return response(body + end, "transfer-encoding: chunked")


def sized(body: bytes, size: int | None = None, *headers: str) -> bytes:
    return response(body, f"content-length: {len(body) if size is None else size}", *headers)


def own_sockets() -> Iterator[socket.socket]:
    """A copy of each socket of this process, which is closed behind its use."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # one that is closed by now, such as the folder's own
            if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                with socket.socket(fileno=os.dup(int(number))) as copy:
                    yield copy
