"""The command `bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Table

from turnloom import MalformedBody, UnscorableRollout
from turnloom.bench import Measurement, made_body, markdown, measure, missing_decoders, versions
from turnloom.bench._measurement import SECONDS_PER_BODY
from turnloom.bench._table import cells
from turnloom.cli._consoles import progress_console, table_console
from turnloom.cli._endings import INTERRUPTED, WRONG, endings

_BODIES: Final = ("small", "mid", "big", "single", "forked")
_FAST_BODIES: Final = ("small", "mid")
_FAST_SECONDS: Final = 1.0


def bench(
    bodies: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BODY]...", exists=True, dir_okay=False, help="Answers of /run, a JSON file each."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A second for each body, and fewer of the made ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON, in seconds.")] = False,
) -> None:
    """Time turnloom on this machine, beside json and faster decoders with TRL's reconciler and numpy behind them.

    On bodies that are made for it, of 1 to 200 turns, or on answers of your own agents. Every way is checked to give
    the same rows, bit for bit, before it is timed; one that doesn't is not timed, and it is said why. Ends with 0 when
    all was timed, 1 when a body or a way could not be, 2 for a wrong argument or without TRL, 130 after Ctrl-C.

    Example: turnloom bench answer.json
    """
    result = _Result()
    interrupted = False
    with endings("turnloom bench"):
        try:
            result.measure(_to_measure(bodies or [], fast=fast), seconds=_FAST_SECONDS if fast else SECONDS_PER_BODY)
        except KeyboardInterrupt:
            interrupted = True
        result.print(as_json=as_json)
    if interrupted:
        typer.echo("interrupted: what was measured before is above", err=True)
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(WRONG if result.problems else 0)


def _to_measure(files: Sequence[Path], *, fast: bool) -> dict[str, Callable[[], bytes]]:
    """What gives each body, by its name: none is read or made before its turn."""
    if files:
        return {str(path): path.read_bytes for path in files}
    return {name: partial(made_body, name) for name in (_FAST_BODIES if fast else _BODIES)}


@dataclass
class _Result:
    """What was measured, and what could not be."""

    measurements: list[Measurement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def measure(self, bodies: dict[str, Callable[[], bytes]], *, seconds: float) -> None:
        with _bar(progress_console()) as progress:
            task = progress.add_task("", total=len(bodies))
            for number, (name, read) in enumerate(bodies.items()):
                tell = partial(_tell, progress, task, name, number)
                tell(0.0)
                try:
                    measurement = measure(read(), name=name, seconds=seconds, on_progress=tell)
                except (MalformedBody, UnscorableRollout, OSError) as error:
                    self.problems.append(f"{name}: {error}")
                    continue
                self.measurements.append(measurement)
                self.problems += [f"{name}: {way} is not timed: {why}" for way, why in measurement.not_timed.items()]

    def print(self, *, as_json: bool) -> None:
        if as_json:
            told = [measurement.to_json() for measurement in self.measurements]
            typer.echo(json.dumps({"versions": versions(), "bodies": told, "problems": self.problems}))
        elif self.measurements:
            _print_table(self.measurements)
        for problem in self.problems:
            typer.echo(problem, err=True)
        if missing := missing_decoders():
            typer.echo(f"not installed: {', '.join(missing)}; they come with pip install 'turnloom[bench]'", err=True)


def _bar(console: Console) -> Progress:
    """A bar that is drawn between rounds alone: nothing else runs while a way is timed."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True)


def _tell(progress: Progress, task: TaskID, name: str, number: int, share: float) -> None:
    progress.update(task, description=name, completed=number + share, refresh=True)


def _print_table(measurements: list[Measurement]) -> None:
    """For a person who looks at it, or in Markdown to be put somewhere."""
    console = table_console()
    if console.is_terminal:
        console.print(_table(measurements))
    else:
        typer.echo(markdown(measurements))
    typer.echo("\n" + ", ".join(f"{name} {version}" for name, version in versions().items()))


def _table(measurements: list[Measurement]) -> Table:
    """A column for each body."""
    head, *lines = zip(*cells(measurements), strict=True)
    table = Table("", *map(escape, head[1:]), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    for line in lines:
        table.add_row(*line)
    return table
