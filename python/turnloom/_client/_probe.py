"""What a doctor asks of an agent server beside a rollout: whether it is one, and how its answers are framed."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from turnloom._client._transport import NETWORK_ERRORS, AgentTransport, classify
from turnloom._client._urls import ServerUrl


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of asking for an agent's URL without running anything."""

    status: int | None
    """Of a `GET` of `/run`: an agent, which takes only `POST` there, answers 405. None where nothing answered."""
    failure: str
    """Why nothing answered; else empty."""


async def probe(server: ServerUrl, *, connect_timeout: float) -> Probe:
    """Ask whether somebody answers at an agent's `/run`, and as an agent would."""
    async with httpx.AsyncClient(transport=AgentTransport(trust_env=False), timeout=connect_timeout) as http:
        try:
            async with http.stream("GET", server.run, auth=server.auth) as response:
                return Probe(response.status_code, "")
        except NETWORK_ERRORS as error:
            _, cause = classify(error)
            return Probe(None, f"{type(cause).__name__}: {cause}".rstrip(": "))


class HeadersTransport(httpx.AsyncBaseTransport):
    """The transport of a client, which keeps the headers of the last answer."""

    def __init__(self) -> None:
        self.headers: httpx.Headers | None = None
        self._agents = AgentTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._agents.handle_async_request(request)
        self.headers = response.headers
        return response

    async def aclose(self) -> None:
        await self._agents.aclose()
