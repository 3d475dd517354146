"""Records on their way to the disk, off the event loop."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from turnloom._exceptions import ConfigError
from turnloom._records import _zstd
from turnloom._records._body import Body
from turnloom._records._facts import facts_of, to_line
from turnloom._records._files import RecordFiles, writable_folder
from turnloom._records._format import Header
from turnloom._rollout import Rollout

logger = logging.getLogger("turnloom")

DEFAULT_RECORD_MAX_BYTES: Final = 16 * 2**30
MAX_PENDING_BYTES: Final = 128 * 2**20
"""How much may wait for the thread. Beyond that the record that most waits for is dropped."""
MAX_LARGE: Final = 64
"""How many answers may be compressed at once, each with a window of its own. The record of one more is dropped."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long the disk may take for the last records."""
_TAKEN_BYTES: Final = 4 * 2**20
"""How much is compressed in one go. Each call of zstd gives the interpreter away and waits for it to come back."""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """What a writer has done so far."""

    written: int = 0
    """Records."""
    dropped: int = 0
    """Records that are not written: the thread or the disk was too slow, or the disk took no more."""
    removed_files: int = 0
    """Files that went to keep the folder within its bound."""
    body_bytes: int = 0
    """Of the answers in the records, decompressed."""
    file_bytes: int = 0
    """Of the records on the disk."""


class RecordWriter:
    """Writes records to a folder, in a thread of its own that compresses answers while they arrive.

    Memory: of each answer that is arriving the first 256 KiB; for each that is larger, and of these there are 64 at
    most, instead the window of zstd (as much as came, 8 MiB at most), 2 MB of its tables, and what is compressed so
    far; and at most 128 MiB that wait for the thread.

    Args:
        folder: made if it isn't there; several writers may share it, each has files of its own.
        max_bytes: bounds the folder, whose oldest files go; None is no bound.
        when_full: where the thread is too slow, "drop" the record that most waits for, or let the caller "wait".

    Attributes:
        failure: why nothing is written any more; None while all is well.

    Raises:
        ConfigError: the folder cannot be written to, or the bound is none.
        ImportError: zstandard is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_bytes: int | None = DEFAULT_RECORD_MAX_BYTES,
        when_full: Literal["drop", "wait"] = "drop",
    ) -> None:
        if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
            raise ConfigError(f"record_max_bytes={max_bytes!r}: at least 1 is needed, or None for no bound")
        _zstd.compressor()  # raises where there is none
        self.failure: str | None = None
        self._files = RecordFiles(writable_folder(folder), max_bytes=max_bytes)
        self._folder = folder
        self._waits = when_full == "wait"
        self._large: set[Recording] = set()  # the thread's alone, as the recordings' bodies are
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows, and the recordings' parts
        self._ready: dict[Recording, None] = {}  # those that the thread has something to do for, in order
        self._stopping = False
        self._pending_bytes = 0
        self._written = self._dropped = self._body_bytes = self._file_bytes = 0

    @property
    def counts(self) -> RecordCounts:
        """What has been done so far."""
        with self._changed:
            return RecordCounts(
                self._written, self._dropped, self._files.removed_files, self._body_bytes, self._file_bytes
            )

    def begin(self, request: bytes, *, settings: Mapping[str, Any]) -> Recording:
        """Begin the record of one rollout.

        Args:
            request: the JSON that is sent.
            settings: the parser's.
        """
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._work, name="turnloom-records", daemon=True)
            self._thread.start()
        return Recording(self, request, settings)

    def close(self) -> None:
        """Wait until everything is written; unless the writer was made to wait, for `CLOSE_TIMEOUT_S` at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        thread.join(None if self._waits else CLOSE_TIMEOUT_S)
        if thread.is_alive():
            self._fail(f"the last records were not written within {CLOSE_TIMEOUT_S:g} s")

    # For a recording, in the caller's thread.

    def _offer(self, recording: Recording, part: bytes | _End) -> None:
        with self._changed:
            if self._waits:
                self._changed.wait_for(lambda: self.failure is not None or self._has_room(len(part)))
            while self.failure is None and not self._has_room(len(part)) and not recording._over:
                waiting = [recording, *(each for each in self._ready if not each._over)]
                self._drop(max(waiting, key=lambda each: each._pending_bytes))
            if self.failure is not None and not recording._over:
                self._drop(recording)
            if recording._over:
                return
            recording._parts.append(part)
            recording._pending_bytes += len(part)
            self._pending_bytes += len(part)
            self._ready[recording] = None
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self._pending_bytes == 0 or self._pending_bytes + size <= MAX_PENDING_BYTES

    def _give_up(self, recording: Recording) -> None:
        """Nothing of it is written."""
        with self._changed:
            self._pending_bytes -= recording._pending_bytes
            recording._pending_bytes = 0
            recording._parts.clear()
            recording._over = True
            self._ready[recording] = None
            self._changed.notify_all()

    def _drop(self, recording: Recording, why: str = "more arrives than can be compressed and written") -> None:
        with self._changed:
            self._give_up(recording)
            self._dropped += 1
            if self.failure is None and str(self._dropped).strip("0") == "1":  # 1, 10, 100, …
                logger.warning("a rollout is not recorded in %s, %d so far: %s", self._folder, self._dropped, why)

    def _fail(self, what: str) -> None:
        with self._changed:
            first, self.failure = self.failure is None, self.failure or what
            self._changed.notify_all()
        if first:
            logger.error("nothing more is recorded in %s: %s. The rollouts go on", self._folder, what)

    # In the writer's thread.

    def _work(self) -> None:
        while (recording := self._next()) is not None:
            parts = self._take(recording)
            try:
                if self.failure is None:
                    self._do(recording, parts)
            except Exception as error:  # whatever it is, the rollouts go on
                self._fail(f"{type(error).__name__}: {error}")
            with self._changed:
                self._pending_bytes -= sum(map(len, parts))
                if self.failure is not None and not recording._over:
                    self._drop(recording)
                self._changed.notify_all()
        self._files.close()

    def _next(self) -> Recording | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._stopping)
            return next(iter(self._ready), None)

    def _take(self, recording: Recording) -> list[bytes | _End]:
        taken: list[bytes | _End] = []
        size = 0
        with self._changed:
            del self._ready[recording]
            while recording._parts and size < _TAKEN_BYTES:
                taken.append(recording._parts.popleft())
                size += len(taken[-1])
            recording._pending_bytes -= size
            if recording._parts:
                self._ready[recording] = None
        return taken

    def _do(self, recording: Recording, parts: list[bytes | _End]) -> None:
        piece = b"".join(part for part in parts if isinstance(part, bytes))
        end = parts[-1] if parts and isinstance(parts[-1], _End) else None
        if end is None and recording._body.is_large_with(len(piece)):
            self._large.add(recording)
            if len(self._large) > MAX_LARGE and not self._waits and not recording._over:
                self._drop(recording, f"more than {MAX_LARGE} large answers arrive at once")
        if not recording._over:
            recording._body.add(piece)
            if end is not None:
                self._write(recording, end)
        if recording._over:
            recording._body.clear()
            self._large.discard(recording)

    def _write(self, recording: Recording, end: _End) -> None:
        facts, body = _zstd.compress(end.facts), recording._body.frame()
        record = Header(end.rollout_id, len(facts), len(body)).to_bytes() + facts + body
        if not self._files.append(record):
            self._drop(recording, "it does not fit beside the files that are being written; raise record_max_bytes")
            return
        with self._changed:
            recording._over = True
            self._written += 1
            self._body_bytes += recording._body.size
            self._file_bytes += len(record)


class Recording:
    """The record of one rollout in the making; a block that is left before its `end` gives it up.

    It waits for the disk only where the writer was made so.
    """

    def __init__(self, writer: RecordWriter, request: bytes, settings: Mapping[str, Any]) -> None:
        self._writer = writer
        self._request = request
        self._settings = settings
        self._began_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._body_bytes = 0
        self._ended = False
        self._over = False  # written, dropped or given up
        self._parts: deque[bytes | _End] = deque()  # what waits for the thread
        self._pending_bytes = 0
        self._body = Body()  # the thread's alone

    def chunk(self, chunk: bytes) -> None:
        """The next bytes of the answer."""
        self._body_bytes += len(chunk)
        if chunk and not self._over:
            self._writer._offer(self, chunk)

    def end(self, rollout: Rollout) -> None:
        """The rollout has ended: write its record."""
        self._ended = True
        if not self._over:
            facts = facts_of(rollout, body_bytes=self._body_bytes, began_at=self._began_at, settings=self._settings)
            self._writer._offer(self, _End(rollout.id, to_line(facts, self._request)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self._writer._give_up(self)


@dataclass(frozen=True, slots=True)
class _End:
    rollout_id: str
    facts: bytes

    def __len__(self) -> int:
        return len(self.facts)
