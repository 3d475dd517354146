"""Times `pad`, `pad_prompt_completion` and `pack` beside a copy of as many bytes, and beside torch and numpy on lists.

    python benches/bench_collate.py [--fast] [--json FILE]

256 rows of 16,384 tokens. All ways are checked to give the same arrays first. Then they run in turns, in another order
each round, so that whatever else the machine does falls on all of them alike. The figures are medians. The copy is
numpy's, of each of the batch's own arrays: new memory, and the page faults that come with it, are in both.

Torch is the way that trainers go with rows of lists: a tensor of each, then padded or joined. Numpy is the quickest
that lists allow; how far even the copy is ahead of it says how far anything can be.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import turnloom

PAD = 151_643
TARGETS = {"copy": 1.5, "torch": 20}
"""At most so many times as long as the copy; at least so many times faster than torch from lists."""
ROUNDS = 5
QUICK_PER_ROUND = 5
"""How often what takes milliseconds runs for each time that what takes seconds does."""

Arrays = dict[str, Any]


@dataclass
class Lists:
    """A row as the pure-Python way has it in hand."""

    input_ids: list[int]
    completion_mask: list[int]
    old_log_probs: list[float]


def some_rows(rows: int, tokens: int) -> list[turnloom.TrainingRow]:
    """Rows with prompts of an eighth of their length, and every other 64 tokens trained after them."""
    drawn = np.random.default_rng(0)
    mask = (np.arange(tokens) // 64 % 2).astype(np.int64)
    mask[: tokens // 8] = 0
    return [
        turnloom.TrainingRow(
            drawn.integers(0, PAD, tokens),
            mask.copy(),
            (mask * -drawn.exponential(size=tokens)).astype(np.float32),
        )
        for _ in range(rows)
    ]


# With torch, row by row, as trainers write it


def vectors(rows: Sequence[Lists]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    return (
        [torch.tensor(row.input_ids) for row in rows],
        [torch.tensor(row.completion_mask) for row in rows],
        [torch.tensor(row.old_log_probs) for row in rows],
    )


def padded(parts: list[torch.Tensor], fill: float = 0, side: str = "right") -> torch.Tensor:
    return pad_sequence(parts, batch_first=True, padding_value=fill, padding_side=side)


def torch_pad(rows: Sequence[Lists]) -> Arrays:
    ids, masks, log_probs = vectors(rows)
    return {
        "input_ids": padded(ids, PAD),
        "attention_mask": padded([torch.ones_like(row) for row in ids]),
        "completion_mask": padded(masks),
        "old_log_probs": padded(log_probs),
    }


def torch_pad_prompt_completion(rows: Sequence[Lists]) -> Arrays:
    ids, masks, log_probs = vectors(rows)
    cuts = [row.completion_mask.index(1) for row in rows]
    prompts = [row[:cut] for row, cut in zip(ids, cuts, strict=True)]
    completions = [row[cut:] for row, cut in zip(ids, cuts, strict=True)]
    return {
        "prompt_ids": padded(prompts, PAD, "left"),
        "prompt_mask": padded([torch.ones_like(row) for row in prompts], 0, "left"),
        "completion_ids": padded(completions, PAD),
        "completion_mask": padded([torch.ones_like(row) for row in completions]),
        "loss_mask": padded([row[cut:] for row, cut in zip(masks, cuts, strict=True)]),
        "old_log_probs": padded([row[cut:] for row, cut in zip(log_probs, cuts, strict=True)]),
    }


def torch_pack(rows: Sequence[Lists]) -> Arrays:
    ids, masks, log_probs = vectors(rows)
    lengths = torch.tensor([0, *map(len, ids)])
    return {
        "input_ids": torch.cat(ids),
        "position_ids": torch.cat([torch.arange(len(row)) for row in ids]),
        "completion_mask": torch.cat(masks),
        "old_log_probs": torch.cat(log_probs),
        "row_index": torch.repeat_interleave(torch.arange(len(ids)), lengths[1:]),
        "cu_seqlens": lengths.cumsum(0, dtype=torch.int32),
    }


# With numpy, row by row


def filled(parts: Sequence[Sequence[float]], dtype: Any, fill: float = 0, left: bool = False) -> np.ndarray:
    length = max(map(len, parts))
    array = np.full((len(parts), length), fill, dtype)
    for line, part in zip(array, parts, strict=True):
        line[length - len(part) if left else 0 :][: len(part)] = part
    return array


def ones(parts: Sequence[Sequence[int]], left: bool = False) -> np.ndarray:
    return filled([np.ones(len(part), np.int64) for part in parts], np.int64, left=left)


def numpy_pad(rows: Sequence[Lists]) -> Arrays:
    ids = [row.input_ids for row in rows]
    return {
        "input_ids": filled(ids, np.int64, PAD),
        "attention_mask": ones(ids),
        "completion_mask": filled([row.completion_mask for row in rows], np.int64),
        "old_log_probs": filled([row.old_log_probs for row in rows], np.float32),
    }


def numpy_pad_prompt_completion(rows: Sequence[Lists]) -> Arrays:
    cuts = [row.completion_mask.index(1) for row in rows]
    prompts = [row.input_ids[:cut] for row, cut in zip(rows, cuts, strict=True)]
    completions = [row.input_ids[cut:] for row, cut in zip(rows, cuts, strict=True)]
    return {
        "prompt_ids": filled(prompts, np.int64, PAD, left=True),
        "prompt_mask": ones(prompts, left=True),
        "completion_ids": filled(completions, np.int64, PAD),
        "completion_mask": ones(completions),
        "loss_mask": filled([row.completion_mask[cut:] for row, cut in zip(rows, cuts, strict=True)], np.int64),
        "old_log_probs": filled([row.old_log_probs[cut:] for row, cut in zip(rows, cuts, strict=True)], np.float32),
    }


def numpy_pack(rows: Sequence[Lists]) -> Arrays:
    lengths = [len(row.input_ids) for row in rows]
    return {
        "input_ids": np.concatenate([np.array(row.input_ids) for row in rows]),
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "completion_mask": np.concatenate([np.array(row.completion_mask) for row in rows]),
        "old_log_probs": np.concatenate([np.array(row.old_log_probs, np.float32) for row in rows]),
        "row_index": np.repeat(np.arange(len(rows)), lengths),
        "cu_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
    }


LAYOUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Arrays], Callable[[Any], Arrays]]] = {
    "pad": (lambda rows: turnloom.pad(rows, pad_token_id=PAD), torch_pad, numpy_pad),
    "pad_prompt_completion": (
        lambda rows: turnloom.pad_prompt_completion(rows, pad_token_id=PAD),
        torch_pad_prompt_completion,
        numpy_pad_prompt_completion,
    ),
    "pack": (turnloom.pack, torch_pack, numpy_pack),
}


def measure(name: str, rows: list[turnloom.TrainingRow], lists: list[Lists]) -> dict[str, Any]:
    """Medians in seconds of all the ways to one layout."""
    ours, by_torch, by_numpy = LAYOUTS[name]
    batch = ours(rows)
    arrays = [getattr(batch, field) for field in require_equal(name, batch, by_torch(lists), by_numpy(lists))]
    quick = {"turnloom": lambda: ours(rows), "copy": lambda: [array.copy() for array in arrays]}
    slow = {"torch": lambda: by_torch(lists), "numpy": lambda: by_numpy(lists)}
    seconds = median_seconds([*slow.items(), *list(quick.items()) * QUICK_PER_ROUND])
    return {"layout": name, "bytes": sum(array.nbytes for array in arrays)} | seconds


def require_equal(name: str, batch: Any, *others: Arrays) -> list[str]:
    """All ways give the same arrays, bit for bit; else there is nothing to compare. Gives their names."""
    for other in others:
        for field, array in other.items():
            mine, theirs = getattr(batch, field), np.asarray(array)
            assert mine.dtype == theirs.dtype, f"{name}: {field} is {mine.dtype}, not {theirs.dtype}"
            assert mine.shape == theirs.shape, f"{name}: {field} has the shape {mine.shape}, not {theirs.shape}"
            assert mine.tobytes() == theirs.tobytes(), f"{name}: {field} differs"
    return list(others[0])


def median_seconds(ways: list[tuple[str, Callable[[], Any]]]) -> dict[str, float]:
    """Median seconds of each way; one that is listed several times runs as often in each round."""
    seconds: dict[str, list[float]] = {way: [] for way, _ in ways}
    shuffled = random.Random(0)
    for _ in range(ROUNDS):
        for way, run in shuffled.sample(ways, len(ways)):
            start = time.perf_counter()
            result = run()
            seconds[way].append(time.perf_counter() - start)
            del result
    return {way: statistics.median(times) for way, times in seconds.items()}


def print_table(results: list[dict[str, Any]]) -> None:
    head = ("layout", "MB", "turnloom ms", "copy ms", "torch ms", "numpy ms", "GB/s", "copies", "torch ×", "numpy ×")
    print(("{:22}" + "{:>12}" * 9).format(*head))
    for result in results:
        ours, size = result["turnloom"], result["bytes"]
        milliseconds = [1e3 * result[way] for way in ("turnloom", "copy", "torch", "numpy")]
        ratios = [ours / result["copy"], result["torch"] / ours, result["numpy"] / ours]
        row = (result["layout"], size / 1e6, *milliseconds, size / ours / 1e9, *ratios)
        print("{:22}{:12.1f}{:12.2f}{:12.2f}{:12.1f}{:12.1f}{:12.2f}{:12.2f}{:12.1f}{:12.1f}".format(*row))
    print(f"{'target':94}{'≤ ' + str(TARGETS['copy']):>12}{'≥ ' + str(TARGETS['torch']):>12}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="16 rows of 2,048 tokens only, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the medians, in seconds, to this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = some_rows(*((16, 2_048) if arguments.fast else (256, 16_384)))
    lists = [Lists(row.input_ids.tolist(), row.completion_mask.tolist(), row.old_log_probs.tolist()) for row in rows]
    results = [measure(name, rows, lists) for name in LAYOUTS]
    print(
        f"numpy {np.__version__}, torch {torch.__version__}, turnloom {turnloom.__version__}; {len(rows)} rows of "
        f"{len(rows[0].input_ids)} tokens; medians, all arrays equal bit for bit"
    )
    print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
