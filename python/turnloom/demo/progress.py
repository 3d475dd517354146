"""One bar: the step, the reward, and what is happening."""

from __future__ import annotations

import time
from types import TracebackType

import rich.console
import rich.progress


class Bar:
    """Shows a run of `steps` steps.

    Attributes:
        moved_at: when something last happened, as `time.monotonic()` tells it.
        happening: what is going on.
    """

    def __init__(self, console: rich.console.Console, *, steps: int) -> None:
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("step {task.completed}/{task.total}"),
            rich.progress.TextColumn("reward {task.fields[reward]}"),
            rich.progress.TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=steps, reward="–")
        self.moved_at = time.monotonic()
        self.happening = "starting"

    def stage(self, happening: str) -> None:
        """Something else is happening now."""
        self.moved_at = time.monotonic()
        self.happening = happening
        self._progress.update(self._task, description=happening)

    def step(self, step: int, *, reward: float) -> None:
        """A step has been trained, on rollouts with this mean reward."""
        self.moved_at = time.monotonic()
        self.happening = f"training, step {step}"
        self._progress.update(self._task, description="training", completed=step, reward=f"{reward:.2f}")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
