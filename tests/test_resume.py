"""A training that was stopped goes on with the next row of the dataset: TRL's trainer, its checkpoint, our worker."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PrinterCallback, Qwen3Config, Qwen3ForCausalLM
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from recorded_queue import RecordedQueue
from trl_loops import dataset_of, make_tokenizer
from trl_workers import forkserver
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
from turnloom.testing import CPU_CONFIG, AgentCall, FakeAgent, WeightTransfer, cpu_training, gym_answer

GENERATIONS, GROUPS_PER_STEP, STEPS, ROWS = 2, 2, 4, 24
FAILING = {1, 4, 5, 9}


async def by_number(call: AgentCall) -> None:
    row = await call.row()
    if row["row"] in FAILING:
        await call.answer("it broke", status=500)
    else:
        await call.answer(gym_answer(row, turns=[([2, 2], [3 + row["row"] % 4, 1], [-1.0, -1.0])], reward=1.0))


@dataclass
class Training:
    """What a training leaves."""

    samples: list[Any]
    weights: WeightTransfer

    def rows_read(self, batches: int) -> list[int]:
        """The dataset rows of so many batches, in order."""
        samples = self.samples[: batches * GROUPS_PER_STEP * GENERATIONS]
        return [int(sample.prompt[0]["content"]) for sample in samples[::GENERATIONS]]


def train(folder: Path, url: str, *, steps: int, resume_from: str | None = None) -> Training:
    config = AsyncGRPOConfig(
        **CPU_CONFIG,
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        learning_rate=1e-3,
        num_generations=GENERATIONS,
        per_device_train_batch_size=GENERATIONS * GROUPS_PER_STEP,
        max_inflight_tasks=GENERATIONS,
        max_completion_length=4,
        queue_maxsize=2,
        disable_tqdm=True,
        save_steps=1,
    )
    rows = dataset_of(*({"row": row, "responses_create_params": {"input": str(row)}} for row in range(ROWS)))
    with cpu_training():
        worker = NemoGymRolloutWorker.from_config(
            config, agent_servers={"math": url}, dataset=rows, processing_class=make_tokenizer(), score_queue_maxsize=1
        )
        worker._mp_ctx = forkserver()
        weights = WeightTransfer()
        trainer = AsyncGRPOTrainer(
            str(folder / "model"),
            args=config,
            train_dataset=rows,
            processing_class=make_tokenizer(),
            rollout_worker=worker,
            weight_transfer=weights,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.rollout_queue = samples = RecordedQueue(worker.rollout_buffer)
        trainer.train(resume_from_checkpoint=resume_from)
    return Training(samples.taken, weights)


def save_model(folder: Path) -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    config = Qwen3Config(vocab_size=16, num_attention_heads=2, num_key_value_heads=1, eos_token_id=1, **small)
    Qwen3ForCausalLM(config).save_pretrained(folder)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "trainer" / f"checkpoint-{step}"


def saved(folder: Path, step: int) -> Any:
    return json.loads((checkpoint(folder, step) / "rollout_state.json").read_text())


@pytest.mark.train
@pytest.mark.timeout(300)
def test_a_resumed_training_skips_no_row_and_repeats_no_more_than_had_failed(tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    save_model(tmp_path / "model")
    with FakeAgent(by_number) as agent:
        first = train(tmp_path, agent.url, steps=STEPS)
        states = [saved(tmp_path, step) for step in range(1, STEPS + 1)]
        second = train(tmp_path, agent.url, steps=STEPS + 1, resume_from=str(checkpoint(tmp_path, STEPS)))

    # TRL counts the batch that it has read ahead as trained.
    read = first.rows_read(STEPS + 1)
    failed = FAILING & set(range(max(read)))
    assert read == [row for row in range(ROWS) if row not in FAILING][: len(read)]
    assert [state["prompt_index"] for state in states] == [GROUPS_PER_STEP * (step + 1) for step in range(1, STEPS + 1)]
    again = second.rows_read(2)
    assert set(range(max(again))) <= {*read, *again, *FAILING}, "none is skipped"
    assert len(set(read) & set(again)) <= len(failed) == 4

    # The policy's version moves on with every sync, and goes on from there.
    assert [state["model_version"] for state in states] == [step + 1 for step in range(1, STEPS + 1)]
    assert first.weights.version == STEPS + 1
    versions = [sample.model_version for sample in first.samples]
    assert versions == sorted(versions)
    assert versions[0] == 1 < versions[-1] <= STEPS + 1
    assert {sample.model_version for sample in second.samples} <= {STEPS + 2, STEPS + 3}
