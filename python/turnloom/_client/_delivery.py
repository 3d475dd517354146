"""One row on its way to its agent: the wait for a slot, the tries, and the rollout that ends them."""

from __future__ import annotations

import asyncio
import math
from functools import partial

from turnloom._client import _backoff
from turnloom._client._agents import Agent
from turnloom._client._descriptors import Descriptors
from turnloom._client._exchange import Exchange, RunCall
from turnloom._client._replicas import Attempt
from turnloom._client._settings import RunSettings
from turnloom._client._transport import Sender
from turnloom._client._urls import ServerUrl
from turnloom._parse import RunParser
from turnloom._rollout import Outcome, Rollout


class Delivery:
    """Sends one row until it is delivered, or known not to be deliverable.

    It is sent again only where it surely was not delivered: at once where another server of the agent takes
    connections, else when a probe finds one that does.
    """

    def __init__(self, call: RunCall, agent: Agent, *, settings: RunSettings, descriptors: Descriptors) -> None:
        self._call = call
        self._agent = agent
        self._settings = settings
        self._descriptors = descriptors
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._slot_at: float | None = None
        self._failures_before = agent.replicas.failures
        self._tries = 0
        self._exchange = self._new_exchange(agent.replicas.all[0].server)

    async def rollout(self, sender: Sender, time_limit: asyncio.Timeout) -> Rollout:
        """What becomes of the row. The time limit is set when there is a slot for it."""
        async with self._agent.slots:
            self._slot_at = self._loop.time()
            if self._settings.deadline is not None and time_limit.when() is None:  # else the client is being closed
                time_limit.reschedule(self._slot_at + self._settings.deadline)
            return self._told(await self._sent(sender, time_limit))

    async def _sent(self, sender: Sender, time_limit: asyncio.Timeout) -> Rollout:
        began = self._loop.time()
        while attempt := await self._agent.replicas.attempt(failures_before=self._failures_before):
            with attempt:
                rollout = await self._try(sender, attempt)
            if rollout.outcome != "unreachable":
                return rollout
            if self._exchange.out_of_descriptors:
                if self._descriptors.quiet_since(began) > (self._settings.run_timeout or math.inf):
                    return rollout
                await self._descriptors.wait(time_limit)
        tried = f"{_backoff.MAX_TRIES} tries, its own and those of others, found no connection"
        return self._exchange.lost("unreachable", f"{tried}; the last: {self._agent.replicas.last_failure}")

    async def _try(self, sender: Sender, attempt: Attempt) -> Rollout:
        if not self._exchange.out_of_descriptors:
            self._tries += 1
        self._exchange = exchange = self._new_exchange(attempt.replica.server, attempt)
        rollout = await exchange.rollout(sender)
        if rollout.outcome != "unreachable":
            attempt.delivered()
        elif not exchange.out_of_descriptors:
            attempt.refused(exchange.failure)
        return rollout

    def _new_exchange(self, server: ServerUrl, attempt: Attempt | None = None) -> Exchange:
        return Exchange(
            self._call,
            server,
            tries=self._tries,
            new_parser=partial(RunParser, **self._settings.parser),
            run_timeout=self._settings.run_timeout,
            on_connection=attempt.connected if attempt else None,
            on_byte=self._descriptors.byte_moved,
        )

    def ended(self, outcome: Outcome, what: str) -> Rollout:
        """The rollout when it ends now, by no fault of the network's."""
        if not self._tries:
            self._exchange.failure = self._agent.replicas.last_failure
        return self._told(self._exchange.ended(outcome, what))

    def _told(self, rollout: Rollout) -> Rollout:
        now = self._loop.time()
        rollout.agent = self._call.agent
        rollout.server = self._exchange.server.shown if self._tries else None
        rollout.timing = self._exchange.timing(
            queue_s=(self._slot_at or now) - self._began_at, total_s=now - self._began_at
        )
        return rollout
