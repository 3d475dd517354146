"""The network beneath GymClient: the settings of live sockets, what each exception means, and transports of others."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import aiohttp
import aiohttp.http_exceptions
import httpx
import pytest

import turnloom
from one_row import ANSWER, BODY, ROW, SAMPLING, own_sockets, sized
from turnloom._client import _backoff, _transport
from turnloom._client._transport import NETWORK_ERRORS, OUTCOME_OF, classify
from turnloom.testing import FakeAgent


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.01)


# --- The default transport ---


async def test_the_session_has_every_setting_while_it_is_used():
    """The transport drops what it is given as its own arguments: what counts is the session that it has made."""
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
        session = gym._sender.transport.client
        connector = session.connector
        assert connector.limit == connector.limit_per_host == 0
        assert connector._keepalive_timeout < 5  # uvicorn's
        assert isinstance(session.cookie_jar, aiohttp.DummyCookieJar)
        assert session._read_bufsize == _transport.CHUNK_SIZE
        assert session._max_field_size == _transport.MAX_HEADER_BYTES
        assert getattr(session, "_max_headers", _transport.MAX_HEADERS) == _transport.MAX_HEADERS
        assert session.trust_env is False
        assert gym._sender.timeout.read is gym._sender.timeout.write is None
    assert session.closed


@pytest.mark.parametrize("run_timeout", [None, 300.0, 0.5])
async def test_connecting_is_bounded_where_run_timeout_is_not(run_timeout):
    async with turnloom.GymClient({"math": "http://127.0.0.1:1"}, run_timeout=run_timeout) as gym:
        assert gym._sender.timeout.connect == gym._sender.timeout.pool == (0.5 if run_timeout == 0.5 else 30.0)


def sockets_at(address: tuple[str, int]) -> Iterator[socket.socket]:
    """Copies of this process's sockets with that address of their own."""
    return (copy for copy in own_sockets() if copy.getsockname() == address)


async def test_live_sockets_notice_a_peer_that_has_vanished():
    found: list[tuple[int, ...]] = []

    async def look(call):
        options = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        for client in sockets_at(call.client_address):
            keepalive = client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            found.append((keepalive, *(client.getsockopt(socket.IPPROTO_TCP, option) for option in options)))
        await call.answer(ANSWER)

    async with FakeAgent(look) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
    assert found == [(1, 1, 60, 15, 4)]


async def test_a_connection_is_used_again_and_not_once_it_is_old(monkeypatch):
    async with FakeAgent(ANSWER) as agent:
        async with turnloom.GymClient({"math": agent.url}) as gym:
            for _ in range(3):
                assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            assert agent.connections == 1
        monkeypatch.setattr(_transport, "KEEPALIVE_TIMEOUT_S", 0.0)
        async with turnloom.GymClient({"math": agent.url}) as gym:
            for _ in range(3):
                assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            assert agent.connections == 4


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again():
    async def answer_and_close(call):
        await call.answer(ANSWER)
        call.keeps_alive = False

    async with FakeAgent(answer_and_close) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        for _ in range(3):
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
            await agent.until(lambda agent: agent.open_connections == 0)
            await asyncio.sleep(0)


async def test_large_answers_are_read_in_large_pieces(monkeypatch):
    sizes: list[int] = []
    feed = turnloom.RunParser.feed
    monkeypatch.setattr(
        turnloom.RunParser, "feed", lambda parser, chunk: (sizes.append(len(chunk)), feed(parser, chunk))
    )
    answer = {**ANSWER, "text": "x" * 8_000_000}
    with FakeAgent(answer) as agent:
        async with turnloom.GymClient({"math": agent.url}) as gym:
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
    assert max(sizes) <= _transport.CHUNK_SIZE
    assert sum(sizes) / len(sizes) > 64 * 1024  # httpx-aiohttp alone reads 16 KiB at a time


# --- What exceptions mean ---

MEANINGS = {
    "aiohttp.ClientError": "disconnected",
    "aiohttp.ClientConnectionError": "disconnected",
    "aiohttp.ClientConnectionResetError": "disconnected",
    "aiohttp.ClientOSError": "disconnected",
    "aiohttp.ClientConnectorError": "unreachable",
    "aiohttp.ClientConnectorCertificateError": "unreachable",
    "aiohttp.ClientConnectorDNSError": "unreachable",
    "aiohttp.ClientConnectorSSLError": "unreachable",
    "aiohttp.ClientProxyConnectionError": "unreachable",
    "aiohttp.ClientSSLError": "unreachable",
    "aiohttp.UnixClientConnectorError": "unreachable",
    "aiohttp.ConnectionTimeoutError": "unreachable",
    "aiohttp.ServerFingerprintMismatch": "unreachable",
    "aiohttp.ClientHttpProxyError": "unreachable",
    "aiohttp.InvalidURL": "unreachable",
    "aiohttp.InvalidUrlClientError": "unreachable",
    "aiohttp.NonHttpUrlClientError": "unreachable",
    "aiohttp.RedirectClientError": "disconnected",
    "aiohttp.InvalidUrlRedirectClientError": "disconnected",
    "aiohttp.NonHttpUrlRedirectClientError": "disconnected",
    "aiohttp.TooManyRedirects": "disconnected",
    "aiohttp.ServerTimeoutError": "timeout",
    "aiohttp.SocketTimeoutError": "timeout",
    "aiohttp.ServerConnectionError": "disconnected",
    "aiohttp.ServerDisconnectedError": "disconnected",
    "aiohttp.ClientPayloadError": "disconnected",
    "aiohttp.ClientResponseError": "disconnected",
    "aiohttp.ContentTypeError": "disconnected",
    "aiohttp.UploadAbortedError": "disconnected",
    "aiohttp.WSServerHandshakeError": "disconnected",
    "aiohttp.WebSocketError": None,  # there are no web sockets here, nor
    "aiohttp.WSMessageTypeError": None,
    "aiohttp.EofStream": None,  # aiohttp's own signal, never seen outside
    "aiohttp.HttpProcessingError": "disconnected",
    "aiohttp.BadHttpMessage": "disconnected",
    "aiohttp.HttpBadRequest": "disconnected",
    "aiohttp.PayloadEncodingError": "disconnected",
    "aiohttp.ContentEncodingError": "disconnected",
    "aiohttp.TransferEncodingError": "disconnected",
    "aiohttp.ContentLengthError": "disconnected",
    "aiohttp.DecompressSizeError": "disconnected",
    "aiohttp.LineTooLong": "disconnected",
    "aiohttp.InvalidHeader": "disconnected",
    "aiohttp.BadStatusLine": "disconnected",
    "aiohttp.BadHttpMethod": "disconnected",
    "aiohttp.InvalidURLError": "disconnected",
    "httpx.HTTPError": "disconnected",
    "httpx.RequestError": "disconnected",
    "httpx.TransportError": "disconnected",
    "httpx.TimeoutException": "timeout",
    "httpx.ConnectTimeout": "unreachable",
    "httpx.ReadTimeout": "timeout",
    "httpx.WriteTimeout": "timeout",
    "httpx.PoolTimeout": "unreachable",
    "httpx.NetworkError": "disconnected",
    "httpx.ConnectError": "unreachable",
    "httpx.ReadError": "disconnected",
    "httpx.WriteError": "disconnected",
    "httpx.CloseError": "disconnected",
    "httpx.ProtocolError": "disconnected",
    "httpx.LocalProtocolError": "disconnected",
    "httpx.RemoteProtocolError": "disconnected",
    "httpx.ProxyError": "unreachable",
    "httpx.UnsupportedProtocol": "unreachable",
    "httpx.InvalidURL": "unreachable",
    "httpx.DecodingError": "malformed",
    "httpx.TooManyRedirects": "disconnected",
    "httpx.HTTPStatusError": "disconnected",
    "httpx.StreamError": "disconnected",
    "httpx.StreamConsumed": "disconnected",
    "httpx.StreamClosed": "disconnected",
    "httpx.ResponseNotRead": "disconnected",
    "httpx.RequestNotRead": "disconnected",
    "httpx.CookieConflict": None,  # raised for who reads a cookie by its name
}


def exceptions_of(*modules: ModuleType) -> dict[str, type[Exception]]:
    library = modules[0].__name__
    return {
        f"{library}.{kind.__name__}": kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception) and not issubclass(kind, Warning) and kind.__module__.startswith(library)
    }


KINDS = exceptions_of(aiohttp, aiohttp.client_exceptions, aiohttp.http_exceptions) | exceptions_of(httpx)


def test_every_exception_of_both_libraries_is_classified_on_purpose():
    assert sorted(KINDS.keys() - MEANINGS.keys()) == []


@pytest.mark.parametrize("name", KINDS)
def test_an_exception_means(name):
    error = KINDS[name].__new__(KINDS[name])
    if MEANINGS[name] is None:
        assert not isinstance(error, NETWORK_ERRORS)
    else:
        assert isinstance(error, NETWORK_ERRORS)
        assert classify(error) == (MEANINGS[name], error)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_of_a_chain_aiohttp_tells_and_httpx_only_without_it():
    """httpx-aiohttp says ConnectTimeout of connections lost after delivery, too."""
    lost = aiohttp.ServerDisconnectedError()
    assert classify(caused(httpx.ConnectTimeout("x"), lost)) == ("disconnected", lost)
    reset = aiohttp.ClientOSError(104, "reset")
    assert classify(caused(httpx.ConnectTimeout("x"), reset)) == ("disconnected", reset)
    refused = caused(httpx.ConnectError("x"), ConnectionRefusedError(111, "refused"))
    assert classify(refused) == ("unreachable", refused)


def test_the_last_word_of_the_table_is_no_exception_of_ours():
    with pytest.raises(TypeError, match="KeyError"):
        classify(KeyError("x"))
    for error in (KeyError("x"), RuntimeError("x"), ValueError("x")):
        assert not isinstance(error, NETWORK_ERRORS)


def test_no_line_of_the_table_is_dead():
    for at, (kind, _) in enumerate(OUTCOME_OF):
        assert not any(issubclass(kind, earlier) for earlier, _ in OUTCOME_OF[:at])


# --- Transports of others ---


def mock(handler):
    return {"transport": httpx.MockTransport(handler)}


async def test_a_mock_transport_answers():
    asked: list[httpx.Request] = []

    def answer(request):
        asked.append(request)
        return httpx.Response(200, json=ANSWER, headers={"set-cookie": "session=1"})

    async with turnloom.GymClient({"math": "http://agent:8001"}, **mock(answer)) as gym:
        for _ in range(2):
            assert (await gym.run(ROW, **SAMPLING)).outcome == "ok"
    assert str(asked[0].url) == "http://agent:8001/run"
    assert json.loads(asked[0].content)["id"] == 7
    assert "cookie" not in asked[1].headers


RAISED = {name: kind for name, kind in exceptions_of(httpx).items() if issubclass(kind, httpx.TransportError)}


@pytest.mark.parametrize("name", RAISED)
async def test_a_transports_exceptions_become_outcomes(name):
    asked = 0

    def fail(request):
        nonlocal asked
        asked += 1
        raise RAISED[name]("it went wrong", request=request)

    async with turnloom.GymClient({"math": "http://agent:8001"}, **mock(fail)) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
    assert rollout.outcome == MEANINGS[name]
    assert f"{RAISED[name].__name__}: it went wrong" in rollout.reason
    assert asked == (_backoff.MAX_TRIES if rollout.outcome == "unreachable" else 1)


async def test_a_bug_in_a_transport_is_not_taken_for_the_network():
    def fail(request):
        raise KeyError("a bug")

    async with turnloom.GymClient({"math": "http://agent:8001"}, **mock(fail)) as gym:
        with pytest.raises(KeyError, match="a bug"):
            await gym.run(ROW, **SAMPLING)


@pytest.mark.parametrize("settings", [{"run_timeout": 0.1}, {"run_timeout": None, "deadline": 0.1}])
async def test_time_is_up_whatever_the_transport(settings):
    async def hang(request):
        await asyncio.get_running_loop().create_future()

    async with turnloom.GymClient({"math": "http://agent:8001"}, **mock(hang), **settings) as gym:
        assert (await gym.run(ROW, **SAMPLING)).outcome == "timeout"


async def silent(call):
    await call.body()
    await call.gone()


async def reset(call):
    await call.body()
    call.reset()


async def half(call):
    await call.body()
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")


async def deaf(call):
    await asyncio.get_running_loop().create_future()


async def garbled(call):
    await call.body()
    await call.send(b"garbled\r\n\r\n")


async def cut_by_the_server(call):
    await call.body()
    await call.send(b"HTTP/1.1 200 OK\r\n\r\n{")


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (ANSWER, "ok"),
        (b"{", "malformed"),
        (silent, "timeout"),
        (deaf, "timeout"),
        (reset, "disconnected"),
        (half, "disconnected"),
        (garbled, "disconnected"),
        (cut_by_the_server, "disconnected"),
        (None, "unreachable"),
    ],
)
async def test_plain_httpx_gives_the_same_outcomes(behaviour, outcome):
    row = {**ROW, "pad": "x" * 20_000_000} if behaviour is deaf else ROW
    async with FakeAgent(behaviour) as agent:
        url = agent.url if behaviour is not None else "http://127.0.0.1:1"
        transport = httpx.AsyncHTTPTransport()
        async with turnloom.GymClient({"math": url}, transport=transport, run_timeout=0.5) as gym:
            rollout = await gym.run(row, **SAMPLING)
        assert rollout.outcome == outcome, rollout.reason
        assert len(agent.calls) == (behaviour is not None)


async def test_waiting_for_a_slot_of_anothers_pool_is_not_counted_by_run_timeout(monkeypatch):
    monkeypatch.setattr(_backoff, "MAX_TRIES", 1)
    body = json.dumps(ANSWER).encode()

    async def drip(call):
        await call.body()
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:-10])
        for at in range(len(body) - 10, len(body)):
            await asyncio.sleep(0.1)
            await call.send(body[at : at + 1])

    transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
    settings = {"transport": transport, "run_timeout": 0.6}
    async with FakeAgent(drip) as agent, turnloom.GymClient({"math": agent.url}, **settings) as gym:
        rollouts = await asyncio.gather(*(gym.run(ROW, **SAMPLING) for _ in range(2)))
    assert [rollout.outcome for rollout in rollouts] == ["ok", "ok"]


CERTIFICATE = Path(__file__).parent / "data" / "tls" / "self_signed.pem"

ASK_BY_TLS = """
import asyncio, sys
import turnloom
from one_row import ROW, SAMPLING

async def ask():
    async with turnloom.GymClient({"math": sys.argv[1]}) as gym:
        return await gym.run(ROW, **SAMPLING)

rollout = asyncio.run(ask())
print(rollout.outcome, rollout.reason)
"""


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_server_with_tls_is_asked_if_its_certificate_is_trusted(monkeypatch, trusted):
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    asked: list[bytes] = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(sized(BODY))
        writer.close()

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(answer, "127.0.0.1", ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(  # what is trusted is read once for each process
            sys.executable, "-c", ASK_BY_TLS, url, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent
        )
        said, _ = await process.communicate()
    if trusted:
        assert said.split()[0] == b"ok"
    else:
        assert said.split()[0] == b"unreachable"
        assert b"CERTIFICATE_VERIFY_FAILED" in said
    assert len(asked) == trusted
