"""The command `replay`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from turnloom import ConfigError, Records, __version__, replay
from turnloom._records import Totals, totals_of
from turnloom.cli._consoles import progress_console, table_console
from turnloom.cli._endings import WRONG, endings

_LINES: Final = {
    "rollouts": "rollouts",
    "ok": "ok",
    "rows": "rows",
    "trained_tokens": "trained tokens",
    "discarded_tokens": "discarded tokens",
    "realigns": "realigns",
    "forks": "forks",
    "longest_row": "longest row",
    "packed_tokens": "packed, tokens",
    "padded_tokens": "padded to the longest, tokens",
}


def replay_records(
    path: Annotated[Path, typer.Argument(help="A folder of records (record_dir), or one of its files.")],
    fork_threshold_tokens: Annotated[
        int | None, typer.Option(help="A drift of as many tokens, or more, forks; by default as recorded.")
    ] = None,
    branches: Annotated[
        Literal["linear", "best"] | None,
        typer.Option(help="Rows that a prompt may continue: linear, the last; best, any. By default as recorded."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """What recorded rollouts come to as training rows: as they were, and with other settings. No server is asked.

    Ends with 1 where the settings of then do not give the rows of then, or a record cannot be read.

    Example: turnloom replay runs/ --fork-threshold-tokens 0 --branches best
    """
    console = progress_console()
    with endings("turnloom replay"):
        records = Records(path)
        if len(records) == 0:
            raise ConfigError(f"there are no records in {path}")
        found = {"as recorded": _totals(console, records)}
        if fork_threshold_tokens is not None or branches is not None:
            other = _totals(console, records, fork_threshold_tokens=fork_threshold_tokens, branches=branches)
            found[_named(fork_threshold_tokens, branches)] = other
        wrong = None if records.problems else _other_rows(records, found["as recorded"])
        if as_json:
            typer.echo(json.dumps({name: _figures(totals) for name, totals in found.items()}))
        else:
            table_console().print(_table(found))
    for problem in records.problems:
        typer.echo(f"skipped: {problem}", err=True)
    if wrong is not None:
        typer.echo(wrong, err=True)
    raise typer.Exit(WRONG if wrong or records.problems else 0)


def _totals(console: Console, records: Records, **settings: Any) -> Totals:
    rollouts = replay(records, **settings)
    shown = console.is_terminal
    return totals_of(track(rollouts, "replaying", len(records), console=console, transient=True, disable=not shown))


def _named(fork_threshold_tokens: int | None, branches: str | None) -> str:
    given = {"fork_threshold_tokens": fork_threshold_tokens, "branches": branches}
    return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def _figures(totals: Totals) -> dict[str, int]:
    return {**asdict(totals), "padded_tokens": totals.padded_tokens}


def _table(found: dict[str, Totals]) -> Table:
    table = Table("", *found, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    figures = [_figures(totals) for totals in found.values()]
    for name, label in _LINES.items():
        table.add_row(label, *(f"{each[name]:,}" for each in figures))
    return table


def _other_rows(records: Records, totals: Totals) -> str | None:
    """What to say where the settings of then do not give the rows of then."""
    then = [sum(record.facts[name] for record in records) for name in ("rows", "tokens", "trained_tokens")]
    now = [totals.rows, totals.packed_tokens, totals.trained_tokens]
    if then == now:
        return None
    versions = ", ".join(sorted({record.facts["versions"]["turnloom"] for record in records}))
    return (
        f"these are not the rows of then: {then[0]:,} rows of {then[1]:,} tokens, {then[2]:,} of them trained, were "
        f"recorded by turnloom {versions}; this is {__version__}"
    )
