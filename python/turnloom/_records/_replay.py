"""Rollouts once more from their records, and what they come to under these settings or those."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from turnloom._exceptions import MalformedRecord
from turnloom._parse import Branches, RunParser
from turnloom._records._reader import Records
from turnloom._rollout import Rollout


def replay(
    records: Records | str | os.PathLike[str],
    *,
    fork_threshold_tokens: int | None = None,
    branches: Branches | None = None,
    honor_mask_sample: bool | None = None,
) -> Iterator[Rollout]:
    """The rollouts of records, one after the other, without a server: `Record.rollout` of each.

    With the settings of then, the rows are byte for byte those of then. A record whose answer is damaged is skipped,
    and told in the log and in `Records.problems`.

    Args:
        records: or the folder, or the file, that they are in.
        fork_threshold_tokens: as in `RunParser`; None for that of then, here and below.
        branches: likewise.
        honor_mask_sample: likewise.

    Raises:
        ConfigError: there are no records, or a setting is out of its range.
        ImportError: zstandard is not installed.
    """
    given: dict[str, Any] = {
        "fork_threshold_tokens": fork_threshold_tokens,
        "branches": branches,
        "honor_mask_sample": honor_mask_sample,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    RunParser(**changed)  # raises for what it does not take
    return _rollouts(records if isinstance(records, Records) else Records(records), changed)


def _rollouts(records: Records, changed: dict[str, Any]) -> Iterator[Rollout]:
    for record in records:
        try:
            yield record.rollout(**changed)
        except MalformedRecord as error:
            records.skip(error)


@dataclass(frozen=True, slots=True)
class Totals:
    """What rollouts come to, as training rows."""

    rollouts: int
    ok: int
    """Of them, those that are trained."""
    rows: int
    trained_tokens: int
    discarded_tokens: int
    """Trained tokens that realigns removed."""
    realigns: int
    forks: int
    longest_row: int
    """Tokens."""
    packed_tokens: int
    """All rows one after the other."""

    @property
    def padded_tokens(self) -> int:
        """All rows padded to the longest."""
        return self.rows * self.longest_row


def totals_of(rollouts: Iterable[Rollout]) -> Totals:
    """What these rollouts come to, of those that are `ok`; none is kept."""
    count = ok = trained = discarded = realigns = forks = 0
    lengths: list[int] = []
    for rollout in rollouts:
        count += 1
        if rollout.outcome == "ok":
            ok += 1
            lengths += [len(row.input_ids) for row in rollout.rows]
            trained += sum(int(row.completion_mask.sum()) for row in rollout.rows)
            discarded += rollout.drift.discarded_tokens
            realigns += rollout.drift.realign
            forks += rollout.drift.fork
    return Totals(
        rollouts=count,
        ok=ok,
        rows=len(lengths),
        trained_tokens=trained,
        discarded_tokens=discarded,
        realigns=realigns,
        forks=forks,
        longest_row=max(lengths, default=0),
        packed_tokens=sum(lengths),
    )
