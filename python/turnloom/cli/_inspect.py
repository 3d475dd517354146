"""The command `inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from turnloom import ConfigError, MalformedBody
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS


def inspect(
    path: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="An answer of /run, or a .jsonl file of them."),
    ],
    rollout: Annotated[int, typer.Option(min=0, help="Which rollout of a .jsonl file, from 0.")] = 0,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Decodes the ids: a tokenizer.json, a folder with one, or a name on the Hugging Face hub."),
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page for a browser to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inspection as JSON.")] = False,
    fork_threshold_tokens: Annotated[int, typer.Option(help="As the training has it.")] = DEFAULT_FORK_THRESHOLD_TOKENS,
    branches: Annotated[Literal["linear", "best"], typer.Option(help="As the training has it.")] = "linear",
) -> None:
    """One rollout as a person reads it: messages beside tokens, and why prompts leave what was held.

    Example: turnloom inspect body.json --tokenizer ./my-model --html rollout.html
    """
    from turnloom.inspector import inspect_run, load_tokenizer
    from turnloom.inspector._page import page
    from turnloom.inspector._terminal import show

    try:
        inspection = inspect_run(
            _body(path, rollout),
            name=path.name if path.suffix != ".jsonl" else f"{path.name}, rollout {rollout}",
            tokenizer=load_tokenizer(tokenizer) if tokenizer is not None else None,
            fork_threshold_tokens=fork_threshold_tokens,
            branches=branches,
        )
    except (ConfigError, MalformedBody, ModuleNotFoundError) as error:
        typer.echo(f"turnloom inspect: {path}: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(inspection.to_json()))
    if html is not None:
        html.write_text(page(inspection), "utf-8")
        typer.echo(f"{html}: {html.stat().st_size:,} bytes", err=True)
    if not as_json and html is None:
        show(inspection, Console(highlight=False))


def _body(path: Path, number: int) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".jsonl":
        return content
    lines = [line for line in content.splitlines() if line.strip()]
    if number >= len(lines):
        raise ConfigError(f"it has {len(lines)} rollouts, and none of number {number} (they count from 0)")
    return lines[number]
