"""The files of a folder of records: which one is written to, and which ones go when the folder is full."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from turnloom._exceptions import ConfigError
from turnloom._records._format import FILE_PATTERN, record_files

logger = logging.getLogger("turnloom")

FILE_BYTES: Final = 256 * 2**20
"""How large a file grows before the next is begun; an eighth of the bound, if that is less."""


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it isn't there.

    Raises:
        ConfigError: it cannot be made, or not be written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder of records {os.fspath(path)!r} cannot be made: {error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"the folder of records {os.fspath(path)!r} cannot be written to")
    return folder


class RecordFiles:
    """Appends records to files of their own: what another process has written, or left half-written, is not touched.

    The oldest files of the folder, whoever wrote them, make room for a new record. A file that a writer still has open
    stays: each holds a lock on its own.

    Args:
        max_bytes: bounds the whole folder; None is no bound.
    """

    def __init__(self, folder: Path, *, max_bytes: int | None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._file_bytes = FILE_BYTES if max_bytes is None else min(FILE_BYTES, max_bytes // 8)
        self._open: int | None = None
        self._size = 0
        self.removed_files = 0

    def append(self, record: bytes) -> bool:
        """Write one record; False when there is no room for it.

        Raises:
            OSError: the disk doesn't take it. What it took of it is taken back.
        """
        if self._open is not None and self._size + len(record) > self._file_bytes:
            self.close()
        if not self._make_room(len(record)):
            return False
        if self._open is None:
            self._open = self._new_file()
        try:
            _write(self._open, record)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._open, self._size)
            raise
        self._size += len(record)
        return True

    def close(self) -> None:
        """Close the open file, if there is one; the next record begins another."""
        if self._open is not None:
            os.close(self._open)
            self._open, self._size = None, 0

    def _new_file(self) -> int:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")  # so that the names' order is that of time
        path = self._folder / FILE_PATTERN.replace("*", f"{now}-{secrets.token_hex(4)}")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def _make_room(self, needed: int) -> bool:
        if self._max_bytes is None:
            return True
        sizes: dict[Path, int] = {}
        for path in record_files(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another writer made room
                sizes[path] = path.stat().st_size
        excess = sum(sizes.values()) + needed - self._max_bytes
        for path, size in sizes.items():
            if excess <= 0:
                break
            if _remove_unless_open(path):
                excess -= size
                self._tell_of_removal()
        return excess <= 0

    def _tell_of_removal(self) -> None:
        self.removed_files += 1
        if self.removed_files == 1:
            logger.warning(
                "the records in %s have reached record_max_bytes=%s: from now on the oldest of its files go, so that "
                "the newest records are there. (Said once.)",
                self._folder,
                self._max_bytes,
            )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _remove_unless_open(path: Path) -> bool:
    """Whether the file is gone: not when a writer has it open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # another writer made room
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
