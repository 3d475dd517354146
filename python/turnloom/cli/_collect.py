"""The command `collect`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from turnloom import CollectionSummary, ConfigError, GymClient, Rollout, collect
from turnloom._client import DEFAULT_RUN_TIMEOUT_S
from turnloom._collect import DEFAULT_CONCURRENCY, PARQUET, SUMMARY
from turnloom._gym import read_rows
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS
from turnloom.cli._consoles import progress_console, table_console
from turnloom.cli._endings import WRONG, endings
from turnloom.inspector._words import visible


def collect_rollouts(
    rows: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="NeMo Gym's rows: a JSONL file.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for records and summary; goes on if it has some.")],
    agents: Annotated[list[str] | None, typer.Option(help="NAME=URL of an agent's server; once for each.")] = None,
    head: Annotated[str | None, typer.Option(help="NeMo Gym's head server, which knows the agents.")] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Rollouts of each row.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Rollouts in flight for each agent.")] = DEFAULT_CONCURRENCY,
    max_tokens: Annotated[int, typer.Option(min=1, help="Bounds the tokens of each model call.")] = 4096,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Sampling top-p.")] = 1.0,
    run_timeout: Annotated[
        float, typer.Option(help="Seconds without data that end a rollout; inf for no bound.")
    ] = DEFAULT_RUN_TIMEOUT_S,
    deadline: Annotated[float | None, typer.Option(help="Seconds that end a rollout in any case.")] = None,
    fork_threshold_tokens: Annotated[
        int, typer.Option(help="A drift of as many tokens, or more, forks.")
    ] = DEFAULT_FORK_THRESHOLD_TOKENS,
    branches: Annotated[
        Literal["linear", "best"], typer.Option(help="Rows that a prompt may continue: linear, the last; best, any.")
    ] = "linear",
    pass_reward: Annotated[float, typer.Option(help="For pass@k, a rollout passes with this reward or more.")] = 1.0,
    parquet: Annotated[bool, typer.Option("--parquet", help=f"Write the training rows to OUT/{PARQUET}.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Roll out a dataset: records, a summary with reward and pass@k, and training rows.

    The same command goes on where it was interrupted: what is done is not done again, what failed is. Ends with 0 when
    every rollout has a sound answer, 1 when some failed, 2 for a wrong argument, 130 after Ctrl-C.

    Example: turnloom collect --agents math=http://10.0.0.5:8001 --rows rows.jsonl --out runs/ -n 8
    """
    bars = _Bars(progress_console())
    with endings("turnloom collect"):
        servers, read = _servers(agents or [], head), read_rows(rows)
        with bars, _told_where_it_is(out):
            summary = asyncio.run(
                collect(
                    servers,
                    read,
                    out,
                    samples_per_row=samples,
                    concurrency=concurrency,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    top_p=top_p,
                    run_timeout=run_timeout,
                    deadline=deadline,
                    fork_threshold_tokens=fork_threshold_tokens,
                    branches=branches,
                    pass_reward=pass_reward,
                    parquet=parquet,
                    on_begin=bars.begin,
                    on_rollout=bars.rollout,
                )
            )
        if as_json:
            typer.echo(json.dumps(summary.to_json()))
        else:
            table_console().print(_table(summary))
        for text in _remarks(summary, out):
            typer.echo(text, err=True)
    raise typer.Exit(0 if summary.is_complete else WRONG)


@contextmanager
def _told_where_it_is(out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: what is done is in {out}, and the same command goes on from there", err=True)
        raise


def _servers(named: list[str], head: str | None) -> Mapping[str, str | Sequence[str]]:
    if bool(named) == (head is not None):
        raise ConfigError("name the agents, --agents NAME=URL for each, or the head server that knows them, --head URL")
    if head is not None:
        return GymClient.discover(head)
    servers: dict[str, list[str]] = {}
    for each in named:
        name, separator, url = each.partition("=")
        if not separator or not name:
            raise ConfigError(f"--agents {each}: NAME=URL is needed, such as math=http://10.0.0.5:8001")
        servers.setdefault(name, []).append(url)
    return servers


class _Bars:
    """A bar for each agent, where there is a terminal to show them in."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._outcomes: dict[str, Counter[str]] = {}

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, there: CollectionSummary) -> None:
        for agent, figures in there.agents.items():
            self._tasks[agent] = self._progress.add_task(
                visible(agent), total=figures.wanted, completed=figures.done, told="", begun_with=figures.done
            )
            self._outcomes[agent] = Counter()

    def rollout(self, rollout: Rollout) -> None:
        agent = rollout.agent or ""
        outcomes = self._outcomes[agent]
        outcomes[rollout.outcome] += 1
        told = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
        self._progress.update(self._tasks[agent], advance=1, told=told)


class _RateColumn(ProgressColumn):
    """Rollouts per second, of this process."""

    def render(self, task: Task) -> Text:
        ended = task.completed - task.fields["begun_with"]
        return Text(f"{ended / task.elapsed:.1f}/s" if ended and task.elapsed else "")


def _table(summary: CollectionSummary) -> Table:
    rates = [f"pass@{rate.k}" for rate in summary.total.pass_at]
    table = Table(
        "agent", "rollouts", "done", "failed", "mean reward", *rates, "trained tokens", box=None, pad_edge=False
    )
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.overflow = "right", "fold"
    for name, figures in {**summary.agents, "all": summary.total}.items():
        by_k = {f"pass@{rate.k}": f"{rate.value:.3f}" for rate in figures.pass_at}
        table.add_row(
            Text(visible(name)),
            *(f"{number:,}" for number in (figures.wanted, figures.done, figures.failed)),
            "–" if figures.mean_reward is None else f"{figures.mean_reward:.3f}",
            *(by_k.get(rate, "–") for rate in rates),
            f"{figures.trained_tokens:,}",
        )
    return table


def _remarks(summary: CollectionSummary, out: Path) -> Iterator[str]:
    total = summary.total
    yield "outcomes: " + ", ".join(f"{outcome} {count:,}" for outcome, count in total.outcomes.items())
    if not summary.is_complete:
        yield f"{total.wanted - total.done:,} of {total.wanted:,} rollouts failed: the same command tries them again"
    yield f"records and {SUMMARY} are in {out}"
