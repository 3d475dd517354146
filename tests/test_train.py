"""Three real steps through the whole stack: trainer, worker process, HTTP, core, and weights back to the policy."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from datasets import Dataset
from transformers import PrinterCallback

from recorded_queue import RecordedQueue
from turnloom.demo import task
from turnloom.demo.model import make_model, make_tokenizer, warm_start
from turnloom.demo.servers import Servers
from turnloom.demo.weights import WeightsOverHttp
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
from turnloom.testing import AgentCall, FakeAgent
from turnloom.testing.cpu import CPU_CONFIG, cpu_training

SEED, STEPS, GENERATIONS, GROUPS_PER_STEP = 0, 3, 4, 4


class RecordedAgent:
    """Hands each row on to the agent server, and remembers what reward came back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.rewards: dict[str, list[float]] = defaultdict(list)

    async def __call__(self, call: AgentCall) -> None:
        row = await call.row()
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            answer = (await http.post(f"{self._url}/run", json=row)).json()
        self.rewards[key_of(row)].append(answer["reward"])
        await call.answer(answer)


def key_of(row: dict[str, Any]) -> str:
    return json.dumps([row["item"], row["prices"]], sort_keys=True)


@pytest.mark.train
@pytest.mark.timeout(300)
def test_three_steps_train_on_what_the_agents_answered(tmp_path: Path) -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with Servers(seed=SEED) as servers:
        tokenizer, model, rows = make_tokenizer(), make_model(SEED), task.gym_rows(SEED)
        warm_start(model, tokenizer, seed=SEED)
        model.save_pretrained(tmp_path / "model")
        servers.wait_until_ready()
        weights = WeightsOverHttp(servers.policy_url)
        config = AsyncGRPOConfig(
            **CPU_CONFIG,
            output_dir=str(tmp_path / "trainer"),
            max_steps=STEPS,
            learning_rate=1e-3,
            num_generations=GENERATIONS,
            per_device_train_batch_size=GENERATIONS * GROUPS_PER_STEP,
            max_completion_length=6,
            disable_tqdm=True,
            save_strategy="no",
        )
        agent = RecordedAgent(servers.agent_url)
        with FakeAgent(agent) as proxy, cpu_training():
            dataset = Dataset.from_dict(task.dataset_columns(rows)).remove_columns("prompt")
            worker = NemoGymRolloutWorker.from_config(
                config,
                agent_servers={task.AGENT: proxy.url},
                dataset=dataset,
                processing_class=tokenizer,
                run_timeout=60.0,
            )
            trainer = AsyncGRPOTrainer(
                str(tmp_path / "model"),
                args=config,
                train_dataset=dataset,
                processing_class=tokenizer,
                rollout_worker=worker,
                weight_transfer=weights,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.rollout_queue = samples = RecordedQueue(worker.rollout_buffer)
            trainer.train()

    steps = [logs for logs in trainer.state.log_history if logs.get("reward") is not None]
    assert len(steps) == STEPS
    # The policy's logprobs, the rows, the packing and the attention agree.
    assert steps[0]["ratio"] == pytest.approx(1.0, abs=1e-4)

    trained = dict(trainer.model.named_parameters())
    changed = [name for name, before in model.named_parameters() if not torch.equal(before, trained[name])]
    assert len(changed) == len(trained)
    assert weights.version == STEPS + 1
    assert all(torch.equal(sent, trained[name]) for name, sent in weights.weights.items())

    groups: dict[int, list[Any]] = defaultdict(list)
    for sample in samples.taken:
        groups[sample.group_id].append(sample)
    assert len(trainer._trained_groups) >= STEPS * GROUPS_PER_STEP  # the trainer reads one batch ahead
    for group_id in trainer._trained_groups:
        rewards = [sample.metrics["rewards/nemo_gym"] for sample in groups[group_id]]
        assert sorted(rewards) == sorted(agent.rewards[key_of(rows[group_id])])
        mean = sum(rewards) / GENERATIONS
        std = (sum((reward - mean) ** 2 for reward in rewards) / GENERATIONS) ** 0.5
        advantages = [sample.advantage for sample in groups[group_id]]
        assert advantages == pytest.approx([(reward - mean) / (std + 1e-8) for reward in rewards])
    told = [logs for logs in steps if "nemo_gym/rollouts_total" in logs]
    assert told
    for logs in told:
        assert logs["nemo_gym/success_frac"] == 1.0
        assert logs["nemo_gym/outcome/ok_total"] == logs["nemo_gym/rollouts_total"]
        assert f"nemo_gym/agent/{task.AGENT}/reward" in logs
