"""The client of NeMo Gym's agent servers: the only sender to agents.

`__init__` has the client: its settings, and when it is open. `_delivery` is one row's way to its agent, `_agents` who
waits for a slot, `_replicas` which server a row goes to, `_backoff` when one is tried again, `_exchange` one POST and
what comes of it, `_transport` the network beneath. `_discovery` asks NeMo Gym's head server where its agents are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from turnloom._client._agents import Agent, AgentState, ReplicaState
from turnloom._client._descriptors import Descriptors
from turnloom._client._settings import RunSettings, concurrency, seconds, transport_of_httpx
from turnloom._client._urls import server_urls
from turnloom._exceptions import ConfigError
from turnloom._gym import agent_of, agent_request
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS, Branches, RunParser
from turnloom._records import DEFAULT_RECORD_MAX_BYTES, RecordCounts, Recording, RecordWriter
from turnloom._rollout import Rollout

if TYPE_CHECKING:
    import httpx

    from turnloom._client._transport import Sender

__all__ = ["AgentState", "GymClient", "ReplicaState"]

DEFAULT_RUN_TIMEOUT_S: Final = 300.0
CONNECT_TIMEOUT_S: Final = 30.0
"""For resolving a host and connecting to it, where `run_timeout` isn't shorter."""


class GymClient:
    """Sends dataset rows to NeMo Gym's agent servers, and makes rollouts of their answers while these arrive.

    Examples:
        >>> async with GymClient({"math": "http://127.0.0.1:8001"}) as gym:  # doctest: +SKIP
        ...     rollout = await gym.run(row, max_tokens=1024, temperature=1.0, top_p=1.0)

    A row is sent at most once, unless it surely was not delivered (the server refused the connection, say). Such a
    server is put aside and its rollouts go to the agent's others; while there is none, rollouts wait, one at a time
    tries again after a growing pause, and a rollout that has seen a few such tries fail is `unreachable`.

    Any number of rollouts can run at once, or `max_concurrency` per agent; each has a connection of its own. Where this
    process runs out of file descriptors, rollouts wait until others have ended. Those under way when the client is
    closed are `disconnected`.

    Args:
        agent_servers: by the agents' names a URL, or a list of URLs where several servers do the same work: then each
            rollout goes to the one with the fewest in flight. The first agent serves the rows that name none.
        run_timeout: seconds without a byte, in sending as in receiving; 300 by default, None is no bound. NeMo Gym
            sends nothing until a run is over, so that this bounds the whole run.
        deadline: seconds for one rollout, pauses between tries included; None is no bound. Waiting for a slot or for a
            file descriptor is not counted.
        max_concurrency: how many requests each agent may have in flight, on all its servers together; None is no bound.
            The others wait, first come, first served, and none waits for another agent's.
        fork_threshold_tokens: as in `RunParser`.
        branches: as in `RunParser`.
        honor_mask_sample: as in `RunParser`.
        max_body_bytes: as in `RunParser`.
        record_dir: a folder in which every rollout is recorded, as `Records` reads them; None for no records. No
            rollout waits for the disk: what it is too slow for is not recorded, and counted in `records`.
        record_max_bytes: bounds that folder, of which the oldest files go; 16 GiB by default, None is no bound.
        transport: an httpx transport in place of the default one, for tests or special networks. It is closed with
            the client, and has to keep httpx's timeout for connecting by itself.
        trust_env: whether proxies (and `.netrc`) of the environment hold for agent servers.

    Raises:
        ConfigError: a setting out of its range, a URL that is none, an agent without a server or with one twice, or a
            folder that cannot be written to.
        ImportError: records need zstandard, of the extra `records`.
    """

    def __init__(
        self,
        agent_servers: Mapping[str, str | Sequence[str]],
        *,
        run_timeout: float | None = DEFAULT_RUN_TIMEOUT_S,
        deadline: float | None = None,
        max_concurrency: int | None = None,
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
        self._max_concurrency = concurrency(max_concurrency)
        parser: dict[str, Any] = {
            "fork_threshold_tokens": fork_threshold_tokens,
            "branches": branches,
            "honor_mask_sample": honor_mask_sample,
            "max_body_bytes": max_body_bytes,
        }
        RunParser(**parser)  # raises for what it does not take
        self._settings = RunSettings(seconds("run_timeout", run_timeout), seconds("deadline", deadline), parser)
        self._recorder = None if record_dir is None else RecordWriter(record_dir, max_bytes=record_max_bytes)
        self._transport = transport_of_httpx(transport)
        self._trust_env = trust_env
        self._sender: Sender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Timeout] = set()  # the time limits of the rollouts
        self._none_under_way = asyncio.Event()
        self._descriptors = Descriptors()
        self._agents = self._new_agents()

    def _new_agents(self) -> dict[str, Agent]:
        return {
            name: Agent(name, servers, max_concurrency=self._max_concurrency) for name, servers in self._servers.items()
        }

    async def __aenter__(self) -> Self:
        from turnloom._client._transport import Sender

        if self._sender is not None:
            raise ConfigError("this GymClient is open already")
        connect_timeout = min(CONNECT_TIMEOUT_S, self._settings.run_timeout or CONNECT_TIMEOUT_S)
        self._sender = Sender(self._transport, trust_env=self._trust_env, connect_timeout=connect_timeout)
        self._loop = asyncio.get_running_loop()
        self._agents, self._none_under_way = self._new_agents(), asyncio.Event()  # what waits belongs to one loop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._sender is None:
            return
        sender, self._sender = self._open_sender(), None
        try:
            await self._end_rollouts()
        finally:
            await sender.aclose()
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.close)

    async def _end_rollouts(self) -> None:
        """End every rollout, and wait until none uses the network any more."""
        for time_limit in self._under_way:
            if not time_limit.expired():
                time_limit.reschedule(-math.inf)  # which neither a slot nor waiting for a descriptor puts off
        while self._under_way:
            self._none_under_way.clear()
            await self._none_under_way.wait()

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
            fields: members of the request, sent as they are, over the row's own. A `_ng_rollout_id` of 32 hexadecimal
                digits is the rollout's `id`, too.

        Raises:
            ConfigError: the row is none, names an agent that there isn't, or the client is not open in this event loop.
        """
        request = agent_request(row, max_tokens=max_tokens, temperature=temperature, top_p=top_p)
        request.update(_members(fields))
        agent = self._agents[agent_of(request, self._agents)]
        body = _json(request, agent.name)
        with self._recording(body) as recording:
            rollout = await self._rollout(agent, request, body, recording)
            rollout._request_fields = frozenset(request)
            if fields:
                rollout._take_id(fields.get("_ng_rollout_id"))
            if recording is not None:
                recording.end(rollout)
        return rollout

    @staticmethod
    def discover(head_url: str) -> dict[str, str | list[str]]:
        """The agents of a running NeMo Gym, as its head server lists them: what `agent_servers` takes.

        It waits for the answer, so a program calls it before its event loop runs, or in a thread.

        Args:
            head_url: of the head server, such as `http://10.0.0.5:11000`. An agent that listens at 0.0.0.0 is taken to
                be on the same host.

        Raises:
            AgentUnreachable: the head server doesn't answer.
            ConfigError: it is none, it lists no agent, or one without a URL.
        """
        from turnloom._client._discovery import discover

        return discover(head_url)

    @property
    def agents(self) -> dict[str, AgentState]:
        """What each agent has in flight and in its queue, and which of its servers are put aside, at this moment."""
        now = self._loop.time() if self._loop is not None else 0.0
        return {name: agent.state(now) for name, agent in self._agents.items()}

    @property
    def records(self) -> RecordCounts:
        """How much has been recorded, and how much has not."""
        return RecordCounts() if self._recorder is None else self._recorder.counts

    def _recording(self, body: bytes) -> contextlib.AbstractContextManager[Recording | None]:
        if self._recorder is None:
            return contextlib.nullcontext()
        return self._recorder.begin(body, settings=self._settings.parser)

    async def _rollout(
        self, agent: Agent, request: dict[str, Any], body: bytes, recording: Recording | None
    ) -> Rollout:
        from turnloom._client._delivery import Delivery
        from turnloom._client._exchange import RunCall

        sender = self._open_sender()
        call = RunCall(agent.name, request, body, recording)
        delivery = Delivery(call, agent, settings=self._settings, descriptors=self._descriptors)
        try:
            async with asyncio.timeout(None) as time_limit:
                self._under_way.add(time_limit)
                try:
                    return await delivery.rollout(sender, time_limit)
                finally:
                    self._under_way.discard(time_limit)
                    if not self._under_way:
                        self._none_under_way.set()
        except TimeoutError:
            if self._sender is not sender:
                return delivery.ended("disconnected", "this GymClient was closed")
            return delivery.ended("timeout", f"the deadline of {self._settings.deadline:g} s passed")

    def _open_sender(self) -> Sender:
        if self._sender is None:
            raise ConfigError("this GymClient is not open: use `async with GymClient(...) as gym`")
        if self._loop is not asyncio.get_running_loop():
            raise ConfigError("this GymClient was opened in another event loop: open one in each loop that uses one")
        return self._sender


def _json(request: dict[str, Any], agent: str) -> bytes:
    try:
        return json.dumps(request, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the row for agent {agent!r} cannot be written as JSON: {error}") from error


def _members(fields: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError(f"fields={fields!r}: a mapping is needed, from the names of members to their values")
    return fields or {}
