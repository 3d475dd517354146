"""Answers that are cut, wrong or odd, and errors of the server."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

import turnloom
from one_row import ANSWER, BODY, ROW, SAMPLING, assert_failed, chunked, response, send, sized
from turnloom.testing import FakeAgent

# --- Answers that are cut, wrong, or odd ---


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
    "1000 headers": (sized(BODY, None, *(f"x-{number}: y" for number in range(1000))), "ok"),
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
    "a reason that is no text": (sized(BODY).replace(b" OK", b" \xff\xfe", 1), "ok"),
    "no reason": (sized(BODY).replace(b" OK", b"", 1), "ok"),
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


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (201, "only a 200"),
        (302, "a redirect"),
        (304, "not modified"),
        (305, "only a 200"),
        (404, "not the URL of an agent"),
        (422, "this row"),
        (500, "reports an error"),
    ],
)
async def test_a_reason_says_what_a_status_means(status, said):
    async def refuse(call):
        await call.answer(b"", status=status)

    async with FakeAgent(refuse) as agent:
        assert said in (await send(agent)).reason


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


async def test_a_body_larger_than_allowed_is_malformed():
    async with FakeAgent(ANSWER) as agent:
        assert (await send(agent, max_body_bytes=len(BODY))).outcome == "ok"
        rollout = await send(agent, max_body_bytes=100)
    assert_failed(rollout, "malformed")
    assert "max_body_bytes=100" in rollout.reason
