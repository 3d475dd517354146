"""zstd as records use it: the only file that imports zstandard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol

LEVEL: Final = 1
"""The fastest: what makes answers small is that they repeat themselves, which every level sees."""
WINDOW_LOG: Final = 23
"""8 MiB, the longest window that every decoder takes. Each model call repeats its whole history, so this is how long a
prompt may be, as JSON, for its copy in the call before to be seen: a million tokens."""


class Compressor(Protocol):
    """Makes one frame."""

    def compress(self, data: bytes, /) -> bytes:
        """What there is of the frame by now."""

    def flush(self) -> bytes:
        """The rest of it."""


def compressor() -> Compressor:
    """For one frame of unknown length, which ends with a checksum.

    Raises:
        ImportError: zstandard is not installed.
    """
    zstandard = _zstandard()
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True, write_content_size=False
    )
    compressor: Compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor


def compress(data: bytes) -> bytes:
    """One whole frame, with a checksum."""
    frame: bytes = _zstandard().ZstdCompressor(write_checksum=True).compress(data)
    return frame


def decompress(frame: bytes) -> bytes:
    """What is in one whole frame.

    Raises:
        ValueError: it is none, or damaged.
    """
    zstandard = _zstandard()
    try:
        data: bytes = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return data


def read_frame(file: BinaryIO, frame_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    """What is in the frame of this size that begins where the file stands, in pieces of at most `chunk_bytes`.

    Raises:
        ValueError: it is none, or damaged.
    """
    zstandard = _zstandard()
    with zstandard.ZstdDecompressor().stream_reader(_Part(file, frame_bytes), closefd=False) as reader:
        try:
            while piece := reader.read(chunk_bytes):
                yield piece
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error


class _Part:
    """The next bytes of a file, as if it ended after them."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("records need zstandard: pip install 'turnloom[records]'") from error
    return zstandard
