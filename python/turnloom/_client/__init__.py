"""The client of NeMo Gym's agent servers.

`__init__` has the client: its settings, and when a row is sent again. `_exchange` is one POST and what comes of it,
`_transport` the network beneath. Nothing else sends to agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from turnloom._client._urls import server_urls
from turnloom._exceptions import ConfigError
from turnloom._gym import agent_of, agent_request
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS, Branches, RunParser
from turnloom._records import DEFAULT_RECORD_MAX_BYTES, RecordCounts, Recording, RecordWriter
from turnloom._rollout import Rollout

if TYPE_CHECKING:
    import httpx

    from turnloom._client._exchange import Exchange, RunCall

logger = logging.getLogger("turnloom")

DEFAULT_RUN_TIMEOUT_S: Final = 300.0
CONNECT_TIMEOUT_S: Final = 30.0
"""For resolving a host and connecting to it, where `run_timeout` isn't shorter."""
MAX_TRIES: Final = 4
"""How often a row is sent that surely was not delivered."""
FIRST_PAUSE_S: Final = 0.5
"""Before the second try; it doubles with each, up to `MAX_PAUSE_S`, and is spread by half of itself either way."""
MAX_PAUSE_S: Final = 4.0
RECORDS_PATIENCE_S: Final = 3.0
"""How long the disk may take for the last records when a client is closed."""


class GymClient:
    """Sends dataset rows to NeMo Gym's agent servers, and makes rollouts of their answers while these arrive.

    >>> async with GymClient({"math": "http://127.0.0.1:8001"}) as gym:  # doctest: +SKIP
    ...     rollout = await gym.run(row, max_tokens=1024, temperature=1.0, top_p=1.0)

    A row is sent at most once, unless it surely was not delivered (the agent refused the connection, say): then a few
    times, with pauses. Any number of rollouts can run at once; each has a connection of its own. Where this process
    runs out of file descriptors, rollouts wait until others have ended. Those under way when the client is closed are
    `disconnected`.

    Args:
        agent_servers: the agents' URLs by their names; the first serves the rows that name none.
        run_timeout: seconds without a byte, in sending as in receiving; None is no bound. NeMo Gym sends nothing until
            a run is over, so that this bounds the whole run.
        deadline: seconds for one rollout, from `run` to its end, pauses between tries included; None is no bound.
            Waiting for a file descriptor is not counted.
        fork_threshold_tokens: as in `RunParser`.
        branches: as in `RunParser`.
        honor_mask_sample: as in `RunParser`.
        max_body_bytes: as in `RunParser`.
        record_dir: a folder in which every rollout is recorded, as `Records` reads them; None for no records. No
            rollout waits for the disk: what it is too slow for is not recorded, and counted in `records`.
        record_max_bytes: bounds that folder, of which the oldest files go; None is no bound.
        transport: an httpx transport in place of the default one, for tests or special networks. It is closed with
            the client, and has to keep httpx's timeout for connecting by itself.
        trust_env: whether proxies (and `.netrc`) of the environment hold for agent servers.

    Raises:
        ConfigError: a setting out of its range, a URL that is none, or a folder that cannot be written to.
        ImportError: records need zstandard, of the extra `records`.
    """

    def __init__(
        self,
        agent_servers: Mapping[str, str],
        *,
        run_timeout: float | None = DEFAULT_RUN_TIMEOUT_S,
        deadline: float | None = None,
        fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD_TOKENS,
        branches: Branches = "linear",
        honor_mask_sample: bool = True,
        max_body_bytes: int | None = None,
        record_dir: str | os.PathLike[str] | None = None,
        record_max_bytes: int | None = DEFAULT_RECORD_MAX_BYTES,
        transport: httpx.AsyncBaseTransport | None = None,
        trust_env: bool = False,
    ) -> None:
        self._servers = server_urls(agent_servers)
        self._run_timeout = _seconds("run_timeout", run_timeout)
        self._deadline = _seconds("deadline", deadline)
        self._parser_settings: dict[str, Any] = {
            "fork_threshold_tokens": fork_threshold_tokens,
            "branches": branches,
            "honor_mask_sample": honor_mask_sample,
            "max_body_bytes": max_body_bytes,
        }
        RunParser(**self._parser_settings)  # raises for what it does not take
        self._recorder = None if record_dir is None else RecordWriter(record_dir, max_bytes=record_max_bytes)
        self._transport = _transport_of_httpx(transport)
        self._trust_env = trust_env
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: dict[asyncio.Timeout, asyncio.Future[None]] = {}
        self._byte_moved_at = 0.0
        self._told_of_descriptors = False

    async def __aenter__(self) -> Self:
        from turnloom._client._transport import open_http_client

        if self._http is not None:
            raise ConfigError("this GymClient is open already")
        connect_timeout = min(CONNECT_TIMEOUT_S, self._run_timeout or CONNECT_TIMEOUT_S)
        self._http = open_http_client(self._transport, trust_env=self._trust_env, connect_timeout=connect_timeout)
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is None:
            return
        http, self._http = self._open_http(), None
        try:
            await self._end_rollouts()
        finally:
            await http.aclose()
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.close, RECORDS_PATIENCE_S)

    @property
    def records(self) -> RecordCounts:
        """How much has been recorded, and how much has not."""
        return RecordCounts() if self._recorder is None else self._recorder.counts

    async def _end_rollouts(self) -> None:
        """End every rollout, and wait until none uses the network any more."""
        under_way = dict(self._under_way)
        for deadline in under_way:
            if not deadline.expired():
                deadline.reschedule(-math.inf)  # which waiting for a descriptor does not put off
        if under_way:
            await asyncio.wait(under_way.values())

    async def run(
        self,
        row: Mapping[str, Any],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        fields: Mapping[str, Any] | None = None,
    ) -> Rollout:
        """Send one dataset row to its agent, and make a rollout of the answer.

        Whatever the network or the agent does is an outcome of the rollout, named in its `reason`; its `error` is the
        exception for `raise_for_outcome`. Cancelling closes the connection at once.

        Args:
            row: as `agent_request` takes it; `agent_ref.name` says which agent.
            max_tokens: bounds the generated tokens of each model call.
            temperature: of the sampling; replaces the row's own.
            top_p: likewise.
            fields: members of the request, sent as they are, over the row's own; such as `_ng_rollout_id`.

        Raises:
            ConfigError: the row is none, names an agent that there isn't, or the client is not open in this event loop.
        """
        request = agent_request(row, max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        request.update(_members(fields))
        agent = agent_of(request, self._servers)
        call = self._call(agent, request)
        with self._recording(call) as recording:
            rollout = await self._deliver(replace(call, recording=recording))
            rollout._request_fields = frozenset(request)
            if recording is not None:
                recording.end(rollout)
        return rollout

    def _recording(self, call: RunCall) -> contextlib.AbstractContextManager[Recording | None]:
        if self._recorder is None:
            return contextlib.nullcontext()
        return self._recorder.begin(call.body, settings=self._parser_settings)

    def _call(self, agent: str, request: dict[str, Any]) -> RunCall:
        from turnloom._client._exchange import RunCall

        try:
            body = json.dumps(request, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the row for agent {agent!r} cannot be written as JSON: {error}") from error
        return RunCall(agent=agent, server=self._servers[agent], request=request, body=body)

    async def _deliver(self, call: RunCall) -> Rollout:
        """Try until the row is delivered, or known not to be deliverable."""
        began = asyncio.get_running_loop().time()
        exchange, rollout = await self._tried(call, began)
        rollout.agent = call.agent
        rollout.server = call.server.shown
        rollout.timing = exchange.timing(queue_s=0.0, total_s=asyncio.get_running_loop().time() - began)
        return rollout

    async def _tried(self, call: RunCall, began: float) -> tuple[Exchange, Rollout]:
        http = self._open_http()
        exchange = self._exchange(call, 1)
        try:
            async with self._until_deadline_or_close() as deadline:
                while (rollout := await exchange.rollout(http)).outcome == "unreachable":
                    tries = exchange.tries
                    if exchange.out_of_descriptors:
                        if self._quiet_since(began) > (self._run_timeout or math.inf):
                            break
                        await self._wait_for_descriptor(deadline)
                    elif tries < MAX_TRIES:
                        await asyncio.sleep(_pause(tries))
                        tries += 1
                    else:
                        break
                    exchange = self._exchange(call, tries)
        except TimeoutError:
            if self._http is not http:
                return exchange, exchange.ended("disconnected", "this GymClient was closed")
            return exchange, exchange.ended("timeout", f"the deadline of {self._deadline:g} s passed")
        return exchange, rollout

    @contextlib.asynccontextmanager
    async def _until_deadline_or_close(self) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError in either case."""
        async with asyncio.timeout(self._deadline) as deadline:
            ended = self._under_way[deadline] = asyncio.get_running_loop().create_future()
            try:
                yield deadline
            finally:
                del self._under_way[deadline]
                ended.set_result(None)

    def _open_http(self) -> httpx.AsyncClient:
        if self._http is None:
            raise ConfigError("this GymClient is not open: use `async with GymClient(...) as gym`")
        if self._loop is not asyncio.get_running_loop():
            raise ConfigError("this GymClient was opened in another event loop: open one in each loop that uses one")
        return self._http

    def _exchange(self, call: RunCall, tries: int) -> Exchange:
        from turnloom._client._exchange import Exchange

        return Exchange(
            call,
            tries=tries,
            parser=RunParser(**self._parser_settings),
            run_timeout=self._run_timeout,
            on_byte=self._byte_moved,
        )

    async def _wait_for_descriptor(self, deadline: asyncio.Timeout) -> None:
        if not self._told_of_descriptors:
            self._told_of_descriptors = True
            logger.warning("too many open files: rollouts wait until others have ended; raise the limit (ulimit -n)")
        pause = _pause(1)
        if (when := deadline.when()) is not None and not deadline.expired():
            deadline.reschedule(when + pause)
        await asyncio.sleep(pause)

    def _byte_moved(self, now: float) -> None:
        self._byte_moved_at = now

    def _quiet_since(self, began: float) -> float:
        """Seconds in which no rollout of this client moved a byte, since `began`."""
        return asyncio.get_running_loop().time() - max(began, self._byte_moved_at)


def _pause(tries: int) -> float:
    """Seconds before the next try, spread so that many rollouts do not come back at once."""
    pause: float = min(FIRST_PAUSE_S * 2 ** (tries - 1), MAX_PAUSE_S)
    return pause * random.uniform(0.5, 1.5)


def _seconds(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.nan
    if not seconds > 0:
        raise ConfigError(f"{name}={value!r}: a number of seconds above 0 is needed, or None for no bound")
    return None if math.isinf(seconds) else seconds


def _members(fields: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError(f"fields={fields!r}: a mapping is needed, from the names of members to their values")
    return fields or {}


def _transport_of_httpx(transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncBaseTransport | None:
    if transport is not None:
        import httpx

        if not isinstance(transport, httpx.AsyncBaseTransport):
            raise ConfigError(f"transport={transport!r}: an httpx.AsyncBaseTransport is needed, or None for our own")
    return transport
