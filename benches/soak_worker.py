"""The worker of the soak: turnloom's own for TRL, in a process of its own, which leaves its counts behind."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from turnloom.demo.model import make_tokenizer
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop, NemoGymRolloutWorker
from turnloom.testing import cpu_training

PartialState(cpu=True)  # TRL's log needs it, where no trainer has made it


class SoakLoop(NemoGymRolloutLoop):
    def __init__(self, *args: Any, counts_file: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counts_file = Path(counts_file)

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
        try:
            await super()._run_loops(stop_event)
        finally:
            self._counts_file.write_text(json.dumps(self._ledger.metrics.counts()))


class SoakWorker(NemoGymRolloutWorker):
    _loop_cls = SoakLoop


def make_worker(url: str, rows: list[dict[str, Any]], counts_file: Path, **settings: Any) -> SoakWorker:
    """The worker, for an agent at `url`; it has no trainer, and asks for no GPU."""
    dataset = Dataset.from_dict({"nemo_gym_row": [json.dumps(row) for row in rows]})
    with cpu_training():
        worker = SoakWorker(
            {"soak": url}, dataset=dataset, processing_class=make_tokenizer(), max_tokens=64, **settings
        )
    worker._loop_kwargs["counts_file"] = str(counts_file)
    return worker
