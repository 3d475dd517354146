"""The URLs of agent servers, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from turnloom._exceptions import ConfigError

_ODD_CHARACTERS: Final = re.compile(r"[\s\\\x00-\x1f\x7f]")
"""Parsers of URLs drop them, or disagree about what they mean."""
_HOST_AND_PORT: Final = re.compile(r"(\[[^][]+]|[^][:]+)(:[0-9]*)?")
_HOST_NAME: Final = re.compile(r"(?=.{1,254}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)
_FOUR_NUMBERS: Final = re.compile(r"\d+(\.\d+){3}", re.ASCII)


class ServerUrl(NamedTuple):
    """Where an agent server is."""

    shown: str
    """As it was given, without user and password, nor a slash at its end."""
    run: str
    """What is POSTed to."""
    auth: tuple[str, str] | None
    """The user and password that stood in it."""


def server_urls(agent_servers: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[ServerUrl, ...]]:
    """Where each agent's servers are.

    Raises:
        ConfigError: there is no agent, a name or a URL is none, or an agent has no server or the same twice.
    """
    if not isinstance(agent_servers, Mapping) or not agent_servers:
        raise ConfigError("agent_servers: name at least one, such as {'math': 'http://127.0.0.1:8001'}")
    for name in agent_servers:
        # It stands in logs, in the names of metrics and in labels of Prometheus, which are text in lines.
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(f"agent_servers: {name!r} is no name of an agent: printable text is needed")
    return {name: _servers_of(name, urls) for name, urls in agent_servers.items()}


def _servers_of(name: str, urls: str | Sequence[str]) -> tuple[ServerUrl, ...]:
    if isinstance(urls, bytes) or not isinstance(urls, Sequence):
        raise ConfigError(f"agent {name!r}: {urls!r} is neither a URL nor a list of URLs")
    servers = tuple(server_url(f"agent {name!r}", url) for url in ([urls] if isinstance(urls, str) else urls))
    if not servers:
        raise ConfigError(f"agent {name!r}: the list of its servers is empty; name at least one URL")
    seen: set[str] = set()
    for server in servers:
        if server.run in seen:
            raise ConfigError(f"agent {name!r}: {server.shown!r} is named twice; one server can be one replica only")
        seen.add(server.run)
    return servers


def server_url(whose: str, url: str) -> ServerUrl:
    """Where one server is.

    Raises:
        ConfigError: this is no URL of a server.
    """
    try:
        parts = urlsplit(_plain(url))
        host = parts.netloc.rpartition("@")[2]
        _check_host(parts.hostname or "")
        sound = parts.scheme in ("http", "https") and parts.port != 0 and bool(_HOST_AND_PORT.fullmatch(host))
    except (ValueError, AttributeError, TypeError):
        sound = False
    if not sound:
        raise ConfigError(f"{whose}: {url!r} is no URL of a server, such as 'http://127.0.0.1:8001'")
    auth = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    path = parts.path.rstrip("/")
    shown, run = (urlunsplit((parts.scheme, host, end, parts.query, "")) for end in (path, path + "/run"))
    return ServerUrl(shown, run, auth)


def _plain(url: str) -> str:
    url.encode()  # raises for half a surrogate pair
    if odd := _ODD_CHARACTERS.search(url):
        raise ValueError(f"{odd[0]!r} in a URL")
    return url


def _check_host(host: str) -> None:
    """Raises ValueError for what no address can be found for, whatever the network."""
    if ":" in host:
        IPv6Address(host)
    elif _FOUR_NUMBERS.fullmatch(host):
        IPv4Address(host)
    elif not _HOST_NAME.fullmatch(_ascii(host)):
        raise ValueError("no name of a host")


def _ascii(host: str) -> str:
    if host.isascii() and "xn--" not in host:
        return host
    import idna  # what httpx itself encodes such names with

    return idna.encode(host).decode("ascii")
