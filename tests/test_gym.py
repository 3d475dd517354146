"""Rows through a real NeMo Gym: its agents, over a policy server that the rows steer."""

import asyncio
import json

import pytest

import turnloom
from gyms import AGENTS, COUNTER, REWARDS, STEPS, TRIVIA, WEATHER, WITHOUT_IDS, run

pytestmark = [pytest.mark.gym, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("agent", "directive", "reward", "turns"),
    [
        (WEATHER, "calls=2", 1.0, 3),
        (STEPS, "calls=3 words=Blazing|Warm", 1.0, 4),
        (STEPS, "calls=3 words=Blazing|Cold", 0.0, 4),
        (COUNTER, "calls=4", 1.0, 5),
        (COUNTER, "calls=2", 0.0, 3),
        (TRIVIA, "answer=Eiffel", 1.0, 3),
        (REWARDS, "calls=1", 2.0, 2),
    ],
)
async def test_rows_reach_the_agent_that_they_name(gym, agent, directive, reward, turns):
    rollout = await run(gym.agents, gym.row(agent, directive))
    assert (rollout.outcome, rollout.reward, rollout.agent) == ("ok", reward, agent), rollout.reason
    assert (len(rollout.turns), rollout.drift.clean, len(rollout.rows)) == (turns, turns - 1, 1)
    assert rollout.rows[0].completion_mask.sum() == sum(turn.output_tokens for turn in rollout.turns)


def test_the_head_server_tells_where_the_agents_are(gym):
    assert turnloom.GymClient.discover(gym.head) == gym.agents | gym.more_agents
    with pytest.raises(turnloom.ConfigError, match="no head server"):
        turnloom.GymClient.discover(gym.agents[WEATHER])


async def test_a_row_without_a_name_goes_to_the_first_agent(gym):
    row = gym.row(COUNTER, "calls=4")
    del row["agent_ref"]
    rollout = await run({COUNTER: gym.agents[COUNTER], WEATHER: gym.agents[WEATHER]}, row)
    assert (rollout.outcome, rollout.agent, rollout.reward) == ("ok", COUNTER, 1.0), rollout.reason


async def test_an_unknown_name_is_refused_before_anything_is_sent(gym):
    before = gym.model_calls()
    with pytest.raises(turnloom.ConfigError, match=f"nobody.*{WEATHER}"):
        await run(gym.agents, gym.row(WEATHER, "calls=1") | {"agent_ref": {"name": "nobody"}})
    assert gym.model_calls() == before


async def test_all_rows_that_come_with_the_environments_at_once(gym):
    rows = [row for agent in AGENTS for row in gym.rows(agent)]
    async with turnloom.GymClient(gym.agents, run_timeout=120) as client:
        rollouts = await asyncio.gather(*(client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0) for row in rows))
    for row, rollout in zip(rows, rollouts, strict=True):
        assert (rollout.outcome, rollout.agent) == ("ok", row["agent_ref"]["name"]), rollout.reason
        assert (len(rollout.rows), rollout.defects, rollout.truncated) == (1, (), False)
    by_agent = {rollout.agent: rollout for rollout in rollouts}
    assert by_agent[STEPS].metrics["set_overlap"] == 0.0
    assert by_agent[REWARDS].metrics["reward_components/schema_valid"] == 1.0
    assert [message["role"] for message in by_agent[TRIVIA].messages()] == ["assistant", "user", "assistant"]


async def test_many_turns_are_one_row(gym):
    rollout = await run(gym.agents, gym.row(WEATHER, "calls=40 parallel=2"))
    assert (rollout.outcome, len(rollout.turns), len(rollout.rows)) == ("ok", 41, 1), rollout.reason
    last = rollout.turns[-1]
    assert len(rollout.rows[0].input_ids) == last.prompt_tokens + last.output_tokens
    roles = [message["role"] for message in rollout.messages()]
    assert roles == ["assistant", "tool", "tool"] * 40 + ["assistant"]


@pytest.mark.parametrize(("threshold", "kind", "rows"), [(1024, "realign", 1), (0, "fork", 4)])
async def test_drift_realigns_or_forks(gym, threshold, kind, rows):
    rollout = await run(gym.agents, gym.row(WEATHER, "calls=3 drift=space"), fork_threshold_tokens=threshold)
    assert [turn.transition for turn in rollout.turns] == [None, kind, kind, kind]
    drift = rollout.drift
    assert (getattr(drift, kind), drift.clean, drift.transitions, len(rollout.rows)) == (3, 0, 3, rows)
    assert drift.drift_tokens == sum(turn.drift_tokens for turn in rollout.turns) > 0
    trained = sum(int(row.completion_mask.sum()) for row in rollout.rows)
    assert trained + drift.discarded_tokens == sum(turn.output_tokens for turn in rollout.turns)
    assert (drift.discarded_tokens > 0) == (kind == "realign")


@pytest.mark.parametrize("drift", ["space", "swap", "tail"])
async def test_one_turn_that_drifts_is_the_only_one_that_is_not_clean(gym, drift):
    rollout = await run(gym.agents, gym.row(WEATHER, f"calls=4 drift={drift} drift_at=1"))
    assert [turn.transition for turn in rollout.turns] == [None, "clean", "realign", "clean", "clean"]
    assert (rollout.drift.clean, rollout.drift.realign, rollout.drift.fork) == (3, 1, 0)


async def test_a_context_that_grows_too_long_keeps_the_good_turns(gym):
    rollout = await run(gym.agents, gym.row(WEATHER, "calls=5 overflow=2"))
    assert (rollout.outcome, rollout.truncated, len(rollout.turns)) == ("ok", True, 2)
    at_once = await run(gym.agents, gym.row(WEATHER, "overflow=0"))
    assert (at_once.outcome, at_once.truncated, at_once.rows) == ("no_tokens", True, ())
    assert "the context was too long for the first call" in at_once.reason


async def test_without_token_ids_the_setting_to_turn_on_is_named(gym):
    row = gym.row(WEATHER, "calls=2") | {"agent_ref": None}
    rollout = await run({WITHOUT_IDS: gym.more_agents[WITHOUT_IDS]}, row)
    assert (rollout.outcome, rollout.reward, rollout.rows, rollout.turns) == ("no_tokens", None, (), ())
    assert "set return_token_id_information: true on NeMo Gym's model server" in rollout.reason
    assert "2 function_call, 2 function_call_output, 1 message" in rollout.reason
    assert [message["role"] for message in rollout.messages()] == ["assistant", "tool"] * 2 + ["assistant"]
    cut = await run({WITHOUT_IDS: gym.more_agents[WITHOUT_IDS]}, row, max_tokens=5)
    assert (cut.outcome, cut.truncated) == ("no_tokens", True)
    assert "set return_token_id_information: true" in cut.reason


async def test_max_tokens_reaches_the_model(gym):
    rollout = await run(gym.agents, gym.row(WEATHER, "calls=0"), max_tokens=5)
    assert (rollout.truncated, rollout.turns[0].output_tokens) == (True, 5)


async def test_fields_of_a_caller_reach_the_environment(gym):
    fields = {"_ng_task_index": 7, "_ng_rollout_index": 1, "_ng_attempt_index": 0, "_ng_rollout_id": "a-7.1"}
    async with turnloom.GymClient(gym.agents, run_timeout=120) as client:
        for agent in AGENTS:
            row = gym.row(agent, "calls=1")
            rollout = await client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0, fields=fields)
            assert rollout.outcome == "ok", rollout.reason
        # An environment that misses something says what it got.
        row = {"agent_ref": {"name": COUNTER}, "responses_create_params": {"input": "add 1"}}
        refused = await client.run(row, max_tokens=1000, temperature=1.0, top_p=1.0, fields=fields)
    assert refused.outcome == "http_error"
    assert json.dumps(fields, separators=(",", ":"))[1:-1] in refused.error.body.replace("\\", "")
    assert "_ng_rollout_id='a-7.1'" in refused.reason


async def test_what_the_agent_refuses_is_told(gym):
    row = gym.row(WEATHER, "calls=1")
    row["responses_create_params"]["input"] = 5
    rollout = await run(gym.agents, row)
    assert (rollout.outcome, rollout.error.status) == ("http_error", 422)
    assert WEATHER in rollout.reason
    failed = await run(gym.agents, gym.row(WEATHER, "calls=3 fail=1"))
    assert (failed.outcome, failed.reward, failed.rows) == ("http_error", None, ())
