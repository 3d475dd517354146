"""The command `turnloom`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Needs the extra `cli`."""
    try:
        from turnloom.cli._app import app
    except ModuleNotFoundError as error:
        sys.exit(f"turnloom: {error.name} is missing; the command line needs the extra: pip install 'turnloom[cli]'")
    app()
