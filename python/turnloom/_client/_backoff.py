"""How long to wait before a server that took no connection is tried again."""

from __future__ import annotations

import random
from typing import Final

MAX_TRIES: Final = 4
"""As many tries have to fail, its own or others', before a rollout is `unreachable`."""
FIRST_PAUSE_S: Final = 0.5
"""After the first failed try; it doubles with each, up to `MAX_PAUSE_S`, and is spread by half of itself either way."""
MAX_PAUSE_S: Final = 4.0

_MAX_DOUBLINGS: Final = 30


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row, spread so that not all come back at once."""
    seconds: float = min(FIRST_PAUSE_S * 2 ** min(failures - 1, _MAX_DOUBLINGS), MAX_PAUSE_S)
    return seconds * random.uniform(0.5, 1.5)


class BackOff:
    """When something that failed may be tried again.

    Attributes:
        failures: how often it has failed in a row.
        until: the loop's time before which it is left alone.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0

    def trying(self, now: float) -> None:
        """It is tried now; should nobody hear how that ended, the next try still waits for its pause."""
        self.until = now + pause(max(self.failures, 1))

    def failed(self, now: float) -> None:
        self.failures += 1
        self.until = now + pause(self.failures)

    def clear(self) -> None:
        self.failures = 0
