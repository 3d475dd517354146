"""The demo from its first line to its exit status."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import rich.console

from turnloom.demo.guard import Guard
from turnloom.demo.progress import Bar
from turnloom.demo.servers import Servers

# For this process and the two that it starts, before any of them imports torch or TRL.
_ENVIRONMENT: Final = {
    "CUDA_VISIBLE_DEVICES": "",  # the demo is of the CPU, also where there is a GPU
    "OMP_NUM_THREADS": "1",  # three processes share the cores
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # the model is made here
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

_METRICS: Final = "metrics.jsonl"
_SUMMARY: Final = "summary.json"
_PLOT: Final = "reward.png"


def clear(out: Path) -> None:
    """Make the folder if it isn't there, and remove what another run has left in it.

    Raises:
        OSError: nothing can be written there.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (_METRICS, _SUMMARY, _PLOT):
        (out / name).unlink(missing_ok=True)
    (out / _METRICS).touch()


def run_demo(*, seed: int, steps: int, out: Path, weight_sync: bool = True) -> int:
    """Run it in a folder that is `clear`; the exit status.

    That is 0 if the policy learned, 1 if it did not, 128 + n if signal n ended it.
    """
    os.environ.update(_ENVIRONMENT)
    started = time.monotonic()
    console = rich.console.Console()
    with ExitStack() as stack:
        bar = stack.enter_context(Bar(console, steps=steps))
        guard = stack.enter_context(Guard(bar, console, out=out))
        try:
            servers = stack.enter_context(Servers(seed=seed))
            bar.stage("importing torch, transformers and TRL")
            from turnloom.demo.training import train

            training = train(servers, bar, out / _METRICS, seed=seed, steps=steps, weight_sync=weight_sync)
        except BaseException:
            if guard.signal is None:
                raise
            # Whatever it was, it came of the signal: a process can have been killed under the trainer's hands.
            console.print(f"stopped by {signal.Signals(guard.signal).name}")
            return 128 + guard.signal
    from turnloom.demo import report

    summary = report.summarize(training.metrics, seconds=time.monotonic() - started)
    report.write_summary(out / _SUMMARY, summary)
    report.plot(training.metrics, out / _PLOT)
    report.print_transcript(console, "before training", training.before, training.question)
    report.print_transcript(console, "after training", training.after, training.question)
    report.print_result(console, summary, out)
    return 0 if summary.learned else 1
