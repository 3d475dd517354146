"""Records from the disk: listed, streamed, and found by the id of their rollout."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from turnloom._exceptions import ConfigError, MalformedRecord
from turnloom._parse import Branches, RunParser
from turnloom._records import _zstd
from turnloom._records._facts import FACTS, error_from
from turnloom._records._format import Header, record_files
from turnloom._rollout import Outcome, Rollout, Timing

logger = logging.getLogger("turnloom")

CHUNK_BYTES: Final = 256 * 1024
_SEARCH_BYTES: Final = 1 << 20
_GONE: Final = "the file is gone; it has made room for newer records, perhaps"
_JUDGED: Final = frozenset({"agent_failure", "masked", "no_tokens", "no_reward", "ok"})
"""What the bytes of an answer tell; how other rollouts ended, the facts alone know."""


class Record:
    """One rollout as it was recorded: its facts, and on the disk the bytes of its answer.

    Attributes:
        rollout_id: `Rollout.id`.
        path: the file it is in.
        offset: where in it.
        facts: all that is told of it, as JSON has it: what the properties give, and `server`, `began_at`, `versions`,
            `body_bytes`, `turns`, `rows`, `tokens`, `trained_tokens`, `reason`, `error`.
    """

    def __init__(self, path: Path, offset: int, header: Header, facts: Mapping[str, Any]) -> None:
        self.rollout_id = header.rollout_id
        self.path = path
        self.offset = offset
        self.facts = facts
        self._header = header

    def __repr__(self) -> str:
        return f"<Record {self.rollout_id} {self.outcome} agent={self.agent!r} body_bytes={self.facts['body_bytes']}>"

    @property
    def request(self) -> dict[str, Any]:
        """What was sent to the agent."""
        request: dict[str, Any] = self.facts["request"]
        return request

    @property
    def agent(self) -> str | None:
        """The agent's name."""
        agent: str | None = self.facts["agent"]
        return agent

    @property
    def outcome(self) -> Outcome:
        """How the rollout ended."""
        outcome: Outcome = self.facts["outcome"]
        return outcome

    @property
    def reward(self) -> float | None:
        """The reward; None unless the outcome is `ok`."""
        reward: float | None = self.facts["reward"]
        return reward

    @property
    def timing(self) -> Timing:
        """Where its time went."""
        return Timing(**self.facts["timing"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which the answer was parsed, as `RunParser` takes them."""
        return dict(self.facts["settings"])

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The answer in pieces of at most `chunk_bytes`, so that it never is in memory as a whole.

        Raises:
            MalformedRecord: it is damaged.
        """
        if self._header.body_bytes == 0:
            return
        received = 0
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + Header.SIZE + self._header.facts_bytes)
                for chunk in _zstd.read_frame(file, self._header.body_bytes, chunk_bytes):
                    received += len(chunk)
                    yield chunk
        except FileNotFoundError:
            raise self._damaged(_GONE) from None
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if received != self.facts["body_bytes"]:
            raise self._damaged(f"{received:,} of the {self.facts['body_bytes']:,} bytes of its answer are there")

    def body(self) -> bytes:
        """The answer, byte for byte as the parser got it, decompressed; of a failed rollout what there was.

        Raises:
            MalformedRecord: it is damaged.
        """
        return b"".join(self.chunks())

    def rollout(
        self,
        *,
        fork_threshold_tokens: int | None = None,
        branches: Branches | None = None,
        honor_mask_sample: bool | None = None,
    ) -> Rollout:
        """The rollout once more, from the bytes of its answer; with the settings of then, byte for byte the same rows.

        Args:
            fork_threshold_tokens: as in `RunParser`; None for that of then, here and below.
            branches: likewise.
            honor_mask_sample: likewise.

        Raises:
            MalformedRecord: the record is damaged.
            ConfigError: a setting out of its range.
        """
        given = {
            "fork_threshold_tokens": fork_threshold_tokens,
            "branches": branches,
            "honor_mask_sample": honor_mask_sample,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        parser = RunParser(**{**self.settings, **changed})
        rollout = self._parsed(parser) if self.outcome in _JUDGED else self._as_told()
        if rollout.outcome == self.outcome and not changed:
            rollout.reason = self.facts["reason"]
        rollout.id = self.rollout_id
        rollout.agent = self.agent
        rollout.server = self.facts["server"]
        rollout.timing = self.timing
        rollout._request_fields = frozenset(self.request)
        return rollout

    def _parsed(self, parser: RunParser) -> Rollout:
        parser._rollout_id = self.rollout_id
        for chunk in self.chunks():
            parser.feed(chunk)
        return parser.finish()

    def _as_told(self) -> Rollout:
        error = self.facts["error"]
        return Rollout(self.outcome, reason=self.facts["reason"], error=None if error is None else error_from(error))

    def _damaged(self, what: str) -> MalformedRecord:
        return MalformedRecord(f"{_place(self.path, self.offset)}: {what}", path=str(self.path), offset=self.offset)


class Records:
    """The records of a folder or of one file: each in turn, or one by the id of its rollout.

    Examples:
        >>> records = Records("runs")  # doctest: +SKIP
        >>> for record in records:  # doctest: +SKIP
        ...     print(record.rollout_id, record.agent, record.outcome, record.reward)
        >>> records["8d3c0f6be2c64f6f9a3f0a7e2b1c9d54"].rollout().rows  # doctest: +SKIP

    What is damaged, such as the last record of a process that died while it was written, is skipped, and told in the
    log and in `problems`.

    Args:
        path: the folder that was the client's `record_dir`, or one of its files.

    Attributes:
        problems: what has been skipped so far, a sentence each.

    Raises:
        ConfigError: there is no such folder or file.
        ImportError: zstandard is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _zstd.compress(b"")  # raises where there is none
        self._path = Path(path)
        if not self._path.exists():
            raise ConfigError(f"there are no records at {os.fspath(path)!r}: name a folder, or one of its files")
        self.problems: list[str] = []
        self._places: dict[str, tuple[Path, int, Header]] | None = None

    def __iter__(self) -> Iterator[Record]:
        """Every record that can be read, in the order of the files; also those added since the last time."""
        for path, file in self._open_files():
            for offset, header in self._headers(file, path):
                try:
                    record = _read_record(file, path, offset, header)
                except MalformedRecord as error:
                    self.skip(error)
                else:
                    yield record

    def __getitem__(self, rollout_id: str) -> Record:
        """The record of one rollout.

        Raises:
            KeyError: there was none when this was first asked.
            MalformedRecord: it is damaged.
        """
        if self._places is None:
            self._places = self._index()
        path, offset, header = self._places[rollout_id]
        try:
            with path.open("rb") as file:
                return _read_record(file, path, offset, header)
        except FileNotFoundError:
            raise MalformedRecord(f"{path}: {_GONE}", path=str(path), offset=offset) from None

    def __len__(self) -> int:
        """How many there were when this, or one by its id, was first asked."""
        if self._places is None:
            self._places = self._index()
        return len(self._places)

    def files(self) -> list[Path]:
        """The files, the oldest first."""
        return record_files(self._path) if self._path.is_dir() else [self._path]

    def _open_files(self) -> Iterator[tuple[Path, BinaryIO]]:
        """The files one by one, open; but for those that have made room for newer ones since they were listed."""
        for path in self.files():
            try:
                file = path.open("rb")
            except FileNotFoundError:
                self.skip(f"{path}: {_GONE}")
            else:
                with file:
                    yield path, file

    def _index(self) -> dict[str, tuple[Path, int, Header]]:
        places = {}
        for path, file in self._open_files():
            places.update({header.rollout_id: (path, offset, header) for offset, header in self._headers(file, path)})
        return places

    def _headers(self, file: BinaryIO, path: Path) -> Iterator[tuple[int, Header]]:
        """The headers of whole records."""
        offset, end = 0, os.fstat(file.fileno()).st_size
        while offset < end:
            file.seek(offset)
            header = Header.from_bytes(file.read(Header.SIZE))
            if header is None:
                begin, offset = offset, _next_header(file, offset + 1, end)
                what = "the last record is cut off" if end == offset else "there is no record"
                self.skip(f"{_place(path, begin)}: {what}; {offset - begin} bytes are skipped")
            elif offset + header.record_bytes > end:
                self.skip(
                    f"{_place(path, offset)}: the last record is cut off: {end - offset} of its "
                    f"{header.record_bytes} bytes are there"
                )
                return
            else:
                yield offset, header
                offset += header.record_bytes

    def skip(self, problem: MalformedRecord | str) -> None:
        """Tell once, in the log and in `problems`, what cannot be read."""
        problem = str(problem)
        if problem not in self.problems:
            self.problems.append(problem)
            logger.warning("skipped: %s", problem)


def _read_record(file: BinaryIO, path: Path, offset: int, header: Header) -> Record:
    file.seek(offset + Header.SIZE)
    try:
        facts = json.loads(_zstd.decompress(file.read(header.facts_bytes)))
        if not isinstance(facts, dict) or not facts.keys() >= FACTS:
            raise ValueError("they are not those of a rollout")
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(
            f"{_place(path, offset)}: its facts are damaged ({error})", path=str(path), offset=offset
        ) from error
    return Record(path, offset, header, facts)


def _next_header(file: BinaryIO, offset: int, end: int) -> int:
    """Where the next header may begin; the end of the file where none does."""
    while offset < end:
        file.seek(offset)
        block = file.read(_SEARCH_BYTES)
        if (found := Header.find(block)) >= 0:
            return offset + found
        if len(block) <= Header.SIZE:
            break
        offset += len(block) - Header.SIZE
    return end


def _place(path: Path, offset: int) -> str:
    return f"{path}, record at byte {offset}"
