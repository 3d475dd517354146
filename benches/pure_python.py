"""The way without turnloom: decode everything, reconcile with TRL, make arrays. The honest baseline."""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its reconciler is not public

from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

Row = tuple[np.ndarray, np.ndarray, np.ndarray]
Turns = list[TurnRecord]


def turns_of(body: bytes, loads: Callable[[bytes], Any] = json.loads) -> Turns:
    """The model calls that the answer in `body` tells."""
    return [
        TurnRecord(item["prompt_token_ids"], item["generation_token_ids"], item["generation_log_probs"])
        for item in loads(body)["response"]["output"]
        if item.get("generation_token_ids")
    ]


def training_rows(
    body: bytes, *, turns_of: Callable[[bytes], Turns] = turns_of, fork_threshold: int = 1024
) -> list[Row]:
    """(input_ids, completion_mask, old_log_probs) of each row that the answer in `body` gives."""
    sequences, _ = _chain_to_sequences(turns_of(body), "bench", fork_threshold)
    return [
        (
            np.asarray(sequence.input_ids, dtype=np.int64),
            np.asarray(sequence.completion_mask, dtype=np.int64),
            np.asarray(sequence.old_log_probs, dtype=np.float32),
        )
        for sequence in sequences
    ]
