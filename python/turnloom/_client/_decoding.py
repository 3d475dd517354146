"""The body of an answer, in pieces of bounded size, also where a server compresses it unasked."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

import httpx

MAX_INFLATED_BYTES: Final = 256 * 1024
"""How much is decompressed in one go: a few KB of gzip can hold as many MB."""

_ZLIB_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32


def body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it arrives. What is in another coding than gzip or deflate comes as it is, and is no JSON.

    Raises:
        httpx.DecodingError: it is not in the coding that its header names.
    """
    coding = response.headers.get("content-encoding", "").strip().lower()
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    return _inflated(stream) if coding in _ZLIB_CODINGS else stream.__aiter__()


async def _inflated(stream: httpx.AsyncByteStream) -> AsyncIterator[bytes]:
    decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for chunk in stream:
        while not decompressor.eof:
            try:
                piece = decompressor.decompress(chunk, MAX_INFLATED_BYTES)
            except zlib.error as error:
                raise httpx.DecodingError(str(error)) from error
            yield piece
            if len(piece) < MAX_INFLATED_BYTES:
                break  # the chunk holds no more
            chunk = decompressor.unconsumed_tail
            await asyncio.sleep(0)  # other rollouts' bytes have waited meanwhile
