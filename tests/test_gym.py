"""Rows through a real NeMo Gym: three of its agents, over a policy server that the rows steer."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnloom

pytestmark = [pytest.mark.gym, pytest.mark.timeout(400)]

WEATHER = "example_single_tool_call_simple_agent"
STEPS = "example_multi_step_simple_agent"
COUNTER = "example_session_state_mgmt_simple_agent"
SAMPLING = {"max_tokens": 100_000, "temperature": 1.0, "top_p": 1.0}


@pytest.fixture(scope="session")
def gym(gym_launcher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Where the Gym's servers are."""
    log = tmp_path_factory.mktemp("gym") / "launcher.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, gym_launcher], stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as launcher,
    ):
        try:
            assert launcher.stdout is not None
            line = launcher.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)
        finally:
            launcher.terminate()


@pytest.fixture
def agents(gym: dict[str, Any]) -> dict[str, str]:
    return {name: gym["agents"][name] for name in (WEATHER, STEPS, COUNTER)}


def row(gym: dict[str, Any], agent: str | None, directive: str) -> dict[str, Any]:
    """The first row that comes with an agent's environment, with a word to the policy server."""
    environment = (agent or WEATHER).removesuffix("_simple_agent")
    lines = (Path(gym["data"]) / environment / "data" / "example.jsonl").read_text().splitlines()
    made: dict[str, Any] = json.loads(lines[0])
    user = [message for message in made["responses_create_params"]["input"] if message["role"] == "user"][-1]
    user["content"] += f" [[stub {directive}]]"
    made.pop("agent_ref", None)
    if agent is not None:
        made["agent_ref"] = {"type": "responses_api_agents", "name": agent}
    return made


def model_calls(gym: dict[str, Any]) -> int:
    with urllib.request.urlopen(f"{gym['stub']}/stats") as answer:
        return int(json.load(answer)["chat"])


async def run(gym: dict[str, Any], agents: dict[str, str], made: dict[str, Any], **settings: Any) -> turnloom.Rollout:
    sampling = {**SAMPLING, **{key: settings.pop(key) for key in list(settings) if key in SAMPLING}}
    async with turnloom.GymClient(agents, run_timeout=120, **settings) as client:
        return await client.run(made, **sampling)


def test_the_head_server_tells_where_the_agents_are(gym):
    assert turnloom.GymClient.discover(gym["head"]) == gym["agents"]


@pytest.mark.parametrize(
    ("agent", "directive", "reward", "turns"),
    [
        (WEATHER, "calls=2", 1.0, 3),
        (STEPS, "calls=3 words=Blazing|Warm", 1.0, 4),
        (STEPS, "calls=3 words=Blazing|Cold", 0.0, 4),
        (COUNTER, "calls=4", 1.0, 5),
        (COUNTER, "calls=2", 0.0, 3),
    ],
)
async def test_rows_reach_the_agent_that_they_name(gym, agents, agent, directive, reward, turns):
    rollout = await run(gym, agents, row(gym, agent, directive))
    assert (rollout.outcome, rollout.reward, rollout.agent) == ("ok", reward, agent), rollout.reason
    assert (len(rollout.turns), rollout.drift.clean, len(rollout.rows)) == (turns, turns - 1, 1)
    assert rollout.rows[0].completion_mask.sum() == sum(turn.output_tokens for turn in rollout.turns)


async def test_a_row_without_a_name_goes_to_the_first_agent(gym, agents):
    rollout = await run(gym, agents, row(gym, None, "calls=1"))
    assert (rollout.outcome, rollout.agent) == ("ok", WEATHER), rollout.reason


async def test_an_unknown_name_is_refused_before_anything_is_sent(gym, agents):
    before = model_calls(gym)
    with pytest.raises(turnloom.ConfigError, match="nobody"):
        await run(gym, agents, row(gym, WEATHER, "calls=1") | {"agent_ref": {"name": "nobody"}})
    assert model_calls(gym) == before


async def test_many_turns_are_one_row(gym, agents):
    rollout = await run(gym, agents, row(gym, WEATHER, "calls=40"))
    assert (rollout.outcome, len(rollout.turns), len(rollout.rows)) == ("ok", 41, 1), rollout.reason
    last = rollout.turns[-1]
    assert len(rollout.rows[0].input_ids) == last.prompt_tokens + last.output_tokens
    assert [message["role"] for message in rollout.messages()] == ["assistant", "tool"] * 40 + ["assistant"]


@pytest.mark.parametrize(("threshold", "kind", "rows"), [(1024, "realign", 1), (0, "fork", 4)])
async def test_drift_realigns_or_forks(gym, agents, threshold, kind, rows):
    made = row(gym, WEATHER, "calls=3 drift=space")
    rollout = await run(gym, agents, made, fork_threshold_tokens=threshold)
    assert [turn.transition for turn in rollout.turns] == [None, kind, kind, kind]
    assert len(rollout.rows) == rows
    trained = sum(int(made.completion_mask.sum()) for made in rollout.rows)
    assert trained + rollout.drift.discarded_tokens == sum(turn.output_tokens for turn in rollout.turns)
    assert (rollout.drift.discarded_tokens > 0) == (kind == "realign")


async def test_a_context_that_grows_too_long_keeps_the_good_turns(gym, agents):
    rollout = await run(gym, agents, row(gym, WEATHER, "calls=5 overflow=2"))
    assert (rollout.outcome, rollout.truncated, len(rollout.turns)) == ("ok", True, 2)
    at_once = await run(gym, agents, row(gym, WEATHER, "overflow=0"))
    assert (at_once.outcome, at_once.truncated, at_once.rows) == ("no_tokens", True, ())
    assert "the context was too long for the first call" in at_once.reason


async def test_max_tokens_reaches_the_model(gym, agents):
    rollout = await run(gym, agents, row(gym, WEATHER, "calls=0"), max_tokens=5)
    assert (rollout.truncated, rollout.turns[0].output_tokens) == (True, 5)


async def test_what_the_agent_refuses_is_told(gym, agents):
    made = row(gym, WEATHER, "calls=1")
    made["responses_create_params"]["input"] = 5
    rollout = await run(gym, agents, made)
    assert (rollout.outcome, rollout.error.status) == ("http_error", 422)
    assert WEATHER in rollout.reason
    failed = await run(gym, agents, row(gym, WEATHER, "calls=3 fail=1"))
    assert (failed.outcome, failed.reward, failed.rows) == ("http_error", None, ())


def first_of_the_group(completions: list[Any], **_: Any) -> list[float]:
    """Something to tell the members of a group apart: the policy server answers them all alike."""
    return [float(index == 0) for index in range(len(completions))]


def test_one_training_step_on_rows_of_three_agents(gym, agents, tmp_path):
    """TRL's trainer and worker process, with a model that has an id for every code point the policy server sends."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from turnloom.demo.model import make_tokenizer
    from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
    from turnloom.testing import CPU_CONFIG, WeightTransfer, cpu_training

    made = [
        row(gym, WEATHER, "calls=2"),
        row(gym, STEPS, "calls=1 words=Blazing|Cold"),
        row(gym, COUNTER, "calls=4"),
        row(gym, None, "calls=2 drift=tail"),
    ]
    dataset = Dataset.from_dict({"nemo_gym_row": [json.dumps(one) for one in made]})
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=2**17, num_key_value_heads=1, head_dim=8, **shape))
    model.save_pretrained(tmp_path / "model")
    generations = 2
    config = AsyncGRPOConfig(
        **CPU_CONFIG,
        output_dir=str(tmp_path / "trainer"),
        max_steps=1,
        learning_rate=1e-2,
        num_generations=generations,
        per_device_train_batch_size=len(made) * generations,
        max_inflight_tasks=len(made) * generations,
        max_completion_length=4096,
        disable_tqdm=True,
        save_strategy="no",
    )
    with cpu_training():
        tokenizer = make_tokenizer()
        worker = NemoGymRolloutWorker.from_config(
            config,
            agent_servers=agents,
            dataset=dataset,
            processing_class=tokenizer,
            reward_funcs=[first_of_the_group],
            run_timeout=120.0,
        )
        trainer = AsyncGRPOTrainer(
            str(tmp_path / "model"),
            args=config,
            train_dataset=dataset,
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=WeightTransfer(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    (logs,) = [logs for logs in trainer.state.log_history if "reward" in logs]
    assert logs["nemo_gym/success_frac"] == 1.0
    assert logs["rewards/first_of_the_group"] == pytest.approx(1 / generations)
    for agent in (WEATHER, STEPS, COUNTER):
        assert f"nemo_gym/agent/{agent}/reward" in logs
    trained = dict(trainer.model.named_parameters())
    assert any(not torch.equal(before, trained[name]) for name, before in model.named_parameters())
