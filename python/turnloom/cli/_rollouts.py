"""Rollouts on the disk, whichever way they are kept: one answer, lines of answers, or records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnloom import ConfigError, Record, Records


@dataclass(frozen=True, slots=True)
class Kept:
    """One rollout that is kept somewhere."""

    name: str
    """The name of its file, or the id of its record."""
    settings: dict[str, Any]
    """The settings with which it was parsed, where that is known, as `RunParser` takes them."""
    failure: str | None
    """How it ended, where no whole answer came."""
    kept_in: bytes | Record

    def body(self) -> bytes:
        """The answer.

        Raises:
            ConfigError: there is none that could be parsed.
            MalformedRecord: the record is damaged.
        """
        if self.failure is not None:
            raise ConfigError(self.failure)
        return self.kept_in.body() if isinstance(self.kept_in, Record) else self.kept_in


def kept_rollouts(path: Path) -> Iterator[Kept]:
    """The rollouts of a `.json` file, which is one answer, of a `.jsonl` file, or of records.

    Raises:
        ConfigError: nothing is there.
        ImportError: records are there, and zstandard is not installed.
    """
    if not path.exists():
        raise ConfigError("there is no such file")
    if path.suffix == ".zst" or path.is_dir():
        yield from map(_recorded, Records(path))
        return
    content = path.read_bytes()
    lines = [line for line in content.split(b"\n") if line.strip()] if path.suffix == ".jsonl" else [content]
    for number, line in enumerate(lines):
        yield Kept(path.name if len(lines) == 1 else f"{path.name}, rollout {number}", {}, None, line)


def _recorded(record: Record) -> Kept:
    names = ("fork_threshold_tokens", "branches", "honor_mask_sample")
    settings = {name: value for name, value in record.settings.items() if name in names}
    reason = record.facts["reason"]
    failure = f"the rollout ended as {record.outcome}: {reason}" if record.facts["error"] is not None else None
    return Kept(record.rollout_id, settings, failure, record)
