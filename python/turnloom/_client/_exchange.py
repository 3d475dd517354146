"""One POST of one row to its agent, and the rollout that comes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import httpx

from turnloom._client._decoding import body_of
from turnloom._client._silence import Silence
from turnloom._client._transport import NETWORK_ERRORS, Sender, classify, is_out_of_descriptors, says_where_it_ends
from turnloom._client._urls import ServerUrl
from turnloom._exceptions import (
    AgentDisconnected,
    AgentError,
    AgentHTTPError,
    AgentTimeout,
    AgentUnreachable,
    MalformedBody,
)
from turnloom._gym import prompt_of
from turnloom._parse import RunParser
from turnloom._records import Recording
from turnloom._rollout import Outcome, Rollout, Timing

MAX_ERROR_BYTES: Final = 2000
"""How much of the body of an error is read and kept."""
SEND_CHUNK_BYTES: Final = 64 * 1024
"""A row is sent in such pieces; each that is taken shows that the server still reads."""

_SHOWN_CHARS: Final = 300
_ROW_IDS: Final = ("_ng_task_index", "_ng_rollout_id", "id", "task_id", "instance_id", "uuid")


@dataclass(frozen=True, slots=True)
class RunCall:
    """One row on its way to one agent."""

    agent: str
    request: Mapping[str, Any]
    body: bytes
    recording: Recording | None = None

    def row(self) -> str:
        """The row by ids of its own, at most two, or by what it asks."""
        ids = ((name, self.request.get(name)) for name in _ROW_IDS)
        told = [f"{name}={_shown(repr(value), 100)}" for name, value in ids if isinstance(value, (str, int))]
        if told:
            return ", ".join(told[:2])
        messages = prompt_of({"responses_create_params": self.request["responses_create_params"]})
        return f"that asks {_shown(str(messages[-1]['content']), 100)!r}" if messages else "that asks nothing"


class Exchange:
    """One try at one server: it ends with a rollout, whatever the network or the agent does.

    Args:
        server: where the row is sent.
        tries: which try this is, from 1; 0 is one that is never begun.
        run_timeout: seconds without a byte, counted from the first byte sent.
        on_connection: called when there is a connection, before the row is sent.
        on_byte: called whenever bytes have moved, with the loop's time.

    Attributes:
        out_of_descriptors: whether there was no file descriptor for a connection.
        failure: the exception that ended it, in words; empty where there was none.
    """

    def __init__(
        self,
        call: RunCall,
        server: ServerUrl,
        *,
        tries: int,
        new_parser: Callable[[], RunParser],
        run_timeout: float | None,
        on_connection: Callable[[], None] | None,
        on_byte: Callable[[float], None],
    ) -> None:
        self.server = server
        self.tries = tries
        self.out_of_descriptors = False
        self.failure = ""
        self._call = call
        self._new_parser = new_parser
        self._run_timeout = run_timeout
        self._on_connection = on_connection
        self._on_byte = on_byte
        self._loop = asyncio.get_running_loop()
        self._silence = Silence(run_timeout)
        self._began_at = 0.0
        self._first_byte_at = 0.0
        self._ended_at = 0.0
        self._parse_s = 0.0
        self._sent: int | None = None
        self._status: int | None = None
        self._encoding = ""
        self._received = 0
        self._head = b""

    async def rollout(self, sender: Sender) -> Rollout:
        """Send the row, and parse the answer while it arrives."""
        self._began_at = self._loop.time()
        try:
            async with self._silence:
                return await self._post(sender)
        except MalformedBody as error:
            return self._malformed(error)
        except NETWORK_ERRORS as error:
            return self._failed(error)
        finally:
            self._ended_at = self._loop.time()

    def timing(self, *, queue_s: float, total_s: float) -> Timing:
        """Where the time of the rollout went, of which this was the last try."""
        answered = self._status is not None
        return Timing(
            queue_s=queue_s,
            first_byte_s=self._first_byte_at - self._began_at if answered else 0.0,
            download_s=self._ended_at - self._first_byte_at if answered else 0.0,
            parse_s=self._parse_s,
            total_s=total_s,
            body_bytes=self._received,
        )

    async def _post(self, sender: Sender) -> Rollout:
        server, parser = self.server, self._new_parser()
        async with aclosing(await sender.post(server, self._row(), size=len(self._call.body))) as response:
            self._status = response.status_code
            self._encoding = response.headers.get("content-encoding", "")
            self._first_byte_at = self._moved()
            if self._status != 200:
                await self._read_error(response)
                return self._http_error()
            async for chunk in body_of(response):
                self._take(chunk)
                began = time.perf_counter()
                parser.feed(chunk)
                self._parse_s += time.perf_counter() - began
        return self._finish(parser, response)

    async def _row(self) -> AsyncIterator[bytes]:
        if self._on_connection is not None:
            self._on_connection()
        body = self._call.body
        for start in range(0, len(body), SEND_CHUNK_BYTES):
            self._sent = start
            self._moved()
            yield body[start : start + SEND_CHUNK_BYTES]
        self._sent = len(body)
        self._moved()

    async def _read_error(self, response: httpx.Response) -> None:
        async for chunk in body_of(response):
            self._take(chunk)
            if len(self._head) >= MAX_ERROR_BYTES:
                return

    def _take(self, chunk: bytes) -> None:
        self._moved()
        self._received += len(chunk)
        if self._call.recording is not None:
            self._call.recording.chunk(chunk)
        if len(self._head) < MAX_ERROR_BYTES:
            self._head += chunk[: MAX_ERROR_BYTES - len(self._head)]

    def _moved(self) -> float:
        """Note that bytes have moved; gives the loop's time."""
        now = self._loop.time()
        self._on_byte(now)
        self._silence.moved(now)
        return now

    # What came of it.

    def _finish(self, parser: RunParser, response: httpx.Response) -> Rollout:
        began = time.perf_counter()
        try:
            rollout = parser.finish()
            self._parse_s += time.perf_counter() - began
        except MalformedBody as error:
            if says_where_it_ends(response):
                return self._malformed(error)
            return self.lost("disconnected", f"the connection ended before the answer did ({error})")
        if rollout.reason is not None:
            rollout.reason = self._told(rollout.reason)
        return rollout

    def _failed(self, error: Exception) -> Rollout:
        if isinstance(error, UnicodeError) and self._sent is not None:
            raise error  # no host's name: a bug, after which nothing may be sent again
        if self._silence.expired():
            return self.ended("timeout", f"no byte moved for {self._run_timeout:g} s")
        if self._refused:
            return self._http_error()
        outcome, cause = classify(error)
        self.out_of_descriptors = is_out_of_descriptors(error)
        self.failure = what = _shown(f"{type(cause).__name__}: {cause}".rstrip(": "))
        if outcome == "malformed":
            return self._malformed(MalformedBody(f"the body cannot be decompressed ({what})", offset=self._received))
        return self.lost(outcome, f"{what} (try {self.tries})" if self._sent is None else f"{what} ({self._stage()})")

    def ended(self, outcome: Outcome, what: str) -> Rollout:
        """The rollout when it ends now, by no fault of the network's."""
        return self._http_error() if self._refused else self.lost(outcome, f"{what} ({self._stage()})")

    @property
    def _refused(self) -> bool:
        """Whether the answer is an error: nothing that happens to the rest of its body changes that."""
        return self._status not in (None, 200)

    def _stage(self) -> str:
        total = len(self._call.body)
        if self._sent is None:
            after = f" after {self.failure}" if self.failure else ""
            return f"try {self.tries}, no connection yet{after}" if self.tries else f"not sent yet{after}"
        if self._status is not None:
            return f"while the answer arrived, {self._received:,} bytes so far"
        if self._sent < total:
            return f"while the row was sent, {self._sent:,} of {total:,} bytes so far"
        return "while waiting for the answer; NeMo Gym sends nothing until a run is over"

    def lost(self, outcome: Outcome, what: str) -> Rollout:
        """The rollout without a sound answer, in these words."""
        reason = self._told(what)
        return Rollout(
            outcome, reason=reason, error=_ERRORS[outcome](reason, agent=self._call.agent, url=self.server.run)
        )

    def _http_error(self) -> Rollout:
        assert self._status is not None
        reason = self._told(_meaning(self._status))
        body = self._head.decode("utf-8", "replace")
        error = AgentHTTPError(reason, agent=self._call.agent, url=self.server.run, status=self._status, body=body)
        return Rollout("http_error", reason=reason, error=error)

    def _malformed(self, error: MalformedBody) -> Rollout:
        reason = self._told(str(error))
        place = {name: getattr(error, name) for name in ("offset", "line", "column", "path", "excerpt")}
        # A new exception: the traceback of the old one would keep the whole exchange alive.
        return Rollout("malformed", reason=reason, error=MalformedBody(reason, **place))

    def _told(self, what: str) -> str:
        status = f", HTTP {self._status} {self._encoding}".rstrip() if self._status is not None else ""
        begins = f"; the body begins {_shown(repr(self._head.decode('utf-8', 'replace')))}" if self._head else ""
        return f"agent {self._call.agent!r} ({self.server.run}), row {self._call.row()}{status}: {what}{begins}"


_ERRORS: Final[Mapping[Outcome, type[AgentError]]] = {
    "timeout": AgentTimeout,
    "unreachable": AgentUnreachable,
    "disconnected": AgentDisconnected,
}


def _meaning(status: int) -> str:
    if status in (300, 301, 302, 303, 307, 308):
        return "a redirect, which is not followed; name the agent's own URL"
    if status == 304:
        return "not modified, which is no answer to a POST; name the agent's own URL, with no cache before it"
    if status < 400:
        return "only a 200 is an answer"
    if status in (404, 405):
        return "this is not the URL of an agent"
    return "the agent does not take this row" if status == 422 else "the agent reports an error"


def _shown(text: str, limit: int = _SHOWN_CHARS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
