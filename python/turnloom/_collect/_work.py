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
from turnloom._records import Record, Records
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
        assert gym._recorder is not None
        self._gym, self._recorder = gym, gym._recorder
        self._rows = rows
        self._agent_of_row = [agent_of(gym_row(row), agents) for row in rows]
        self._folder = folder
        self._state = state
        self._samples_per_row = samples_per_row
        self._pass_reward = pass_reward
        self._ledger = Ledger()
        self._results = self._recorded()

    def _recorded(self) -> dict[Sample, Result]:
        """What is on the disk: of several attempts the last, or that after which none was needed."""
        results: dict[Sample, Result] = {}
        for record in Records(self._folder):
            if (sample := self._state.sample_of(record.request)) is not None:
                known = results.get(sample)
                if known is None or not known.is_done:
                    results[sample] = Result.of_record(record)
        return results

    async def do(self, concurrency: int, on_rollout: Callable[[Rollout], object] | None) -> None:
        """Roll out what is not done, so many at a time for each agent."""
        async with self._gym:
            servers = [
                asyncio.create_task(self._serve(left, on_rollout))
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
        self._check_disk()

    def _left(self, agent: str) -> Iterator[Sample]:
        for task, its_agent in enumerate(self._agent_of_row):
            if its_agent == agent:
                for index in range(self._samples_per_row):
                    sample = Sample(task, index)
                    if sample not in self._results or not self._results[sample].is_done:
                        yield sample

    def _count_left(self, agent: str) -> int:
        return sum(1 for _ in self._left(agent))

    async def _serve(self, left: Iterator[Sample], on_rollout: Callable[[Rollout], object] | None) -> None:
        for sample in left:
            fields = self._state.fields(sample)
            rollout = await self._gym.run(self._rows[sample.task_index], **self._state.sampling, fields=fields)
            self._check_disk()
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
        """Write it to a file, too; where the disk has taken no more, of what it has."""
        if self._recorder.failure is not None:
            self._results = self._recorded()
        summary = self.summary()
        write_json(path, summary.to_json())
        return summary

    def records(self) -> Iterator[Record]:
        """Those of the samples that are `ok`."""
        for record in Records(self._folder):
            sample = self._state.sample_of(record.request)
            if sample is not None and sample.rollout_index < self._samples_per_row and record.outcome == "ok":
                yield record

    def _check_disk(self) -> None:
        if self._recorder.failure is not None:
            raise OSError(f"the rollouts cannot be recorded any more: {self._recorder.failure}")
