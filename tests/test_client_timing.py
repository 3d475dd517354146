"""What a client says of each rollout beside its outcome: where the time went, and which server it was sent to."""

from __future__ import annotations

import asyncio

import pytest

import turnloom
from one_row import ANSWER, BODY, ROW, SAMPLING, send, sized
from turnloom.testing import FakeAgent

WAIT_S = 0.2


async def wait_then_drip(call):
    """Twice `WAIT_S` before the answer, then once within it."""
    await call.body()
    await asyncio.sleep(2 * WAIT_S)
    await call.send(sized(BODY[:9], len(BODY)))
    await asyncio.sleep(WAIT_S)
    await call.send(BODY[9:])


async def test_the_time_of_a_rollout_is_told_by_its_parts():
    async with FakeAgent(wait_then_drip) as agent:
        timing = (await send(agent)).timing
    assert timing.first_byte_s >= 2 * WAIT_S
    assert timing.download_s >= WAIT_S
    assert 0 < timing.parse_s < timing.download_s
    assert timing.first_byte_s + timing.download_s <= timing.total_s
    assert timing.queue_s < WAIT_S
    assert timing.body_bytes == len(BODY)


@pytest.mark.parametrize(
    ("sent", "received"),
    [(None, 0), (sized(BODY[:9], len(BODY)), 9), (b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\nlost", 4)],
    ids=["no answer", "half an answer", "an error"],
)
async def test_what_a_failed_rollout_took_is_told_too(sent, received):
    async def behave(call):
        await call.body()
        await asyncio.sleep(WAIT_S)
        if sent is not None:
            await call.send(sent)

    async with FakeAgent(behave) as agent:
        rollout = await send(agent)
    assert rollout.outcome != "ok"
    assert rollout.timing.total_s >= WAIT_S
    assert (rollout.timing.first_byte_s >= WAIT_S) == (sent is not None)
    assert rollout.timing.body_bytes == received


@pytest.mark.parametrize("settings", [{"run_timeout": WAIT_S}, {"deadline": WAIT_S}])
async def test_a_rollout_whose_time_is_up_took_that_time(settings):
    async def silent(call):
        await call.body()
        await call.gone()

    async with FakeAgent(silent) as agent:
        rollout = await send(agent, **settings)
    assert rollout.outcome == "timeout"
    assert rollout.timing.total_s >= WAIT_S
    assert rollout.timing.first_byte_s == rollout.timing.download_s == 0


async def test_the_server_is_the_url_that_was_given_without_the_password():
    async with FakeAgent(ANSWER) as agent:
        for url in (agent.url, agent.url + "/", agent.url.replace("//", "//me:secret@")):
            assert (await send(url)).server == agent.url


async def test_a_rollout_that_no_client_made_has_neither():
    rollout = turnloom.parse_run(BODY)
    assert (rollout.server, rollout.timing) == (None, turnloom.Timing())


async def test_fields_are_put_into_the_request_over_the_rows_own():
    fields = {"id": 8, "_ng_rollout_id": "t-1.r2", "note": None, "agent_ref": {"name": "code"}}
    async with FakeAgent(ANSWER) as math, FakeAgent({"_ng_failure_class": "x"}) as code:
        async with turnloom.GymClient({"math": math.url, "code": code.url}) as gym:
            rollout = await gym.run(ROW, **SAMPLING, fields=fields)
        assert len(math.calls) == 0
        [call] = code.calls
        sent = await call.row()
    assert {name: sent[name] for name in fields} == fields
    assert sent["responses_create_params"]["input"] == ROW["responses_create_params"]["input"]
    assert (rollout.agent, ROW["id"]) == ("code", 7)
    assert "_ng_rollout_id='t-1.r2'" in rollout.reason


async def test_fields_are_the_requests_own_and_no_metrics():
    answer = {**ANSWER, "steps": 3, "tries": 4}
    async with FakeAgent(answer) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await gym.run(ROW, **SAMPLING, fields={"tries": 1})
    assert rollout.metrics == {"steps": 3.0}


@pytest.mark.parametrize("fields", [{"when": object()}, [1], "abc", 3])
async def test_fields_that_are_none_are_the_callers_mistake(fields):
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        with pytest.raises(turnloom.ConfigError):
            await gym.run(ROW, **SAMPLING, fields=fields)
        assert agent.calls == []
