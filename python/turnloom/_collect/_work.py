"""What is left to do of a collection, and the doing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnloom._client import GymClient
from turnloom._collect._folder import Sample, State, write_json
from turnloom._collect._results import CollectionSummary, Result, summarize
from turnloom._gym import agent_of, gym_row
from turnloom._metrics import Ledger
from turnloom._records import Record, Records, RecordWriter
from turnloom._rollout import Rollout


class Work:
    """The samples of a collection: those that are done already, and those that are not.

    Args:
        gym: not yet open; it records into the folder.
        state: the folder's.
    """

    def __init__(
        self,
        gym: GymClient,
        agents: Iterable[str],
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        state: State,
        *,
        samples_per_row: int,
        pass_reward: float,
    ) -> None:
        self._gym = gym
        self._rows = rows
        self._agent_of_row = [agent_of(gym_row(row), agents) for row in rows]
        self._folder = folder
        self._state = state
        self._samples_per_row = samples_per_row
        self._pass_reward = pass_reward
        self._ledger = Ledger()
        self._results: dict[Sample, Result] = {}
        for record in Records(folder):
            self._enter(record)

    def _enter(self, record: Record) -> None:
        """Of several attempts the last counts, or that after which none was needed."""
        if (sample := self._state.sample_of(record.request)) is not None:
            known = self._results.get(sample)
            if known is None or not known.is_done:
                self._results[sample] = Result.of_record(record)

    async def do(self, concurrency: int, on_rollout: Callable[[Rollout], object] | None) -> None:
        """Roll out what is not done, so many at a time for each agent."""
        recorder = self._gym._recorder
        assert recorder is not None
        async with self._gym:
            servers = [
                asyncio.create_task(self._serve(left, recorder, on_rollout))
                for agent in dict.fromkeys(self._agent_of_row)
                for left in [self._left(agent)]
                for _ in range(min(concurrency, self._count_left(agent)))
            ]
            try:
                await asyncio.gather(*servers)
            finally:
                for server in servers:
                    server.cancel()
                await asyncio.gather(*servers, return_exceptions=True)
        _check(recorder)

    def _left(self, agent: str) -> Iterator[Sample]:
        for task, its_agent in enumerate(self._agent_of_row):
            if its_agent == agent:
                for index in range(self._samples_per_row):
                    sample = Sample(task, index)
                    if sample not in self._results or not self._results[sample].is_done:
                        yield sample

    def _count_left(self, agent: str) -> int:
        return sum(1 for _ in self._left(agent))

    async def _serve(
        self, left: Iterator[Sample], recorder: RecordWriter, on_rollout: Callable[[Rollout], object] | None
    ) -> None:
        for sample in left:
            fields = self._state.fields(sample)
            rollout = await self._gym.run(self._rows[sample.task_index], **self._state.sampling, fields=fields)
            _check(recorder)
            self._results[sample] = Result.of_rollout(rollout)
            if on_rollout is not None:
                on_rollout(rollout)
            self._ledger.enter(rollout)

    def summary(self) -> CollectionSummary:
        """What the samples have come to so far."""
        return summarize(
            self._agent_of_row,
            self._results,
            samples_per_row=self._samples_per_row,
            pass_reward=self._pass_reward,
        )

    def write_summary(self, path: Path) -> CollectionSummary:
        """Write it to a file, too."""
        summary = self.summary()
        write_json(path, summary.to_json())
        return summary

    def records(self) -> Iterator[Record]:
        """Those of the samples that are `ok`."""
        for record in Records(self._folder):
            sample = self._state.sample_of(record.request)
            if sample is not None and sample.rollout_index < self._samples_per_row and record.outcome == "ok":
                yield record


def _check(recorder: RecordWriter) -> None:
    if recorder.failure is not None:
        raise OSError(f"the rollouts cannot be recorded any more: {recorder.failure}")
