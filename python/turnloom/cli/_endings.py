"""How a command ends where it cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from turnloom import ConfigError, TurnloomError
from turnloom.inspector._words import visible

WRONG: Final = 1
"""What was looked at is not as it should be, or the disk or the network is not."""
WRONG_COMMAND: Final = 2
"""An argument cannot be followed, or the extra that it needs is not installed."""
INTERRUPTED: Final = 130


@contextmanager
def endings(who: str) -> Iterator[None]:
    """End the command with one line on standard error, and its exit code, for all that is no fault of turnloom's.

    Args:
        who: what the line begins with.
    """
    try:
        yield
    except (ConfigError, ImportError) as error:
        raise _ending(WRONG_COMMAND, who, error) from None
    except BrokenPipeError:
        raise  # whoever read has seen enough: typer ends without a word
    except (TurnloomError, OSError) as error:
        raise _ending(WRONG, who, error) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _ending(code: int, who: str, error: BaseException) -> typer.Exit:
    typer.echo(visible(f"{who}: {error}"), err=True)
    return typer.Exit(code)
