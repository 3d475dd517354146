"""TRL's trainer and its worker process over a real NeMo Gym, with a tiny model on the CPU."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

import turnloom
from gyms import COUNTER, REWARDS, WEATHER, WITHOUT_IDS, Gym
from recorded_queue import RecordedQueue
from turnloom.demo.model import make_tokenizer
from turnloom.testing.cpu import CPU_CONFIG, WeightTransfer, cpu_training

pytestmark = [pytest.mark.gym, pytest.mark.train, pytest.mark.timeout(500)]

GENERATIONS = 2


def first_of_the_group(completions: list[Any], **_: Any) -> list[float]:
    """Something to tell the members of a group apart: the policy server answers them all alike."""
    return [float(index == 0) for index in range(len(completions))]


def make_model() -> Any:
    """A model with an id for every character of ASCII, which are the policy server's ids."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=128, num_key_value_heads=1, head_dim=8, **shape))


def make_trainer(folder: Path, agents: dict[str, str], rows: list[dict[str, Any]], **config: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    from turnloom.integrations.nemo_gym import load_dataset
    from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker

    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = load_dataset(folder / "rows.jsonl")
    make_model().save_pretrained(folder / "model")
    settings = AsyncGRPOConfig(
        **CPU_CONFIG,
        output_dir=str(folder / "trainer"),
        learning_rate=1e-2,
        num_generations=GENERATIONS,
        per_device_train_batch_size=len(rows) * GENERATIONS,
        max_inflight_tasks=len(rows) * GENERATIONS,
        max_completion_length=4096,
        disable_tqdm=True,
        save_strategy="no",
        **config,
    )
    tokenizer = make_tokenizer()
    worker = NemoGymRolloutWorker.from_config(
        settings,
        agent_servers=agents,
        dataset=dataset,
        processing_class=tokenizer,
        reward_funcs=[first_of_the_group],
        run_timeout=120.0,
    )
    trainer = AsyncGRPOTrainer(
        str(folder / "model"),
        args=settings,
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=WeightTransfer(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def test_one_step_on_rows_of_three_agents(gym, tmp_path):
    rows = [
        gym.row(WEATHER, "calls=2"),
        gym.row(REWARDS, "calls=1"),
        gym.row(COUNTER, "calls=4"),
        gym.row(WEATHER, "calls=2 drift=tail"),
    ]
    del rows[-1]["agent_ref"]
    agents = {name: gym.agents[name] for name in (WEATHER, REWARDS, COUNTER)}
    with cpu_training():
        trainer = make_trainer(tmp_path, agents, rows, max_steps=1)
        before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
        trainer.train()
    (logs,) = [logs for logs in trainer.state.log_history if "reward" in logs]
    assert logs["nemo_gym/success_frac"] == 1.0
    assert logs["rewards/first_of_the_group"] == pytest.approx(1 / GENERATIONS)
    assert [logs[f"nemo_gym/agent/{agent}/reward"] for agent in agents] == [1.0, 2.0, 1.0]
    assert logs[f"nemo_gym/env/{REWARDS}/reward_components/schema_valid"] == 1.0
    assert any(not torch.equal(before[name], after) for name, after in trainer.model.named_parameters())


async def test_a_training_without_token_ids_ends_with_the_setting_to_turn_on(gym):
    from trl_loops import dataset_of, make_loop

    loop = make_loop(
        {WITHOUT_IDS: gym.more_agents[WITHOUT_IDS]},
        dataset_of(gym.row(WEATHER, "calls=1") | {"agent_ref": None}),
        num_generations=16,
        max_inflight_tasks=16,
    )
    message = f"64 rollouts were answered .* return_token_id_information: true .* agent '{WITHOUT_IDS}'"
    with pytest.raises(turnloom.ConfigError, match=message):
        await loop._run_loops(asyncio.Event())
    loop._loop.close()
    loop._tool_pool.shutdown()


class RestartsAnAgent(TrainerCallback):
    """Kills an agent's server after the first step and starts it again after the second.

    The training ends once a sample of the new server has been taken for it.
    """

    def __init__(self, gym: Gym, row: dict[str, Any], samples: RecordedQueue) -> None:
        self._gym = gym
        self._agent = row["agent_ref"]["name"]
        self._prompt = row["responses_create_params"]["input"]
        self._samples = samples
        self._start_again: Any = None
        self._back_at: float | None = None
        self.trained_after = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self._start_again = self._gym.kill(self._agent)
        elif state.global_step == 2:
            self._start_again()
        elif self._back_at is None:
            self._back_at = time.time() if self._gym.answers(self._agent) else None
        else:
            times = [sample.enqueued_at for sample in self._samples.taken if sample.prompt == self._prompt]
            control.should_training_stop = self.trained_after = max(times) > self._back_at


def test_training_goes_on_when_an_agent_is_restarted(gym_to_break, tmp_path):
    rows = [gym_to_break.row(WEATHER, "calls=2 slow=0.2"), gym_to_break.row(COUNTER, "calls=4 slow=0.1")]
    agents = {name: gym_to_break.agents[name] for name in (WEATHER, COUNTER)}
    with cpu_training():
        trainer = make_trainer(tmp_path, agents, rows, max_steps=200)
        trainer.rollout_queue = samples = RecordedQueue(trainer.rollout_worker.rollout_buffer)
        restart = RestartsAnAgent(gym_to_break, rows[0], samples)
        trainer.add_callback(restart)
        trainer.train()
    assert restart.trained_after
    outcomes = {agent: outcomes_of(agent, trainer.state.log_history) for agent in agents}
    assert outcomes[WEATHER].keys() <= {"ok", "disconnected"}, outcomes  # what was not delivered has waited
    assert outcomes[COUNTER].keys() == {"ok"}


def outcomes_of(agent: str, log_history: list[dict[str, Any]]) -> dict[str, float]:
    """How the agent's rollouts ended, and how many ended so."""
    before, after = f"nemo_gym/agent/{agent}/outcome/", "_total"
    totals: Counter[str] = Counter()
    for logs in log_history:
        totals.update(
            {name.removeprefix(before).removesuffix(after): logs[name] for name in logs if name.startswith(before)}
        )
    return dict(totals)
