"""The command `turnloom`."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line. Needs the extra `cli`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to say nothing
    try:
        from turnloom.cli._app import app
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        print(
            f"turnloom: {package} is missing; the command line needs the extra: pip install 'turnloom[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    app()
