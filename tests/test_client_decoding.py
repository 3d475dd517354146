"""Answers that are compressed unasked: never more in memory than an answer that is not, and the loop stays free."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import httpx
import pytest

import turnloom
from one_row import BODY, ROW, SAMPLING, assert_failed, response, send, sized
from turnloom._client import _decoding
from turnloom.testing import FakeAgent

BEFORE, AFTER = BODY.split(b'"prompt_token_ids"')
LARGE = b'%b"routed_experts":[%b[]],"prompt_token_ids"%b' % (BEFORE, b"[[1,2],[3,4]]," * 4_000_000, AFTER)
BOMB = gzip.compress(LARGE)  # a thousandth of it


def answered(sent: bytes) -> FakeAgent:
    async def behave(call):
        await call.body()
        await call.send(sent)

    return FakeAgent(behave)


@pytest.fixture
def fed(monkeypatch) -> list[int]:
    """The sizes of what the parser is given."""
    sizes: list[int] = []
    feed = turnloom.RunParser.feed
    monkeypatch.setattr(
        turnloom.RunParser, "feed", lambda parser, chunk: (sizes.append(len(chunk)), feed(parser, chunk))
    )
    return sizes


@pytest.mark.parametrize("transport", [None, httpx.AsyncHTTPTransport])
async def test_what_inflates_a_thousandfold_is_parsed_in_small_pieces_between_which_others_run(fed, transport):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += bool(fed)
            await asyncio.sleep(0)

    async with answered(sized(BOMB, None, "content-encoding: gzip")) as agent:
        other = asyncio.create_task(others())
        tracemalloc.start()
        rollout = await send(agent, transport=transport and transport())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        other.cancel()
    assert rollout.outcome == "ok"
    assert sum(fed) == len(LARGE)
    assert max(fed) <= _decoding.MAX_INFLATED_BYTES
    assert turns >= len(LARGE) // _decoding.MAX_INFLATED_BYTES
    assert peak < 4_000_000


async def test_of_an_error_that_inflates_the_beginning_is_read():
    error = response(BOMB, f"content-length: {len(BOMB)}", "content-encoding: gzip", status="500 Internal Server Error")
    async with answered(error) as agent:
        tracemalloc.start()
        rollout = await send(agent)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert_failed(rollout, "http_error")
    assert rollout.error.body == LARGE[:2000].decode()
    assert peak < 4_000_000


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "GZIP", " gzip "])
@pytest.mark.parametrize("longer", [-1, 0, 1])
async def test_nothing_is_lost_where_a_piece_ends_with_the_bytes(fed, coding, longer):
    body = BODY + b" " * (2 * _decoding.MAX_INFLATED_BYTES - len(BODY) + longer)
    compress = zlib.compress if coding == "deflate" else gzip.compress
    async with answered(sized(compress(body), None, f"content-encoding: {coding}")) as agent:
        assert (await send(agent)).outcome == "ok"
    assert sum(fed) == len(body)


async def test_every_byte_may_come_alone(fed):
    async def drip(call):
        await call.body()
        zipped = gzip.compress(BODY)
        await call.send(sized(b"", len(zipped), "content-encoding: gzip"))
        for at in range(len(zipped)):
            await call.send(zipped[at : at + 1])

    async with FakeAgent(drip) as agent:
        assert (await send(agent)).outcome == "ok"
    assert sum(fed) == len(BODY)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "no such"])
async def test_another_coding_is_malformed_and_named(coding):
    async with answered(sized(gzip.compress(gzip.compress(BODY)), None, f"content-encoding: {coding}")) as agent:
        rollout = await send(agent)
    assert_failed(rollout, "malformed")
    assert f"HTTP 200 {coding}" in rollout.reason


async def test_identity_is_no_coding():
    async with answered(sized(BODY, None, "content-encoding: identity")) as agent:
        assert (await send(agent)).outcome == "ok"


async def test_a_transport_may_give_a_response_that_httpx_has_decoded():
    def answer(request):
        return httpx.Response(200, content=gzip.compress(BODY), headers={"content-encoding": "gzip"})

    async with turnloom.GymClient({"math": "http://gym"}, transport=httpx.MockTransport(answer)) as gym:
        assert (await gym.run(ROW, **SAMPLING)).rows[0].input_ids.tolist() == [1, 2, 3, 4]
