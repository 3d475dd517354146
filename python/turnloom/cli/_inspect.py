"""The command `inspect`: one rollout, or why the prompts of many drift."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import track

from turnloom import ConfigError, MalformedBody, MalformedRecord
from turnloom.cli._endings import WRONG, endings
from turnloom.cli._rollouts import Kept, kept_rollouts
from turnloom.inspector import DRIFT_CAUSES, CauseTotal, Inspection, drift_causes, inspect_run, load_tokenizer
from turnloom.inspector._page import page
from turnloom.inspector._terminal import show
from turnloom.inspector._words import counted, visible


def inspect(
    path: Annotated[
        Path,
        typer.Argument(help="An answer of /run, a .jsonl file of them, or records (record_dir)."),
    ],
    rollout: Annotated[str | None, typer.Option(help="Which of many: its number, from 0, or its id.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Decodes the ids: a tokenizer.json, a folder with one, or a name on the Hugging Face hub."),
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page for a browser to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
    fork_threshold_tokens: Annotated[
        int | None, typer.Option(help="A drift of as many tokens, or more, forks; as recorded, or 1024.")
    ] = None,
    branches: Annotated[
        Literal["linear", "best"] | None,
        typer.Option(help="Rows that a prompt may continue: linear, the last; best, any. As recorded, or linear."),
    ] = None,
) -> None:
    """One rollout as a person reads it: messages beside tokens, and why prompts leave what was held.

    Where there are many and none is chosen: the causes of their drift, those of most transitions first. Ends with 1
    where none can be inspected, 2 for a wrong argument.

    Example: turnloom inspect body.json --tokenizer ./my-model --html rollout.html
    """
    given = {"fork_threshold_tokens": fork_threshold_tokens, "branches": branches}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with endings(f"turnloom inspect: {path}"):
        settings["tokenizer"] = load_tokenizer(tokenizer) if tokenizer is not None else None
        kept = list(kept_rollouts(path))
        if not kept:
            raise ConfigError("there is no rollout in it")
        if html is not None and html.exists() and html.samefile(path):
            raise ConfigError(f"--html {html} would take the place of what is inspected: name another file")
        if len(kept) != 1 and rollout is None:
            if html is not None:
                raise ConfigError(f"it has {len(kept):,} rollouts, and a page shows one: choose it with --rollout")
            _show_causes(kept, settings, as_json=as_json)
        else:
            _show_one(_inspected(_chosen(kept, rollout or "0"), settings), html=html, as_json=as_json)


def _chosen(kept: list[Kept], rollout: str) -> Kept:
    if rollout.isdecimal() and int(rollout) < len(kept):
        return kept[int(rollout)]
    for one in kept:
        if one.name == rollout:
            return one
    raise ConfigError(f"it has {len(kept):,} rollouts, and none of the number or id {rollout} (numbers count from 0)")


def _inspected(kept: Kept, settings: dict[str, Any]) -> Inspection:
    return inspect_run(kept.body(), name=kept.name, **{**kept.settings, **settings})


def _show_one(inspection: Inspection, *, html: Path | None, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(inspection.to_json()))
    if html is not None:
        html.write_text(page(inspection), "utf-8")
        typer.echo(f"{html}: {html.stat().st_size:,} bytes", err=True)
    if not as_json and html is None:
        show(inspection, Console(highlight=False))


@dataclass
class _Seen:
    """What goes by while many rollouts are inspected, one at a time in memory."""

    kept: list[Kept]
    settings: dict[str, Any]
    outcomes: Counter[str] = field(default_factory=Counter)
    drifting: list[str] = field(default_factory=list)
    """The rollouts that have drift, by number."""
    failures: list[str] = field(default_factory=list)

    def inspections(self, console: Console) -> Iterator[Inspection]:
        """The rollouts that can be inspected."""
        shown = console.is_terminal
        for number, one in enumerate(
            track(self.kept, "inspecting", console=console, transient=True, disable=not shown)
        ):
            try:
                inspection = _inspected(one, self.settings)
            except (ConfigError, MalformedBody, MalformedRecord) as error:
                self.failures.append(f"rollout {number}: {error}")
                continue
            self.outcomes[inspection.outcome] += 1
            if inspection.drift.drift_tokens:
                self.drifting.append(str(number))
            yield inspection


def _show_causes(kept: list[Kept], settings: dict[str, Any], *, as_json: bool) -> None:
    console = Console(highlight=False, stderr=as_json)
    seen = _Seen(kept, settings)
    totals = drift_causes(seen.inspections(console))
    if as_json:
        causes = [asdict(total) | DRIFT_CAUSES[total.cause]._asdict() for total in totals]
        told = {"rollouts": len(kept), "outcomes": seen.outcomes, "drifting": len(seen.drifting), "causes": causes}
        typer.echo(json.dumps(told | {"failures": seen.failures}))
    else:
        _print_causes(console, seen, totals)
    if not seen.outcomes:
        raise typer.Exit(WRONG)


def _print_causes(console: Console, seen: _Seen, totals: list[CauseTotal]) -> None:
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in seen.outcomes.most_common())
    console.print(f"{counted(len(seen.kept), 'rollout')}: {outcomes or 'none with an answer'}")
    if seen.drifting:
        some = ", ".join(seen.drifting[:_SHOWN]) + (", …" if len(seen.drifting) > _SHOWN else "")
        console.print(f"{len(seen.drifting):,} with drift, to be seen with --rollout: {some}")
    if seen.drifting and seen.settings["tokenizer"] is None:
        console.print("Why they drift can be told with --tokenizer.")
    for total in totals:
        cause = DRIFT_CAUSES[total.cause]
        transitions = f"{counted(total.realigns, 'realign')}, {counted(total.forks, 'fork')}"
        of_what = f"in {counted(total.rollouts, 'rollout')}, {counted(total.drift_tokens, 'token')} not repeated"
        console.print(f"\n[bold]{cause.name}[/bold]: {transitions} {of_what}")
        console.print(Padding(f"{cause.meaning}\n{cause.advice}", (0, 0, 0, 2)))
    for failure in seen.failures[:_SHOWN]:
        console.print(f"not inspected: {visible(failure)}", markup=False, style="red")
    if len(seen.failures) > _SHOWN:
        console.print(f"… and {len(seen.failures) - _SHOWN:,} more", style="red")


_SHOWN: Final = 20
