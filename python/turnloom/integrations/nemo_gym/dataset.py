"""NeMo Gym's JSONL files as datasets for trainers."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from turnloom._gym import ROW_COLUMN, prompt_of, read_rows

if TYPE_CHECKING:
    import datasets

__all__ = ["load_dataset"]


def load_dataset(path: str | os.PathLike[str]) -> datasets.Dataset:
    """A JSONL file of NeMo Gym's rows as a dataset for `NemoGymRolloutWorker` and TRL's trainer.

    Two columns: `nemo_gym_row` is the line as it stands in the file, so that Arrow adds nothing to it and the agent
    gets the row as it was written; `prompt` is what the agent is asked, as chat messages, for reward functions and
    logs. A line that has a column `nemo_gym_row` itself stands for the row in it. Blank lines are skipped.

    Raises:
        ConfigError: the file has no row, or lines that are no rows: up to ten of them by number, and why.
        OSError: the file cannot be read.
        ImportError: `datasets` is not installed.
    """
    try:
        from datasets import Dataset, Features, Json, List, Value
    except ImportError as error:
        raise ImportError("load_dataset needs datasets 4.7 or later: pip install 'turnloom[trl]'") from error
    rows = read_rows(path)
    columns = {
        ROW_COLUMN: [row[ROW_COLUMN] for row in rows],
        "prompt": [[_as_json(message) for message in prompt_of(row)] for row in rows],
    }
    # Messages have different members; as a struct of Arrow each would get those of all.
    return Dataset.from_dict(columns, features=Features({ROW_COLUMN: Value("string"), "prompt": List(Json())}))


def _as_json(message: dict[str, Any]) -> str:
    """With half surrogate pairs replaced, which Arrow cannot hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(message, ensure_ascii=False))
