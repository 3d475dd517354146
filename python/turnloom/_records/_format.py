"""A record on disk.

A file of records is a zstd file: tools such as `zstdcat` read it, and see each record's facts, then its body. A record
is three frames, one after the other:

    a skippable frame   `Header`: whose record it is, and how long the other two are, so that it can be passed over
    the facts           one line of JSON: request, agent, outcome, timing, versions
    the body            the answer, decompressed byte for byte as the parser got it; absent where none came

Records are only ever appended, each with one write, so that the death of the writer can damage the last alone.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

FILE_PATTERN: Final = "records-*.zst"

_LAYOUT: Final = struct.Struct("<8s16sIQ")  # tag, rollout id, sizes of facts and body
_CHECKSUM: Final = struct.Struct("<I")
_TAG: Final = b"turnlm\x00\x01"
"""Ends in the version of this layout."""
_BEGINNING: Final = struct.pack("<II", 0x184D2A5D, _LAYOUT.size + _CHECKSUM.size) + _TAG
"""zstd's magic number of a skippable frame, the length of the rest, and our tag: nothing else begins so."""


def record_files(folder: Path) -> list[Path]:
    """The files of records in a folder, the oldest first."""
    return sorted(path for path in folder.glob(FILE_PATTERN) if path.is_file())


@dataclass(frozen=True, slots=True)
class Header:
    """The first frame of a record."""

    rollout_id: str
    """32 hexadecimal digits."""
    facts_bytes: int
    """Size of the second frame."""
    body_bytes: int
    """Size of the third; 0 where there is none."""

    SIZE = len(_BEGINNING) - len(_TAG) + _LAYOUT.size + _CHECKSUM.size

    @property
    def record_bytes(self) -> int:
        """Size of all three."""
        return self.SIZE + self.facts_bytes + self.body_bytes

    def to_bytes(self) -> bytes:
        """As it stands in the file."""
        fields = _LAYOUT.pack(_TAG, bytes.fromhex(self.rollout_id), self.facts_bytes, self.body_bytes)
        return _BEGINNING[: -len(_TAG)] + fields + _CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """None for what is no header, or a damaged one."""
        if len(data) != cls.SIZE or not data.startswith(_BEGINNING):
            return None
        fields, checksum = data[len(_BEGINNING) - len(_TAG) : -_CHECKSUM.size], data[-_CHECKSUM.size :]
        if zlib.crc32(fields) != _CHECKSUM.unpack(checksum)[0]:
            return None
        _, rollout_id, facts_bytes, body_bytes = _LAYOUT.unpack(fields)
        return cls(rollout_id.hex(), facts_bytes, body_bytes)

    @staticmethod
    def find(data: bytes) -> int:
        """Where a header may begin; -1 for nowhere."""
        return data.find(_BEGINNING)
