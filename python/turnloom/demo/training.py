"""TRL's real trainer and its real worker process, and between them and the agent `NemoGymRolloutWorker`."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import transformers
from transformers import PrinterCallback, TrainerCallback

from turnloom import GymClient, Rollout
from turnloom.demo import task
from turnloom.demo.model import make_model, make_tokenizer, warm_start
from turnloom.demo.progress import Bar
from turnloom.demo.servers import Servers
from turnloom.demo.weights import WeightsOverHttp
from turnloom.integrations.nemo_gym._trl import AsyncGRPOConfig, AsyncGRPOTrainer
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker
from turnloom.testing.cpu import CPU_CONFIG, cpu_training

_GENERATIONS = 16
_GROUPS_PER_STEP = 8
_MAX_TOKENS = 6
_RUN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Training:
    """What a training leaves: the metrics of each step, and one row's rollouts before and after."""

    metrics: list[dict[str, Any]]
    question: str
    before: Rollout
    after: Rollout


def train(servers: Servers, bar: Bar, metrics_file: Path, *, seed: int, steps: int, weight_sync: bool) -> Training:
    """Warm the policy up, and train it for `steps` steps. The metrics of each go to `metrics_file` as it ends.

    Raises:
        RuntimeError: a server or the worker process ended.
    """
    transformers.logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    rows = task.gym_rows(seed)
    bar.stage("warm start")
    model = make_model(seed)
    warm_start(model, tokenizer, seed=seed)
    bar.stage("waiting for the servers")
    servers.wait_until_ready()
    weights = WeightsOverHttp(servers.policy_url, enabled=weight_sync)
    weights.post(dict(model.named_parameters()))
    before = _roll_out(servers, rows[0])
    step_metrics = _StepMetrics(bar, metrics_file)
    with tempfile.TemporaryDirectory(prefix="turnloom-demo-") as folder, cpu_training():
        model.save_pretrained(folder)
        trainer = _make_trainer(Path(folder), servers, rows, tokenizer, weights, seed=seed, steps=steps)
        trainer.add_callback(step_metrics)
        trainer.remove_callback(PrinterCallback)
        bar.stage("starting the worker process")
        trainer.train()
    bar.stage("done")
    return Training(step_metrics.metrics, task.question(rows[0]["item"]), before, _roll_out(servers, rows[0]))


def _make_trainer(
    folder: Path,
    servers: Servers,
    rows: list[dict[str, Any]],
    tokenizer: Any,
    weights: WeightsOverHttp,
    *,
    seed: int,
    steps: int,
) -> Any:
    dataset = datasets.Dataset.from_dict(task.dataset_columns(rows))
    config = AsyncGRPOConfig(
        **CPU_CONFIG,
        output_dir=str(folder / "trainer"),
        seed=seed,
        max_steps=steps,
        learning_rate=1e-3,
        weight_decay=0.0,
        num_generations=_GENERATIONS,
        per_device_train_batch_size=_GENERATIONS * _GROUPS_PER_STEP,
        max_inflight_tasks=_GENERATIONS * _GROUPS_PER_STEP,
        queue_maxsize=_GENERATIONS * _GROUPS_PER_STEP,
        max_completion_length=_MAX_TOKENS,
        epsilon=0.2,
        epsilon_high=0.28,
        # A realign would take what `lookup tea apple` has too much out of the training, unpunished.
        fork_threshold_tokens=0,
        disable_tqdm=True,
        save_strategy="no",
    )
    worker = _ShieldedWorker.from_config(
        config,
        agent_servers={task.AGENT: servers.agent_url},
        dataset=dataset,
        processing_class=tokenizer,
        run_timeout=_RUN_TIMEOUT_S,
    )
    return AsyncGRPOTrainer(
        str(folder),
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=weights,
    )


class _ShieldedWorker(NemoGymRolloutWorker):
    """A worker whose process does not hear Ctrl-C in a terminal: its parent ends it."""

    def start(self) -> None:
        # Blocked signals are inherited by a process from the thread that starts it.
        with ThreadPoolExecutor(1, initializer=_block_interrupts) as thread:
            thread.submit(super().start).result()


def _block_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class _StepMetrics(TrainerCallback):  # type: ignore[misc]
    """Collects what the trainer logs at each step."""

    def __init__(self, bar: Bar, file: Path) -> None:
        self.metrics: list[dict[str, Any]] = []
        self._bar = bar
        self._file = file

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        # The last log is of the whole training, and has none.
        if logs.get("reward") is None:
            return
        self.metrics.append({"step": state.global_step, **logs})
        with self._file.open("a") as file:
            file.write(json.dumps(self.metrics[-1]) + "\n")
        self._bar.step(state.global_step, reward=logs["reward"])


def _roll_out(servers: Servers, row: dict[str, Any]) -> Rollout:
    """One rollout of the policy as it is now."""

    async def run() -> Rollout:
        async with GymClient({task.AGENT: servers.agent_url}, run_timeout=_RUN_TIMEOUT_S) as gym:
            return await gym.run(row, max_tokens=_MAX_TOKENS, temperature=1.0, top_p=1.0)

    return asyncio.run(run())
