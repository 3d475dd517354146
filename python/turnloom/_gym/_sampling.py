"""The sampling that `/run` carries."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from turnloom._exceptions import ConfigError


def checked_sampling(*, max_tokens: Any, temperature: Any, top_p: Any) -> tuple[int, float, float]:
    """The trainer's sampling as plain numbers, whichever kind of number they came as.

    Raises:
        ConfigError: it names the one that is out of its range.
    """
    limit = _integer(max_tokens)
    if limit is None or limit < 1:
        raise ConfigError(f"max_tokens={max_tokens!r}: an integer of at least 1 is needed")
    heat, share = _finite(temperature), _finite(top_p)
    if heat is None or heat < 0:
        raise ConfigError(f"temperature={temperature!r}: a finite number of at least 0 is needed")
    if share is None or not 0 < share <= 1:
        raise ConfigError(f"top_p={top_p!r}: a number above 0 and at most 1 is needed")
    return limit, heat, share


def own_token_limit(params: Mapping[str, Any]) -> int | None:
    """The row's own `max_output_tokens`; None where it has none.

    A float that is whole counts: tools for tables make one of every integer in a column with gaps.

    Raises:
        ConfigError: it is not a positive integer.
    """
    given = params.get("max_output_tokens")
    if given is None:
        return None
    number = _integer(given)
    if number is None and (whole := _finite(given)) is not None and whole.is_integer():
        number = int(whole)
    if number is None or number < 1:
        raise ConfigError(
            f"the row's max_output_tokens is {reprlib.repr(given)}, not a positive integer: leave it out, or null, for "
            "the trainer's own"
        )
    return number


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _finite(value: Any) -> float | None:
    """A number as a float; None for what is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
