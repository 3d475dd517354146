"""What becomes of members that fail, and of groups that grow old."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Final, Literal, get_args

from turnloom._exceptions import AgentHTTPError, ConfigError
from turnloom._rollout import Outcome, Rollout

OnFailure = Literal["drop", "retry"]

DEFAULT_MAX_ATTEMPTS: Final = 3

_RETRIED: Final[frozenset[Outcome]] = frozenset({"unreachable", "agent_failure", "malformed"})
"""Nothing of such a rollout goes on, and the next may be better; an `http_error` of 500 and above is like them."""

_PERHAPS_STILL_RUNNING: Final[frozenset[Outcome]] = frozenset({"timeout", "disconnected"})
"""The agent may be at work on such a rollout until its deadline is over."""


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """What becomes of members that fail, and of groups that grow old.

    Args:
        on_failure: "drop" leaves a failed rollout out of its group; "retry" runs a new one in its place.
        max_attempts: how many rollouts a member may have with "retry", the first included; None is 3.
        max_staleness: by how many versions a group's policy may be behind before the group is given up; None is any
            number.

    Raises:
        ConfigError: a setting out of its range, or `max_attempts` without "retry".
    """

    on_failure: OnFailure = "drop"
    max_attempts: int | None = None
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.on_failure not in get_args(OnFailure):
            raise ConfigError(
                f"on_failure={self.on_failure!r}: it is one of {', '.join(map(repr, get_args(OnFailure)))}"
            )
        _check_integer("max_attempts", self.max_attempts, least=1)
        _check_integer("max_staleness", self.max_staleness, least=0)
        if self.max_attempts is not None and self.on_failure != "retry":
            raise ConfigError(f"max_attempts={self.max_attempts!r} has no effect without on_failure='retry'")

    def wait_before_next(self, rollout: Rollout, *, attempts: int, deadline: float | None) -> float | None:
        """Seconds from the end of a rollout until a new one may take its place; None when there is none.

        Args:
            rollout: the member's latest.
            attempts: how many the member has had.
            deadline: seconds that the client gave it.
        """
        if self.on_failure == "drop" or attempts >= (self.max_attempts or DEFAULT_MAX_ATTEMPTS):
            return None
        if rollout.outcome in _PERHAPS_STILL_RUNNING:
            if deadline is None:
                return None
            return max(0.0, deadline - (rollout.timing.total_s - rollout.timing.queue_s))
        broken = isinstance(rollout.error, AgentHTTPError) and rollout.error.status >= 500
        return 0.0 if broken or rollout.outcome in _RETRIED else None


def _check_integer(name: str, value: int | None, *, least: int) -> None:
    if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name}={value!r}: an integer of at least {least} is needed, or None")
