"""An answer, compressed while it arrives."""

from __future__ import annotations

from typing import Final

from turnloom._records import _zstd

HELD_BYTES: Final = 256 * 1024
"""An answer up to this size is held as it is and compressed at its end: many small ones may arrive at once, slowly."""


class Body:
    """Takes an answer in pieces, and gives the frame that it makes.

    Attributes:
        size: bytes of the answer so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []  # of the answer, and once there is a compressor, of the frame
        self._compressor: _zstd.Compressor | None = None

    def is_large_with(self, more: int) -> bool:
        """Whether so many more bytes take a compressor, and its memory, while the rest of the answer is awaited."""
        return self.size + more > HELD_BYTES

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self._compressor is None and self.is_large_with(len(piece)):
            self._compressor = _zstd.compressor()
            self._pieces = [self._compressor.compress(b"".join(self._pieces))]
        self._pieces.append(piece if self._compressor is None else self._compressor.compress(piece))
        self.size += len(piece)

    def frame(self) -> bytes:
        """The whole frame; empty where no byte came. Nothing can be added any more."""
        if self.size == 0:
            return b""
        if self._compressor is None:
            return _zstd.compress(b"".join(self._pieces))
        return b"".join([*self._pieces, self._compressor.flush()])

    def clear(self) -> None:
        """Free the memory."""
        self._compressor = None
        self._pieces.clear()
