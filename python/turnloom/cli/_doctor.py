"""`turnloom doctor`: the findings of an examination as a check list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnloom import ConfigError
from turnloom.cli._consoles import progress_console, table_console
from turnloom.cli._endings import WRONG, endings
from turnloom.doctor import Examination, Verdict, examine
from turnloom.inspector._words import visible

_MARKS: Final[dict[Verdict, tuple[str, str]]] = {
    "good": ("✓", "green"),
    "doubtful": ("!", "yellow"),
    "bad": ("✗", "red"),
    "not looked at": ("–", "dim"),
}


def doctor(
    url: Annotated[str | None, typer.Argument(help="An agent server, such as http://127.0.0.1:8001.")] = None,
    head: Annotated[str | None, typer.Option(help="NeMo Gym's head server, which knows the agents.")] = None,
    row: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A JSON or JSONL file; its first row is sent.")
    ] = None,
    run_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds without a byte that end the rollout.")] = 300.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Bounds the tokens of each model call.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at agent servers, send one real row, and say of each thing that is wrong what to do.

    Exit code 0: nothing is bad; 1: something is; 2: the command itself was wrong.

    Example: turnloom doctor --head http://127.0.0.1:11000 --row rows.jsonl
    """
    with endings("turnloom doctor"):
        if (url is None) == (head is None):
            raise ConfigError("name an agent's server, or the head server that knows the agents: --head URL")
        sent = None if row is None else _first_row(row)
        agent_servers = None if url is None else {_agent_name(sent): url}
        with _waiting():
            examination = asyncio.run(
                examine(agent_servers, head=head, row=sent, run_timeout=run_timeout, max_tokens=max_tokens)
            )
        if as_json:
            typer.echo(json.dumps(examination.as_json(), indent=2))
        else:
            _print(examination)
    raise typer.Exit(0 if examination.healthy else WRONG)


def _waiting() -> Progress:
    """How long it takes, where it is a terminal: the run that a row asks for may be a long one."""
    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("looking at the agents, for"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    progress.add_task("", total=None)
    return progress


def _first_row(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: the first row is not JSON: {error}") from error
    if isinstance(row, list):
        row = row[0] if row else None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: the first row is no JSON object: it begins {text[:80]!r}")
    return row


def _agent_name(row: dict[str, Any] | None) -> str:
    """The name that the row itself gives the agent: with one URL there is no other that it could be for."""
    reference = (row or {}).get("agent_ref")
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else "agent"


def _print(examination: Examination) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for finding in examination.findings:
        mark, style = _MARKS[finding.verdict]
        told = Text(visible(finding.detail))
        if finding.advice:
            told.append(f"\n→ {finding.advice}", style="bold" if finding.verdict == "bad" else "")
        table.add_row(Text(mark, style=style), Text(visible(finding.name), style=style), told)
    table_console().print(table)
