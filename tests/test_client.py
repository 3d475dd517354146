"""GymClient as its users see it: settings, the request, routing, reasons, and what many rollouts at once cost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tracemalloc

import httpx
import pytest

import turnloom
from turnloom._gym import agent_request
from turnloom.testing import FakeAgent, gym_answer

ROW = {"id": 7, "difficulty": 3, "responses_create_params": {"input": "2 + 2?"}}
SAMPLING = {"max_tokens": 16, "temperature": 0.75, "top_p": 0.5}
ANSWER = gym_answer(ROW, turns=[([1, 2], [3, 4], [-0.5, -0.25])], reward=1.0, steps=2)


async def send(gym: turnloom.GymClient, **row) -> turnloom.Rollout:
    return await gym.run({**ROW, **row}, **SAMPLING)


# --- An answer ---


async def test_an_answer_becomes_a_rollout():
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await send(gym)
    assert (rollout.outcome, rollout.reason, rollout.reward, rollout.error) == ("ok", None, 1.0, None)
    assert rollout.agent == "math"
    assert rollout.rows[0].input_ids.tolist() == [1, 2, 3, 4]
    assert rollout.rows[0].completion_mask.tolist() == [0, 0, 1, 1]
    assert rollout.metrics == {"steps": 2.0}  # the request's own difficulty is none of the environment's metrics


async def test_the_request_is_the_row_with_the_sampling_of_the_trainer():
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        await send(gym)
        [call] = agent.calls
        assert (call.method, call.path) == ("POST", "/run")
        assert await call.row() == agent_request(ROW, **SAMPLING)
    assert call.headers["content-type"] == "application/json"
    assert call.headers["accept-encoding"] == "identity"
    assert "transfer-encoding" not in call.headers


async def test_settings_reach_the_parser():
    masked = {**ANSWER, "mask_sample": True}
    drifting = gym_answer(ROW, turns=[([1], [2, 3], [-1.0, -1.0]), ([1, 2, 9], [4], [-1.0])])
    async with FakeAgent(masked) as agent, turnloom.GymClient({"a": agent.url}, honor_mask_sample=False) as gym:
        assert (await send(gym)).outcome == "ok"
    async with FakeAgent(drifting) as agent:
        async with turnloom.GymClient({"a": agent.url}) as gym:
            assert (await send(gym)).drift.realign == 1
        async with turnloom.GymClient({"a": agent.url}, fork_threshold_tokens=0) as gym:
            assert (await send(gym)).drift.fork == 1


async def test_an_agent_in_a_thread_serves_too():
    with FakeAgent(ANSWER) as agent:
        async with turnloom.GymClient({"math": agent.url}) as gym:
            assert (await send(gym)).outcome == "ok"


# --- Routing and settings ---


@pytest.mark.parametrize(
    ("agent_ref", "served"),
    [
        ({"type": "responses_api_agents", "name": "code"}, "code"),
        ({"type": "responses_api_agents", "name": "math"}, "math"),
        ({"type": "responses_api_agents", "name": None}, "math"),
        ({}, "math"),
        (None, "math"),
    ],
)
async def test_a_row_goes_to_the_agent_it_names_or_to_the_first(agent_ref, served):
    async with FakeAgent(ANSWER) as math, FakeAgent(ANSWER) as code:
        async with turnloom.GymClient({"math": math.url, "code": code.url}) as gym:
            rollout = await send(gym, agent_ref=agent_ref)
        assert rollout.agent == served
        assert (len(math.calls), len(code.calls)) == ((1, 0) if served == "math" else (0, 1))


@pytest.mark.parametrize("agent_ref", [{"name": "chess"}, {"name": 3}, {"name": ["math"]}])
async def test_an_agent_that_there_is_not_is_the_callers_mistake(agent_ref):
    async with turnloom.GymClient({"math": "http://127.0.0.1:1", "code": "http://127.0.0.1:1"}) as gym:
        with pytest.raises(turnloom.ConfigError, match="math, code"):
            await send(gym, agent_ref=agent_ref)


@pytest.mark.parametrize("seconds", [0, -1, 0.0, float("nan"), float("-inf"), 10**400, True, "5", [1]])
@pytest.mark.parametrize("name", ["run_timeout", "deadline"])
def test_a_bound_is_a_number_above_zero_or_none(name, seconds):
    with pytest.raises(turnloom.ConfigError, match=name):
        turnloom.GymClient({"math": "http://127.0.0.1:1"}, **{name: seconds})
    turnloom.GymClient({"math": "http://127.0.0.1:1"}, **{name: None})
    turnloom.GymClient({"math": "http://127.0.0.1:1"}, **{name: float("inf")})


@pytest.mark.parametrize("transport", [3, "http", httpx.HTTPTransport, httpx.HTTPTransport(), object()])
def test_a_transport_is_an_asynchronous_one_of_httpx(transport):
    with pytest.raises(turnloom.ConfigError, match="transport"):
        turnloom.GymClient({"math": "http://127.0.0.1:1"}, transport=transport)


def test_the_parsers_settings_are_checked_at_once():
    with pytest.raises(turnloom.ConfigError, match="branches"):
        turnloom.GymClient({"math": "http://127.0.0.1:1"}, branches="tree")


@pytest.mark.parametrize("row", [{}, {"nemo_gym_row": "{"}, {**ROW, "when": object()}])
async def test_a_row_that_is_none_is_the_callers_mistake(row):
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        with pytest.raises(turnloom.ConfigError):
            await gym.run(row, **SAMPLING)
        assert agent.calls == []


# --- Reasons ---


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        ({"reward": 1.0}, "agent_failure", "response"),
        ({**ANSWER, "mask_sample": 1}, "masked", "mask_sample"),
        (gym_answer(ROW, turns=[]), "no_tokens", "return_token_id_information"),
        (gym_answer(ROW, turns=[([1], [2], [-1.0])], reward=None), "no_reward", "no reward"),
        (b"<html>", "malformed", "line 1"),
    ],
)
async def test_every_reason_names_agent_row_status_and_the_body(answer, outcome, said):
    async with FakeAgent(answer) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await send(gym)
    assert rollout.outcome == outcome
    begins = "<html>" if outcome == "malformed" else json.dumps(answer, separators=(",", ":"))[:20]
    for part in ("'math'", agent.url + "/run", "id=7", "HTTP 200", said, begins):
        assert part in rollout.reason, part
    with pytest.raises(turnloom.TurnloomError, match="'math'"):
        rollout.raise_for_outcome()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"_ng_task_index": 41, "id": 7}, "_ng_task_index=41"),
        ({"_ng_rollout_id": "t-41.r2", "_ng_task_index": 41}, "row _ng_task_index=41, _ng_rollout_id='t-41.r2',"),
        ({"id": None, "task_id": "abc"}, "task_id='abc'"),
        ({"id": None}, "2 + 2?"),
        ({"id": None, "responses_create_params": {"input": [{"role": "user", "content": "q" * 9999}]}}, "qqq"),
        ({"id": None, "responses_create_params": {"input": []}}, "nothing"),
        ({"id": None, "responses_create_params": {"input": 5}}, "nothing"),
    ],
)
async def test_a_reason_names_the_row_by_its_id_or_by_what_it_asks(more, said):
    async with FakeAgent({}) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await send(gym, **more)
    assert said in rollout.reason
    assert len(rollout.reason) < 1000


# --- Cookies and proxies ---


async def test_cookies_are_neither_kept_nor_sent():
    async with FakeAgent(ANSWER) as agent:
        url = agent.url.replace("127.0.0.1", "localhost")  # cookie jars treat addresses and names differently
        async with turnloom.GymClient({"math": url}) as gym:
            for _ in range(3):
                assert (await send(gym)).outcome == "ok"
        assert len(agent.calls) == 3
        assert [call.headers.get("cookie") for call in agent.calls] == [None] * 3


async def test_proxies_of_the_environment_are_left_alone_unless_asked_for(monkeypatch):
    async with FakeAgent(ANSWER) as agent, FakeAgent(ANSWER) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        async with turnloom.GymClient({"math": agent.url}) as gym:
            assert (await send(gym)).outcome == "ok"
        assert (agent.connections, proxy.connections) == (1, 0)
        async with turnloom.GymClient({"math": agent.url}, trust_env=True) as gym:
            assert (await send(gym)).outcome == "http_error"  # the proxy is asked, and knows no such path
        assert (agent.connections, proxy.connections) == (1, 1)


# --- Many, large, cancelled ---


async def test_200_rollouts_at_once_each_have_a_connection():
    everyone = asyncio.Barrier(200)

    async def together(call):
        row = await call.row()
        await everyone.wait()
        await call.answer({**ANSWER, "reward": float(row["id"])})

    async with FakeAgent(together) as agent:
        async with turnloom.GymClient({"math": agent.url}, run_timeout=30) as gym:
            rollouts = await asyncio.gather(*(send(gym, id=number) for number in range(200)))
        assert [rollout.reward for rollout in rollouts] == [float(number) for number in range(200)]
        assert len(agent.calls) == 200


async def test_a_body_of_20_mb_is_parsed_without_being_collected():
    before, after = json.dumps(ANSWER).encode().split(b'"prompt_token_ids"')
    piece = b"[[1,2],[3,4]]," * 20_000
    head = before + b'"routed_experts":[' + piece
    tail = b'[]],"prompt_token_ids"' + after
    pieces = 20_000_000 // len(piece)

    async def stream(call):
        await call.body()
        length = len(head) + pieces * len(piece) + len(tail)
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + head)
        for _ in range(pieces):
            await call.send(piece)
        await call.send(tail)

    async with FakeAgent(stream) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        tracemalloc.start()
        rollout = await send(gym)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert rollout.outcome == "ok"
    assert rollout.turns[0].routed_experts_bytes > 20_000_000
    assert peak < 4_000_000


async def test_cancelling_closes_the_socket_and_leaves_no_task():
    seen: list[int] = []

    async def silent(call):
        await call.body()
        seen.append(await call.gone())

    async with FakeAgent(silent) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        before = asyncio.all_tasks()
        rollouts = [asyncio.create_task(send(gym)) for _ in range(3)]
        await agent.until(lambda agent: len(agent.calls) == 3)
        rollouts[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollouts[0]
        await agent.until(lambda agent: agent.open_connections == 2)
        assert not rollouts[1].done()  # nothing else is disturbed
        for rollout in rollouts:
            rollout.cancel()
        await asyncio.gather(*rollouts, return_exceptions=True)
        await agent.until(lambda agent: agent.open_connections == 0)
        assert asyncio.all_tasks() <= before | set(rollouts)
    assert seen == [0, 0, 0]


def test_importing_turnloom_imports_no_http_library():
    code = (
        "import sys, turnloom, turnloom.testing; from turnloom.testing import FakeAgent;"
        "turnloom.GymClient({'a': 'http://127.0.0.1:1'});"
        "print(*sorted({'httpx', 'aiohttp', 'httpx_aiohttp', 'torch', 'trl'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
