"""Where the commands print."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

_FILE_COLUMNS: Final = 200
"""A table in a file or a pipe is as wide as it needs to be, up to this."""


def table_console() -> Console:
    """For the result of a command, on standard output."""
    return Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS, highlight=False)


def progress_console() -> Console:
    """For what goes on meanwhile, on standard error; a bar is shown where it is a terminal."""
    return Console(stderr=True)
