"""Training rows as a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from turnloom._records import Record
from turnloom._rollout import TrainingRow

_ROWS_AT_A_TIME: Final = 256


def check_parquet() -> None:
    """Raises ImportError where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError("training rows as Parquet need pyarrow: pip install 'turnloom[parquet]'") from error


def write_parquet(path: Path, records: Iterable[Record]) -> int:
    """Write the training rows of these records, parsed with the settings of then; how many there are.

    Columns: `input_ids`, `completion_mask` and `old_log_probs` as in `TrainingRow`; `reward`, `agent`; `task_index` and
    `rollout_index`, the row of the dataset and which of its samples; `rollout_id`, which rows of one rollout share.
    """
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        {
            "task_index": pyarrow.int64(),
            "rollout_index": pyarrow.int64(),
            "rollout_id": pyarrow.string(),
            "agent": pyarrow.string(),
            "reward": pyarrow.float64(),
            "input_ids": pyarrow.list_(pyarrow.int64()),
            "completion_mask": pyarrow.list_(pyarrow.int64()),
            "old_log_probs": pyarrow.list_(pyarrow.float32()),
        }
    )
    count = 0
    unfinished = path.with_suffix(".new")
    with pyarrow.parquet.ParquetWriter(unfinished, schema, compression="zstd") as file:
        for batch in _batches(_rows(records)):
            columns = {name: [values[name] for values, _ in batch] for name in schema.names[:5]}
            for name in schema.names[5:]:
                columns[name] = _lists([getattr(row, name) for _, row in batch])
            file.write_table(pyarrow.table(columns, schema=schema))
            count += len(batch)
    os.replace(unfinished, path)
    return count


def _rows(records: Iterable[Record]) -> Iterator[tuple[dict[str, Any], TrainingRow]]:
    for record in records:
        rollout = record.rollout()
        values = {
            "task_index": record.request["_ng_task_index"],
            "rollout_index": record.request["_ng_rollout_index"],
            "rollout_id": rollout.id,
            "agent": rollout.agent,
            "reward": rollout.reward,
        }
        for row in rollout.rows:
            yield values, row


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch


def _lists(arrays: list[Any]) -> Any:
    """One list for each array, without a Python object for each element."""
    import pyarrow

    offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), np.concatenate(arrays))
