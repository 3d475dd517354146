"""Small rows, and what every layout must make of rows, by numpy."""

import dataclasses
from typing import Any

import numpy as np

import turnloom
from turnloom import TrainingRow


def row(ids: list[int], mask: list[int], log_probs: list[float]) -> TrainingRow:
    return TrainingRow(np.array(ids, np.int64), np.array(mask, np.int64), np.array(log_probs, np.float32))


ROWS = [row([1, 2, 3], [0, 1, 1], [0, -1, -2]), row([4, 5, 6, 7, 0], [0, 0, 1, 0, 1], [0, 0, -3, 0, -4])]
VALUES = [[0, 0.5, 0.5], [0, 0, 1.5, 0, 2.5]]
LAYOUTS = [turnloom.pad, turnloom.pad_prompt_completion, turnloom.pack]


def told(batch: Any) -> dict[str, Any]:
    """A batch as plain values."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def arrays(batch: Any) -> dict[str, np.ndarray]:
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}


def kept_by_hand(rows: list[TrainingRow], settings: dict[str, Any]) -> dict[int, int]:
    """The length of each row that stays."""
    max_length = settings.get("max_length") or 99
    lengths = {number: len(one.input_ids) for number, one in enumerate(rows)}
    if settings.get("on_overflow") == "drop":
        return {number: length for number, length in lengths.items() if length <= max_length}
    return {number: min(length, max_length) for number, length in lengths.items()}


def refused_by_hand(rows: list[TrainingRow], settings: dict[str, Any]) -> str | None:
    """How the refusal begins, if there must be one."""
    for number, one in enumerate(rows):
        max_length, tokens = settings.get("max_length") or 99, len(one.input_ids)
        if settings.get("on_overflow", "error") == "error" and tokens > max_length:
            return f"row {number} has {tokens} tokens, more than max_length={max_length}: "
    for number, length in kept_by_hand(rows, settings).items():
        for token, one in enumerate(rows[number].input_ids[:length]):
            if one >= (settings.get("vocab_size") or 99):
                return f"row {number}: input_ids[{token}] is {one}, which is not in a vocabulary"
    return None


def matrix(vectors: list[np.ndarray], length: int, fill: float, left: bool) -> list[list[float]]:
    filled = np.full((len(vectors), length), fill, np.float64)
    for line, vector in zip(filled, vectors, strict=True):
        line[length - len(vector) if left else 0 :][: len(vector)] = vector
    return filled.tolist()


def laid_out_by_hand(
    layout: Any, rows: list[TrainingRow], values: list[np.ndarray], settings: dict[str, Any]
) -> dict[str, Any]:
    """What a layout must give, by numpy."""
    kept = kept_by_hand(rows, settings)
    lost = {number: len(rows[number].input_ids) - length for number, length in kept.items()}
    counts = {
        "kept_rows": list(kept),
        "dropped_rows": len(rows) - len(kept),
        "truncated_rows": sum(tokens > 0 for tokens in lost.values()),
        "truncated_tokens": sum(lost.values()),
    }
    ids = [rows[number].input_ids[:length] for number, length in kept.items()]
    masks = [rows[number].completion_mask[:length] for number, length in kept.items()]
    probs = [rows[number].old_log_probs[:length] for number, length in kept.items()]
    values = [values[number][:length] for number, length in kept.items()]
    fill = settings.get("pad_token_id", 0)
    if layout is turnloom.pack:
        lengths = list(kept.values())
        return counts | {
            "input_ids": [int(token) for one in ids for token in one],
            "position_ids": [place for length in lengths for place in range(length)],
            "completion_mask": [int(trained) for one in masks for trained in one],
            "old_log_probs": [float(prob) for one in probs for prob in one],
            "row_index": [number for number, length in enumerate(lengths) for _ in range(length)],
            "cu_seqlens": [0, *np.cumsum(lengths, dtype=int).tolist()],
            "max_seqlen": max(lengths, default=0),
            "values": [float(value) for one in values for value in one],
        }
    if layout is turnloom.pad:
        multiple_of, left = settings.get("multiple_of", 1), settings.get("padding_side") == "left"
        length = -(-max(map(len, ids), default=0) // multiple_of) * multiple_of
        return counts | {
            "input_ids": matrix(ids, length, fill, left),
            "attention_mask": matrix([np.ones(len(one)) for one in ids], length, 0, left),
            "completion_mask": matrix(masks, length, 0, left),
            "old_log_probs": matrix(probs, length, 0, left),
            "values": matrix(values, length, 0, left),
        }
    cuts = [int(mask.argmax()) if mask.any() else len(mask) for mask in masks]
    prompts = max(cuts, default=0)
    completions = max((len(one) - cut for one, cut in zip(ids, cuts, strict=True)), default=0)

    def rest(vectors: list[np.ndarray], fill: float) -> list[list[float]]:
        return matrix([one[cut:] for one, cut in zip(vectors, cuts, strict=True)], completions, fill, False)

    return counts | {
        "prompt_ids": matrix([one[:cut] for one, cut in zip(ids, cuts, strict=True)], prompts, fill, True),
        "prompt_mask": matrix([np.ones(cut) for cut in cuts], prompts, 0, True),
        "completion_ids": rest(ids, fill),
        "completion_mask": rest([np.ones(len(one)) for one in ids], 0),
        "loss_mask": rest(masks, 0),
        "old_log_probs": rest(probs, 0),
        "values": rest(values, 0),
    }
