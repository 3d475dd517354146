"""The picture of a moment: numbers that agree with one another, and what JSON has for them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import turnloom
from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout, timed
from turnloom._metrics import RECENT_ROLLOUTS, Ledger
from turnloom.testing import AgentCall, FakeAgent, gym_answer


def state(in_flight: int, queued: int = 0, oldest_s: float = 0.0) -> Any:
    """What a client tells of an agent."""
    return SimpleNamespace(in_flight=in_flight, queued=queued, oldest_s=oldest_s)


def test_counts_are_of_the_agent_and_of_all() -> None:
    ledger = Ledger()
    for each in (rollout(CLEAN), rollout(REALIGN, agent="code"), rollout(FORK, agent="code"), failed()):
        ledger.enter(timed(each, 1.0, body_bytes=10))
    snapshot = ledger.snapshot()
    assert list(snapshot.agents) == ["code", "math"]
    assert snapshot.outcomes == dict.fromkeys(turnloom.OUTCOMES, 0) | {"ok": 3, "timeout": 1}
    assert snapshot.agents["code"].outcomes["ok"] == 2
    assert snapshot.transitions == {"clean": 1, "realign": 1, "fork": 1}
    assert snapshot.agents["math"].transitions == {"clean": 1, "realign": 0, "fork": 0}
    assert (snapshot.body_bytes, snapshot.discarded_tokens, snapshot.unrelated_prompts) == (40, 1, 1)
    assert snapshot.defects == dict.fromkeys(turnloom.DEFECT_CODES, 0)
    assert snapshot.turns is not None
    assert (snapshot.turns.count, snapshot.turns.sum) == (3, 6.0)


def test_a_distribution_is_of_the_latest_values_and_counts_all() -> None:
    ledger = Ledger()
    rewards = np.random.default_rng(1).permutation(np.arange(RECENT_ROLLOUTS + 500) / 8.0)
    template = rollout()
    for reward in rewards:
        template.reward = float(reward)
        ledger.enter(template)
    found = ledger.snapshot().reward
    assert found is not None
    latest = rewards[-RECENT_ROLLOUTS:]
    assert (found.count, found.sum) == (len(rewards), rewards.sum())
    assert (found.mean, found.std) == (pytest.approx(latest.mean()), pytest.approx(latest.std()))
    assert (found.min, found.max) == (latest.min(), latest.max())
    percentiles = np.percentile(latest, [50, 95, 99], method="inverted_cdf").tolist()
    assert [found.p50, found.p95, found.p99] == percentiles


def test_the_whole_has_the_latest_values_of_each_agent() -> None:
    ledger = Ledger()
    for reward in (0.0, 1.0):
        ledger.enter(rollout(reward=reward, speed=1))
    ledger.enter(rollout(agent="code", reward=5.0, speed=3))
    snapshot = ledger.snapshot()
    assert snapshot.reward is not None
    assert (snapshot.reward.count, snapshot.reward.mean, snapshot.reward.p50, snapshot.reward.max) == (3, 2.0, 1.0, 5.0)
    assert (snapshot.env["speed"].count, snapshot.env["speed"].sum) == (3, 5.0)


def test_what_has_no_value_has_no_distribution() -> None:
    ledger = Ledger()
    ledger.enter(failed())
    snapshot = ledger.snapshot()
    assert (snapshot.reward, snapshot.latency_s, snapshot.turns, snapshot.env) == (None, None, None, {})
    assert Ledger().snapshot().sent == 0


def test_json_takes_the_whole() -> None:
    ledger = Ledger()
    ledger.enter(timed(rollout(accuracy=1), 1.5))
    ledger.enter(failed(agent="code"))
    told = json.loads(json.dumps(ledger.snapshot().to_dict(), allow_nan=False))
    assert told["agents"]["math"]["latency_s"]["p99"] == told["latency_s"]["p99"] == 1.5
    assert told["agents"]["code"]["outcomes"]["timeout"] == 1
    assert told["env"]["accuracy"]["mean"] == 1.0


def test_what_is_in_flight_is_counted_or_told_by_the_client() -> None:
    ledger = Ledger()
    for _ in range(5):
        ledger.enter_sent("math")
    ledger.enter(rollout())
    ledger.enter_cancelled("math")
    ledger.enter(rollout(agent="code"))  # of which nobody told when it began
    snapshot = ledger.snapshot({"math": state(2, 1, 9.5), "code": state(3, 1, 2.5), "new": state(0)})
    assert (snapshot.sent, snapshot.in_flight, snapshot.queued, snapshot.oldest_s) == (10, 7, 2, 9.5)
    math, code = snapshot.agents["math"], snapshot.agents["code"]
    assert (math.sent, math.in_flight) == (5, 3)
    assert (code.sent, code.in_flight) == (5, 4)
    assert snapshot.agents["new"].sent == 0
    without = ledger.snapshot()
    assert (without.sent, without.in_flight) == (6, 3)


async def test_whatever_happens_what_was_sent_is_what_ended_and_what_has_not() -> None:
    """Each rollout is counted once, at every moment, though agents fail in every way and the caller gives up."""
    answers = iter(range(10**6))

    async def behave(call: AgentCall) -> None:
        number = next(answers)
        match number % 5:
            case 0:
                await call.answer("it broke", status=500)
            case 1:
                call.reset()
            case 2:
                await call.answer(b"{]")
            case 3:
                await call.answer(gym_answer({}, turns=CLEAN, reward=None if number % 20 > 10 else 1.0))
            case _:
                await call.gone()

    ledger = Ledger()

    def consistent() -> bool:
        snapshot = ledger.snapshot()
        numbers = [snapshot, *snapshot.agents.values()]
        return all(each.sent == each.in_flight + sum(each.outcomes.values()) for each in numbers)

    async with FakeAgent(behave) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=30.0) as gym:

        async def attempt() -> turnloom.Rollout:
            ledger.enter_sent("math")
            rollout = await gym.run({"responses_create_params": {}}, max_tokens=1, temperature=1.0, top_p=1.0)
            ledger.enter(rollout)
            return rollout

        async def with_retry() -> None:
            try:
                while (await attempt()).outcome != "ok":
                    assert consistent()
            except asyncio.CancelledError:
                ledger.enter_cancelled("math")

        running = [asyncio.create_task(with_retry()) for _ in range(50)]
        await agent.until(lambda agent: len(agent.calls) >= 120)
        assert ledger.snapshot().in_flight > 0
        for each in running:
            each.cancel()
        await asyncio.gather(*running)
    snapshot = ledger.snapshot()
    assert consistent()
    assert snapshot.in_flight == 0
    assert snapshot.sent == ledger.metrics.counts()["nemo_gym/sent_total"] >= 120
    kinds = ("ok", "no_reward", "http_error", "disconnected", "malformed", "cancelled")
    assert all(snapshot.outcomes[kind] for kind in kinds)
    assert sum(snapshot.outcomes[kind] for kind in kinds) == snapshot.sent
