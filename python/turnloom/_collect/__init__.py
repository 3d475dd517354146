"""Rolling out a dataset: every row so many times, each exactly once, whatever interrupts it.

The records are what is remembered: a sample is done when its record is on the disk. `_folder` is what a folder of
records knows of its collection, `_work` what is left to do of it, `_results` what the samples have come to, `_parquet`
their rows for a trainer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from turnloom._client import DEFAULT_RUN_TIMEOUT_S, GymClient
from turnloom._collect._folder import locked, take_up
from turnloom._collect._parquet import check_parquet, write_parquet
from turnloom._collect._results import CollectionSummary, Figures, PassRate
from turnloom._collect._work import Work
from turnloom._exceptions import ConfigError
from turnloom._groups import check_rows
from turnloom._gym import checked_sampling
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS, Branches
from turnloom._records import RecordWriter, writable_folder
from turnloom._rollout import Rollout

__all__ = ["DEFAULT_CONCURRENCY", "PARQUET", "SUMMARY", "CollectionSummary", "Figures", "PassRate", "collect"]

DEFAULT_CONCURRENCY: Final = 64
SUMMARY: Final = "summary.json"
PARQUET: Final = "rows.parquet"


async def collect(
    agent_servers: Mapping[str, str | Sequence[str]],
    rows: Sequence[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    max_tokens: int,
    samples_per_row: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    concurrency: int = DEFAULT_CONCURRENCY,
    run_timeout: float | None = DEFAULT_RUN_TIMEOUT_S,
    deadline: float | None = None,
    fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD_TOKENS,
    branches: Branches = "linear",
    pass_reward: float = 1.0,
    parquet: bool = False,
    on_begin: Callable[[CollectionSummary], object] | None = None,
    on_rollout: Callable[[Rollout], object] | None = None,
) -> CollectionSummary:
    """Roll out every row, and leave records, a summary and, if wanted, training rows in a folder.

    Called again with the same folder it goes on where it was interrupted, also by `kill -9`. A sample with a sound
    answer (`ok`, `masked`, `no_tokens`, `no_reward`) is done, and not asked for again; one that failed, or was under
    way, is. Rows may have been added at the end, and samples.

    Args:
        agent_servers: as `GymClient` takes them.
        rows: as `GymClient.run` takes them.
        out: the folder: `records-*.zst` (see `Records`), `summary.json`, and `rows.parquet`.
        max_tokens: bounds the generated tokens of each model call.
        samples_per_row: how often each row is rolled out.
        temperature: of the sampling.
        top_p: likewise.
        concurrency: rollouts in flight for each agent.
        run_timeout: as in `GymClient`, and so are `deadline`, `fork_threshold_tokens` and `branches`.
        pass_reward: for pass@k, a sample passes with this reward or more.
        parquet: whether to write the training rows as a Parquet file, with the columns `input_ids`,
            `completion_mask`, `old_log_probs`, `reward`, `agent`, `task_index`, `rollout_index` and `rollout_id`.
        on_begin: called with what is there already.
        on_rollout: called with each rollout that has ended.

    Raises:
        ConfigError: a setting is out of its range; a row cannot be sent; the folder has another collection, or is
            being written to by another process; or none of many answers carried a token id.
        ImportError: zstandard is not installed, or pyarrow, if it is needed.
        OSError: the disk does not take the records.
    """
    limit, temperature, top_p = checked_sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
    sampling = {"max_tokens": limit, "temperature": temperature, "top_p": top_p}
    for name, count in (("samples_per_row", samples_per_row), ("concurrency", concurrency)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{name}={count!r}: an integer of at least 1 is needed")
    gym = GymClient(
        agent_servers,
        run_timeout=run_timeout,
        deadline=deadline,
        fork_threshold_tokens=fork_threshold_tokens,
        branches=branches,
    )
    check_rows(rows, agent_servers)
    if parquet:
        check_parquet()
    folder = writable_folder(out)
    with locked(folder):
        # A training does not wait for the disk; this is about nothing but what is on it.
        gym._recorder = RecordWriter(folder, max_bytes=None, when_full="wait")
        state = take_up(folder, rows, sampling)
        work = Work(gym, agent_servers, rows, folder, state, samples_per_row=samples_per_row, pass_reward=pass_reward)
        if on_begin is not None:
            on_begin(work.summary())
        try:
            await work.do(concurrency, on_rollout)
        finally:
            summary = work.write_summary(folder / SUMMARY)
        if parquet:
            write_parquet(folder / PARQUET, work.records())
    return summary
