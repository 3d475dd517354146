"""The command `turnloom`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Needs the extra `cli`."""
    try:
        from turnloom.cli._app import app
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        sys.exit(f"turnloom: {package} is missing; the command line needs the extra: pip install 'turnloom[cli]'")
    app()
