"""The settings of a client, checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from turnloom._exceptions import ConfigError

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What holds for every rollout of a client."""

    run_timeout: float | None
    deadline: float | None
    parser: dict[str, Any]


def seconds(name: str, value: float | None) -> float | None:
    """A bound in seconds; None where there is none.

    Raises:
        ConfigError: it is no number above 0.
    """
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    if not number > 0:
        raise ConfigError(f"{name}={value!r}: a number of seconds above 0 is needed, or None for no bound")
    return None if math.isinf(number) else number


def concurrency(value: int | None) -> int | None:
    """How many requests may be in flight; None where that has no bound.

    Raises:
        ConfigError: it is no integer of at least 1.
    """
    if value is None:
        return None
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"max_concurrency={value!r}: an integer of at least 1 is needed, or None for no bound")
    return int(value)


def transport_of_httpx(transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncBaseTransport | None:
    """The transport itself.

    Raises:
        ConfigError: it is none of httpx's asynchronous ones.
    """
    if transport is not None:
        import httpx

        if not isinstance(transport, httpx.AsyncBaseTransport):
            raise ConfigError(f"transport={transport!r}: an httpx.AsyncBaseTransport is needed, or None for our own")
    return transport
