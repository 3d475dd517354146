"""Where the agents of a running NeMo Gym are: its head server knows."""

from __future__ import annotations

import json
import logging
import reprlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx

from turnloom._client._urls import server_url
from turnloom._exceptions import AgentUnreachable, ConfigError

logger = logging.getLogger("turnloom")

DISCOVERY_TIMEOUT_S: Final = 10.0
"""For connecting to the head server, and for each silence of it."""
DISCOVERY_DEADLINE_S: Final = 60.0
"""For its whole answer."""
MAX_LIST_BYTES: Final = 16 * 2**20
"""How long its answer may be; NeMo Gym says some 400 bytes of each server."""
AGENTS: Final = "responses_api_agents"
"""The type of server that a rollout is sent to."""

_WHERE: Final = "its place is `head_server` in NeMo Gym's config, port 11000 unless that says otherwise"
_SHOWN_CHARS: Final = 200


def discover(head_url: str) -> dict[str, str | list[str]]:
    """As `GymClient.discover`."""
    head = server_url("the head server", head_url)
    asked = f"{head.shown}/server_instances"
    head_host = urlsplit(head.shown).hostname or ""
    found: dict[str, dict[str, None]] = {}
    for entry in _agents(_listed(asked, head.auth), asked):
        name, url = _agent(entry, asked, head_host=head_host)
        found.setdefault(name, {})[url] = None
    return {name: next(iter(urls)) if len(urls) == 1 else list(urls) for name, urls in found.items()}


def _listed(asked: str, auth: tuple[str, str] | None) -> list[Any]:
    try:
        status, body = _get(asked, auth)
    except httpx.HTTPError as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise AgentUnreachable(
            f"no head server of NeMo Gym answers GET {asked}: {why}. Is NeMo Gym running there? {_WHERE}", url=asked
        ) from error
    try:
        listed = json.loads(body) if status == 200 else None
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        shown = body.decode("utf-8", "replace")[:_SHOWN_CHARS]
        raise ConfigError(
            f"GET {asked} was answered with HTTP {status} {shown!r}, not with a list of servers: this is no head "
            f"server of NeMo Gym; {_WHERE}"
        )
    return listed


def _get(asked: str, auth: tuple[str, str] | None) -> tuple[int, bytes]:
    """The status and the body, of which no more is waited for than a list of servers needs."""
    until = time.monotonic() + DISCOVERY_DEADLINE_S
    body = bytearray()
    with httpx.stream("GET", asked, auth=auth, timeout=DISCOVERY_TIMEOUT_S, trust_env=False) as answer:
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > MAX_LIST_BYTES or time.monotonic() > until:
                break
    return answer.status_code, bytes(body)


def _agents(listed: list[Any], asked: str) -> list[Mapping[str, Any]]:
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    agents = [entry for entry in entries if entry.get("server_type") == AGENTS]
    if not agents:
        raise ConfigError(
            f"GET {asked} lists no agent ({AGENTS}), but {_counted(entry.get('server_type') for entry in entries)}: "
            "start NeMo Gym with the config of an agent"
        )
    return agents


def _counted(types: Iterable[Any]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, types)).items()) or "no server at all"


def _kind(of: Any) -> str:
    return of[:_SHOWN_CHARS] if isinstance(of, str) else _shown(of)


def _shown(value: Any) -> str:
    return repr(value[:_SHOWN_CHARS]) if isinstance(value, str) else reprlib.repr(value)


def _agent(entry: Mapping[str, Any], asked: str, *, head_host: str) -> tuple[str, str]:
    """Its name, as `agent_ref.name` says it, and where it is for who can reach the head server."""
    name, url = entry.get("process_name"), entry.get("url")
    if not isinstance(name, str) or not isinstance(url, str):
        raise ConfigError(
            f"GET {asked} lists an agent with process_name {_shown(name)} and url {_shown(url)}, where both are "
            f"strings: its config has host {_shown(entry.get('host'))} and port {_shown(entry.get('port'))}"
        )
    server_url(f"agent {name!r}, as GET {asked} lists it", url)
    parts = urlsplit(url)
    address, head_address = _address(parts.hostname or ""), _address(head_host)
    if address is not None and address.is_unspecified:
        there = f"[{head_host}]" if ":" in head_host else head_host
        port = f":{parts.port}" if parts.port else ""
        return name, urlunsplit(parts._replace(netloc=there + port))
    if address is not None and address.is_loopback and (head_address is None or not head_address.is_loopback):
        logger.warning(
            "agent %r listens at %s, which only its own machine can reach: unless this is the one, set "
            "use_absolute_ip: true (or default_host) in NeMo Gym's config",
            name,
            url,
        )
    return name, url


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Its address where it is written as one; None for another name."""
    try:
        return ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None
