"""What the command line offers. Apart from `main`, so that a missing typer or rich can be told in one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Final

import typer

import turnloom
from turnloom import ConfigError
from turnloom.cli import _bench, _collect, _doctor, _inspect, _replay
from turnloom.cli._endings import endings

_DEMO_PACKAGES: Final = ("rich", "matplotlib", "torch", "transformers", "datasets", "accelerate", "trl")

app = typer.Typer(name="turnloom", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"turnloom {turnloom.__version__}")
        raise typer.Exit


@app.callback()
def _turnloom(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """NeMo Gym rollouts into TRL training rows."""


# In the order of the help.
app.command()(_doctor.doctor)
app.command("collect")(_collect.collect_rollouts)
app.command("replay")(_replay.replay_records)
app.command()(_inspect.inspect)
app.command()(_bench.bench)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Of the model, the data and the sampling.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 100,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the plot and the figures.")] = Path("demo-out"),
    weight_sync: Annotated[bool, typer.Option("--weight-sync/--no-weight-sync", hidden=True)] = True,
) -> None:
    """Train a tiny model for real, on this machine's CPU: an agent, a policy, TRL's trainer, about a minute.

    Ends with 0 when the policy has learned, 1 when it has not.

    Example: turnloom demo --seed 1 --out demo-out/
    """
    with endings("turnloom demo"):
        missing = [name for name in _DEMO_PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"{', '.join(missing)} missing; the demo needs the extra: pip install 'turnloom[demo]'")
        from turnloom.demo.run import clear, run_demo

        clear(out)
    raise typer.Exit(run_demo(seed=seed, steps=steps, out=out, weight_sync=weight_sync))
