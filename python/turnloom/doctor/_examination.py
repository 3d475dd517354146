"""The examination: the head server, every agent, one row, and what is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from turnloom._client import DEFAULT_RUN_TIMEOUT_S, GymClient
from turnloom._client._urls import ServerUrl, server_url, server_urls
from turnloom._exceptions import AgentError, ConfigError
from turnloom._gym import agent_of, gym_row
from turnloom._rollout import Rollout
from turnloom.doctor._findings import Finding, findings_of

AgentServers = Mapping[str, str | Sequence[str]]

CONNECT_TIMEOUT_S: Final = 5.0
"""For asking whether anybody answers."""


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings, in the order in which they matter."""

    findings: tuple[Finding, ...]
    rollout: Rollout | None
    """What came of the row, where one was sent."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is bad."""
        return all(finding.verdict != "bad" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For machines: `{"healthy": bool, "findings": [{"name", "verdict", "detail", "advice"}]}`."""
        return {"healthy": self.healthy, "findings": [asdict(finding) for finding in self.findings]}


async def examine(
    agent_servers: AgentServers | None = None,
    *,
    head: str | None = None,
    row: Mapping[str, Any] | None = None,
    run_timeout: float | None = DEFAULT_RUN_TIMEOUT_S,
    max_tokens: int = 1024,
) -> Examination:
    """Look at agent servers, and send one real row.

    Args:
        agent_servers: as `GymClient` takes them.
        head: the URL of NeMo Gym's head server, which knows the agents; in place of `agent_servers`.
        row: one row of the dataset. Without it only what can be seen without a rollout is looked at.
        run_timeout: as `GymClient` takes it.
        max_tokens: bounds every model call of the row.

    Raises:
        ConfigError: neither or both of `agent_servers` and `head`, or a URL that is none.
    """
    if (agent_servers is None) == (head is None):
        raise ConfigError("either agent_servers or head is needed: the agents, or the head server that knows them")
    findings: list[Finding] = []
    if head is not None:
        server_url("the head server", head)  # raises for what is none
        agent_servers = _discovered(head, findings)
    rollout = None
    if agent_servers:
        servers = server_urls(agent_servers)
        findings += [await _reached(name, server) for name, each in servers.items() for server in each]
        rollout = await _rolled_out(agent_servers, row, run_timeout, max_tokens, findings)
    findings += _versions()
    return Examination(tuple(findings), rollout)


def _discovered(head: str, findings: list[Finding]) -> AgentServers:
    try:
        agent_servers: AgentServers = GymClient.discover(head)
    except AgentError as error:
        findings.append(
            Finding("head server", "bad", str(error), "Is NeMo Gym up, and this its head server (port 11000)?")
        )
        return {}
    except ConfigError as error:
        findings.append(Finding("head server", "bad", str(error), "Name the head server of NeMo Gym, or the agents."))
        return {}
    findings.append(Finding("head server", "good", f"knows {', '.join(agent_servers)}"))
    return agent_servers


async def _reached(name: str, server: ServerUrl) -> Finding:
    from turnloom._client._probe import probe

    probed = await probe(server, connect_timeout=CONNECT_TIMEOUT_S)
    line, url = f"agent {name}", server.shown
    if probed.status is None:
        return Finding(line, "bad", f"{url} does not answer: {probed.failure}", "Is it up, and reachable from here?")
    if probed.status == 405:
        return Finding(line, "good", f"{url} is up")
    if probed.status == 404:
        return Finding(
            line, "bad", f"{url} answers, and has no /run", "This is another server: name the agent's own URL."
        )
    seen = f"{url} answers GET /run with HTTP {probed.status}; an agent says 405"
    return Finding(line, "doubtful", seen, "Is there a proxy before it, or does it want a password in its URL?")


async def _rolled_out(
    agent_servers: AgentServers,
    row: Mapping[str, Any] | None,
    run_timeout: float | None,
    max_tokens: int,
    findings: list[Finding],
) -> Rollout | None:
    if row is None:
        findings.append(
            Finding("row", "not looked at", "no row was given", "Give one row of your dataset, to see the rest.")
        )
        return None
    from turnloom._client._probe import HeadersTransport

    transport = HeadersTransport()
    try:
        agent = agent_of(gym_row(row), agent_servers)
        async with GymClient({agent: agent_servers[agent]}, run_timeout=run_timeout, transport=transport) as gym:
            rollout = await gym.run(row, max_tokens=max_tokens, temperature=1.0, top_p=1.0)
    except ConfigError as error:
        findings.append(Finding("row", "bad", str(error), "Mend the row, or name the agent that it is for."))
        return None
    findings.append(Finding("row", "good", f"sent to agent {agent}"))
    findings += findings_of(rollout, transport.headers or {}, run_timeout=run_timeout)
    return rollout


def _versions() -> Iterator[Finding]:
    try:
        from turnloom.doctor._versions import versions
    except ImportError as error:
        return iter([Finding("versions", "not looked at", str(error), "pip install 'turnloom[cli]'")])
    return versions()
