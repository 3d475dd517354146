"""httpx over aiohttp, set up for agent servers, and what each of their exceptions means for a rollout.

Imported when a client is opened: these libraries take a while to import.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from inspect import signature
from typing import Any, Final

import aiohttp
import httpx
from aiohttp.http import HttpProcessingError
from httpx_aiohttp.transport import AiohttpResponseStream, AiohttpTransport

from turnloom._client._urls import ServerUrl
from turnloom._rollout import Outcome

CHUNK_SIZE: Final = 256 * 1024
"""Bytes that are read, and fed to the parser, at a time."""
KEEPALIVE_TIMEOUT_S: Final = 2.0
"""How long an idle connection is kept. Servers close theirs after 5 s or more: ours must be gone before that."""
MAX_HEADER_BYTES: Final = 1024 * 1024
"""For one header field. A long session cookie must not cost a rollout that is already paid for."""
MAX_HEADERS: Final = 1024
"""Header fields of one answer. aiohttp's own bound is 128 where it has one that can be set."""
_HEADER_COUNT: Final[dict[str, Any]] = (
    {"max_headers": MAX_HEADERS} if "max_headers" in signature(aiohttp.ClientSession.__init__).parameters else {}
)
TCP_KEEPALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds of quiet, seconds between probes, and probes, until a peer that vanished counts as lost."""


class Sender:
    """POSTs rows through an httpx transport: keeps no cookies, follows no redirects, bounds nothing but connecting.

    httpx's own client would look for cookies, redirects and authentication with each answer, and take as long for it as
    aiohttp does to send the row and to receive the answer.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None, *, trust_env: bool, connect_timeout: float) -> None:
        self.transport = transport or AgentTransport(trust_env=trust_env)
        # The default one has no limit on connections: nothing waits for a slot, so `pool` bounds DNS and connecting.
        slot_timeout = connect_timeout if transport is None else None
        self.timeout = httpx.Timeout(None, connect=connect_timeout, pool=slot_timeout)
        self._extensions = {"timeout": self.timeout.as_dict()}
        self._addressed: dict[ServerUrl, tuple[httpx.URL, list[tuple[bytes, bytes]]]] = {}

    async def post(self, server: ServerUrl, row: AsyncIterator[bytes], *, size: int) -> httpx.Response:
        """The answer, whose body has not come yet. Its connection is taken until the answer is closed.

        Args:
            row: JSON, in pieces.
            size: how many bytes they have together.
        """
        url, headers = self._address(server)
        request = httpx.Request(
            "POST",
            url,
            headers=[*headers, (b"content-length", str(size).encode())],
            stream=_Pieces(row),
            extensions=self._extensions,
        )
        return await self.transport.handle_async_request(request)

    def _address(self, server: ServerUrl) -> tuple[httpx.URL, list[tuple[bytes, bytes]]]:
        if server not in self._addressed:
            url = httpx.URL(server.run)
            headers = [
                (b"host", url.netloc),
                (b"accept", b"application/json"),
                # Token ids compress, but on a cluster's network that costs more time than it saves.
                (b"accept-encoding", b"identity"),
                (b"content-type", b"application/json"),
            ]
            if server.auth is not None:
                headers.append((b"authorization", b"Basic " + b64encode(":".join(server.auth).encode())))
            self._addressed[server] = url, headers
        return self._addressed[server]

    async def aclose(self) -> None:
        await self.transport.aclose()


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


class AgentTransport(AiohttpTransport):
    """aiohttp under httpx. All settings are on the session: this transport drops most of those it is given."""

    def __init__(self, *, trust_env: bool) -> None:
        # For servers with TLS the session has aiohttp's own context, which is made when that is imported. Another would
        # take 20 ms for each client; this one, which trusts nobody, is never used.
        super().__init__(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), client=self._new_session)
        self._trust_env = trust_env

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,  # none: every rollout of a batch has a connection of its own
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            socket_factory=_new_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            request_class=_Request,
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=CHUNK_SIZE,
            max_field_size=MAX_HEADER_BYTES,
            trust_env=self._trust_env,
            **_HEADER_COUNT,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, AiohttpResponseStream)
        response.stream.CHUNK_SIZE = CHUNK_SIZE
        return response


class _Request(aiohttp.ClientRequest):
    """A request that leaves no socket behind: closing alone would wait for the peer to read what is still unsent."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        transport: asyncio.Transport = conn.transport

        def given_back() -> None:
            if transport.get_write_buffer_size() > 0:
                transport.abort()

        conn.add_callback(given_back)
        return await super().send(conn)


class _Response(aiohttp.ClientResponse):
    """A response without a reason phrase: nobody reads it, and httpx-aiohttp raises for one that is not ASCII."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        self.reason = None
        return self


def _new_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    new = socket.socket(family=family, type=kind, proto=protocol)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_KEEPALIVE.items():
        if hasattr(socket, name):
            new.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return new


OUTCOME_OF: Final[tuple[tuple[type[Exception], Outcome], ...]] = (
    # aiohttp's come first: httpx-aiohttp gives one class, ConnectTimeout, to a refused connection and to one that was
    # lost after the row had been delivered. Of the others of a group, the first that fits counts.
    (aiohttp.ClientConnectorError, "unreachable"),  # refused, DNS, TLS, no route, no proxy
    (aiohttp.ConnectionTimeoutError, "unreachable"),
    (aiohttp.ServerFingerprintMismatch, "unreachable"),
    (aiohttp.ClientHttpProxyError, "unreachable"),  # the proxy opened no tunnel
    (aiohttp.RedirectClientError, "disconnected"),
    (aiohttp.InvalidURL, "unreachable"),
    (aiohttp.NonHttpUrlClientError, "unreachable"),
    (aiohttp.ServerTimeoutError, "timeout"),
    (aiohttp.ClientError, "disconnected"),
    (HttpProcessingError, "disconnected"),
    (httpx.ConnectError, "unreachable"),
    (httpx.ConnectTimeout, "unreachable"),
    (httpx.PoolTimeout, "unreachable"),
    (httpx.ProxyError, "unreachable"),
    (httpx.UnsupportedProtocol, "unreachable"),
    (httpx.InvalidURL, "unreachable"),
    (httpx.TimeoutException, "timeout"),
    (httpx.DecodingError, "malformed"),
    (httpx.HTTPError, "disconnected"),
    (httpx.StreamError, "disconnected"),
    (TimeoutError, "timeout"),
    (OSError, "disconnected"),
    (UnicodeError, "unreachable"),  # a host's name that cannot be encoded, found before anything is sent
)
"""What an exception says about a rollout. In doubt it was delivered, and must not be sent again."""

NETWORK_ERRORS: Final = tuple(kind for kind, _ in OUTCOME_OF)


def classify(error: BaseException) -> tuple[Outcome, BaseException]:
    """The outcome that an exception stands for, and the one among its causes that tells.

    Raises:
        TypeError: it is none of `NETWORK_ERRORS`.
    """
    causes = list(_causes(error))
    for kind, outcome in OUTCOME_OF:
        for cause in causes:
            if isinstance(cause, kind):
                return outcome, cause
    raise TypeError(f"{type(error).__name__} is no exception of the network") from error


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether this process or machine has no file descriptor left: no fault of the agent."""
    return any(isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__


def says_where_it_ends(response: httpx.Response) -> bool:
    """Whether HTTP tells a whole body from one that was cut: not where it just ends with the connection."""
    headers = response.headers
    framed = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
    return framed or response.http_version == "HTTP/2"
