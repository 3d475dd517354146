"""The way without turnloom: decode everything, reconcile with TRL, make arrays. The honest baseline."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from turnloom.bench._decoders import Turns, json_turns

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="You are importing from 'trl.experimental'")  # on purpose
    from turnloom.integrations.nemo_gym._trl import chain_to_sequences

Row = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""input_ids, completion_mask, old_log_probs, each [L]."""


def training_rows(body: bytes, *, turns: Turns = json_turns, fork_threshold: int = 1024) -> list[Row]:
    """The rows that the answer in `body` gives."""
    sequences, _ = chain_to_sequences(turns(body), "bench", fork_threshold)
    return [
        (
            np.asarray(sequence.input_ids, dtype=np.int64),
            np.asarray(sequence.completion_mask, dtype=np.int64),
            np.asarray(sequence.old_log_probs, dtype=np.float32),
        )
        for sequence in sequences
    ]
