"""Every way in which an agent, or the network before it, can let a rollout down."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import os
import pickle
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

import turnloom
from turnloom import _client
from turnloom._client import _transport
from turnloom.testing import FakeAgent, gym_answer

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


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(_client, "FIRST_PAUSE_S", 0.01)


async def send(agent, row=ROW, **settings) -> turnloom.Rollout:
    url = agent if isinstance(agent, str) else agent.url
    async with turnloom.GymClient({"math": url}, **settings) as gym:
        return await gym.run(row, **SAMPLING)


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


# --- Answers that are cut, wrong, or odd ---


def response(body: bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return response(body + end, "transfer-encoding: chunked")


def sized(body: bytes, size: int | None = None, *headers: str) -> bytes:
    return response(body, f"content-length: {len(body) if size is None else size}", *headers)


HALF = BODY[: len(BODY) // 2]
ZIPPED = gzip.compress(BODY)
COOKIE = "set-cookie: session=" + "c" * 100_000

THEN_CLOSED = {
    "a whole body": (sized(BODY), "ok"),
    "chunks": (chunked(HALF, BODY[len(HALF) :]), "ok"),
    "a byte per chunk": (chunked(*(BODY[at : at + 1] for at in range(len(BODY)))), "ok"),
    "a body that ends with the connection": (response(BODY), "ok"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, "ok"),
    "100 Continue before it": (b"HTTP/1.1 100 Continue\r\n\r\n" + sized(BODY), "ok"),
    "103 Early Hints before it": (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + sized(BODY), "ok"),
    "a cookie of 100 KB": (sized(BODY, None, COOKIE), "ok"),
    "gzip": (sized(ZIPPED, None, "content-encoding: gzip"), "ok"),
    "deflate": (sized(zlib.compress(BODY), None, "content-encoding: deflate"), "ok"),
    "white space around": (sized(b"\r\n " + BODY + b" \n"), "ok"),
    "nothing": (b"", "disconnected"),
    "half a status line": (b"HTTP/1.1 20", "disconnected"),
    "half the headers": (b"HTTP/1.1 200 OK\r\ncontent-le", "disconnected"),
    "headers alone": (sized(b"", 100), "disconnected"),
    "half a body": (sized(HALF, len(BODY)), "disconnected"),
    "a body shorter than said, though it is a whole document": (sized(BODY, len(BODY) + 1), "disconnected"),
    "half a chunk": (chunked(BODY, end=b"")[: -len(HALF)], "disconnected"),
    "no last chunk": (chunked(HALF, end=b""), "disconnected"),
    "no last chunk, though it is a whole document": (chunked(BODY, end=b""), "disconnected"),
    "half a body that ends with the connection": (response(HALF), "disconnected"),
    "half of gzip": (sized(ZIPPED[:40], len(ZIPPED), "content-encoding: gzip"), "disconnected"),
    "a bad status line": (b"ICY 200 OK\r\n\r\n" + BODY, "disconnected"),
    "a status that is none": (b"HTTP/1.1 twohundred OK\r\n\r\n" + BODY, "disconnected"),
    "no HTTP at all": (b"\x16\x03\x01\x00\x05hello\r\n\r\n", "disconnected"),
    "a bad header": (response(BODY, "bad header"), "disconnected"),
    "a bad content-length": (response(BODY, "content-length: many"), "disconnected"),
    "two content-lengths": (response(BODY, "content-length: 1", "content-length: 2"), "disconnected"),
    "a header of 2 MB": (sized(BODY, None, "set-cookie: " + "c" * 2_000_000), "disconnected"),
    "a bad chunk size": (chunked(HALF, end=b"xyz\r\n"), "disconnected"),
    "a body that goes on after its end": (sized(BODY, len(HALF)), "disconnected"),
    "half a body as if it were all": (sized(HALF), "malformed"),
    "a line end after the body": (sized(BODY) + b"\n", "ok"),
    "a CRLF after the body": (sized(BODY) + b"\r\n", "ok"),
    "a last chunk too soon": (chunked(HALF), "malformed"),
    "an empty body": (sized(b""), "malformed"),
    "HTML": (sized(b"<html><body>Welcome to nginx</body></html>"), "malformed"),
    "two documents": (sized(BODY + BODY), "malformed"),
    "gzip that is none": (sized(BODY, None, "content-encoding: gzip"), "malformed"),
    "broken gzip": (sized(ZIPPED[:40] + b"\0" * 40, None, "content-encoding: gzip"), "malformed"),
    "half of gzip as if it were all": (sized(ZIPPED[:40], None, "content-encoding: gzip"), "malformed"),
    "an encoding that nobody asked for": (sized(b"\x8b\x02\x80", None, "content-encoding: br"), "malformed"),
    "no content": (response(b"", status="204 No Content"), "http_error"),
    "a redirect": (response(b"", "location: /run", "content-length: 0", status="307 Temporary Redirect"), "http_error"),
    "a status of its own": (response(b"", "content-length: 0", status="299 Odd"), "http_error"),
    "half an error": (response(b"los", "content-length: 9", status="500 Internal Server Error"), "http_error"),
    "an error in bad gzip": (
        response(b"lost", "content-length: 4", "content-encoding: gzip", status="502 Bad Gateway"),
        "http_error",
    ),
}


@pytest.mark.parametrize(("sent", "outcome"), THEN_CLOSED.values(), ids=THEN_CLOSED)
async def test_whatever_is_sent_the_row_goes_out_once_and_the_connection_ends(sent, outcome):
    async def behave(call):
        await call.body()
        await call.send(sent)

    async with FakeAgent(behave) as agent:
        async with turnloom.GymClient({"math": agent.url}, run_timeout=10) as gym:
            rollout = await gym.run(ROW, **SAMPLING)
            await agent.until(lambda agent: agent.open_connections == 0)
        assert len(agent.calls) == agent.connections == 1
    if outcome == "ok":
        assert (rollout.outcome, rollout.reward) == ("ok", 1.0), rollout.reason
    else:
        assert_failed(rollout, outcome)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 20", sized(b"", 100), sized(HALF, len(BODY)), chunked(HALF, end=b"")])
async def test_a_reset_is_a_disconnection_at_any_place(sent):
    async def behave(call):
        await call.body()
        await call.send(sent)
        call.reset()

    async with FakeAgent(behave) as agent:
        assert_failed(await send(agent), "disconnected")
        assert len(agent.calls) == 1


async def test_an_answer_that_cannot_be_json_ends_the_connection_at_once():
    seen: list[int] = []

    async def behave(call):
        await call.body()
        await call.send(sized(b"<html>", 1_000_000_000))
        seen.append(await call.gone())

    async with FakeAgent(behave) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=None) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        await agent.until(lambda agent: agent.open_connections == 0)
    assert_failed(rollout, "malformed")
    assert rollout.error.offset == 0
    assert "<html>" in rollout.reason
    assert seen == [0]


# --- Errors of the server ---


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (405, {"detail": "Method Not Allowed"}),
        (422, {"detail": [{"type": "missing", "loc": ["body", "responses_create_params"], "msg": "Field required"}]}),
        (429, {"detail": "slow down"}),
        (500, "Hit an exception in SimpleAgent calling an inner server: b'\"...\"'"),
        (503, b"upstream connect error \xff\xfe"),
    ],
)
async def test_an_error_keeps_its_status_and_body_and_is_not_sent_again(status, body):
    async def refuse(call):
        await call.answer(body, status=status)

    async with FakeAgent(refuse) as agent:
        rollout = await send(agent)
        assert len(agent.calls) == 1
    assert_failed(rollout, "http_error")
    sent = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    assert rollout.error.status == status
    assert rollout.error.body == sent.decode("utf-8", "replace")
    assert (rollout.error.agent, rollout.error.url) == ("math", agent.url + "/run")
    assert f"HTTP {status}" in rollout.reason
    assert rollout.error.body[:20] in rollout.reason


async def test_of_a_long_error_the_beginning_is_kept_and_the_rest_not_read():
    sent = 0

    async def refuse(call):
        nonlocal sent
        await call.body()
        await call.send(response(b"", "content-length: 50000000", status="500 Internal Server Error"))
        for _ in range(50):
            await call.send(b"<p>" + b"x" * 999_997)
            sent += 1

    async with FakeAgent(refuse) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
        await agent.until(lambda agent: agent.open_connections == 0)
    assert_failed(rollout, "http_error")
    assert rollout.error.body == "<p>" + "x" * 1997
    assert len(rollout.reason) < 1000
    assert sent < 50


@pytest.mark.parametrize("settings", [{"run_timeout": 0.2}, {"deadline": 0.2}])
async def test_an_error_that_never_ends_is_the_error_that_it_began_as(settings):
    async def refuse(call):
        await call.body()
        await call.send(response(b"out of mem", "content-length: 100", status="500 Internal Server Error"))
        await call.gone()

    async with FakeAgent(refuse) as agent:
        rollout = await send(agent, **settings)
    assert_failed(rollout, "http_error")
    assert rollout.error.body == "out of mem"


async def test_a_redirect_is_not_followed():
    async with FakeAgent(ANSWER) as elsewhere:

        async def redirect(call):
            await call.answer(b"", status=307, headers={"location": elsewhere.url + "/run"})

        async with FakeAgent(redirect) as agent:
            rollout = await send(agent)
        assert elsewhere.connections == 0
    assert rollout.error.status == 307


async def test_the_real_gyms_errors():
    bodies = os.environ.get("TURNLOOM_BODIES")
    if not bodies:
        pytest.skip("set TURNLOOM_BODIES to the folder with NeMo Gym's recorded answers")
    folder = Path(bodies) / "real"
    known = {
        name: entry for name, entry in json.loads((folder / "index.json").read_text()).items() if entry["status"] != 200
    }
    assert known
    for name, entry in known.items():
        body = (folder / f"{name}.response.json").read_bytes()

        async def refuse(call, body=body, status=entry["status"]):
            await call.answer(body, status=status)

        async with FakeAgent(refuse) as agent:
            rollout = await send(agent)
        assert_failed(rollout, "http_error")
        assert (rollout.error.status, rollout.error.body) == (entry["status"], body[:2000].decode("utf-8", "replace"))


# --- Silence, and time that is up ---


def client_sockets(agent: FakeAgent) -> int:
    """How many sockets of this process lead to the agent."""
    port = int(agent.url.rpartition(":")[2])
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(number))) as copy:
            count += copy.getpeername()[1:2] == (port,)
    return count


async def until_no_byte_moves(gym: turnloom.GymClient) -> None:
    """Until buffers are full, and sending is stuck."""
    before = -1.0
    while gym._byte_moved_at != before:
        before = gym._byte_moved_at
        await asyncio.sleep(0.1)


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


# --- Rows that are not delivered ---


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def test_a_refused_row_is_sent_again_until_it_is_taken():
    port = unused_port()
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
    rollout = await send(f"http://127.0.0.1:{unused_port()}")
    assert_failed(rollout, "unreachable")
    assert f"(try {_client.MAX_TRIES})" in rollout.reason
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
    assert connections == _client.MAX_TRIES


async def test_a_host_that_has_no_address_is_unreachable(monkeypatch):
    asked: list[str] = []

    async def no_address(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    assert_failed(await send("http://agents.example:8001"), "unreachable")
    assert asked == ["agents.example"] * _client.MAX_TRIES


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
    assert 0.1 * _client.MAX_TRIES <= time.monotonic() - began < 5


async def test_the_deadline_holds_between_tries(monkeypatch):
    monkeypatch.setattr(_client, "FIRST_PAUSE_S", 60)
    rollout = await send(f"http://127.0.0.1:{unused_port()}", deadline=0.2)
    assert_failed(rollout, "timeout")
    assert "the deadline of 0.2 s passed" in rollout.reason
    assert "Connect call failed" in rollout.reason


async def test_cancelling_holds_between_tries(monkeypatch):
    monkeypatch.setattr(_client, "FIRST_PAUSE_S", 60)
    paused = asyncio.Event()
    real_pause = _client._pause

    def pause(tries):
        paused.set()
        return real_pause(tries)

    monkeypatch.setattr(_client, "_pause", pause)
    async with turnloom.GymClient({"math": f"http://127.0.0.1:{unused_port()}"}) as gym:
        rollout = asyncio.create_task(gym.run(ROW, **SAMPLING))
        await paused.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout


def test_pauses_grow_are_spread_and_are_bounded(monkeypatch):
    monkeypatch.setattr(_client, "FIRST_PAUSE_S", 0.5)
    for tries, middle in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (9, 4.0)):
        pauses = [_client._pause(tries) for _ in range(200)]
        assert middle * 0.5 <= min(pauses) < middle < max(pauses) <= middle * 1.5


async def test_an_agent_that_was_down_is_used_as_soon_as_it_is_up():
    port = unused_port()
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
    assert len(failed) == 20 > _client.MAX_TRIES
    assert [record.levelname for record in caplog.records if "ulimit" in record.message] == ["WARNING"]


async def test_waiting_for_a_file_descriptor_is_not_counted_by_the_deadline(monkeypatch):
    monkeypatch.setattr(_client, "FIRST_PAUSE_S", 0.05)
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
from turnloom import _client
_client.FIRST_PAUSE_S = 0.02
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
