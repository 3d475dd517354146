"""What a run leaves: transcripts, the plot, and the summary."""

from __future__ import annotations

import itertools
import json
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import rich.console
import rich.table

from turnloom import Rollout

LEARNED_REWARD: Final = 0.9
_AVERAGED_STEPS: Final = 5
_DRIFT_SHARE: Final = "nemo_gym/drift/{}_frac"
_DRIFT_COLORS: Final = {"clean": "tab:green", "realign": "tab:orange", "fork": "tab:red"}
_OUTCOME_PREFIX: Final = "nemo_gym/outcome/"

StepMetrics = Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """A run in six figures. First and last reward are means over five steps."""

    reward_first: float
    reward_last: float
    seconds: float
    steps: int
    rollouts: int
    outcomes: dict[str, int]

    @property
    def learned(self) -> bool:
        """Whether the mean reward has come above 0.9."""
        return self.reward_last > LEARNED_REWARD


def summarize(metrics: Sequence[StepMetrics], *, seconds: float) -> Summary:
    """The summary of the metrics of all steps."""
    rewards = [step["reward"] for step in metrics]
    outcomes: Counter[str] = Counter()
    for step in metrics:
        outcomes.update(_outcomes(step))
    return Summary(
        reward_first=round(fmean(rewards[:_AVERAGED_STEPS]), 4),
        reward_last=round(fmean(rewards[-_AVERAGED_STEPS:]), 4),
        seconds=round(seconds, 1),
        steps=len(metrics),
        rollouts=sum(outcomes.values()),
        outcomes=dict(outcomes),
    )


def write_summary(path: Path, summary: Summary) -> None:
    """The summary as JSON."""
    path.write_text(json.dumps(asdict(summary), indent=2) + "\n")


def plot(metrics: Sequence[StepMetrics], path: Path) -> None:
    """Reward, outcomes and drift kinds by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 9), layout="constrained")
    rewards, outcomes, drift = figure.subplots(3, 1, sharex=True)
    rewards.plot([step["step"] for step in metrics], [step["reward"] for step in metrics])
    rewards.set(title="turnloom demo", ylabel="mean reward", ylim=(0, 1.02))
    _plot_outcomes(outcomes, metrics)
    # Between two steps there can be no answer at all.
    _plot_drift(drift, [step for step in metrics if step.get(_DRIFT_SHARE.format("clean")) is not None])
    drift.set(xlabel="step")
    figure.savefig(path, dpi=120)


def _plot_outcomes(axes: Any, metrics: Sequence[StepMetrics]) -> None:
    so_far = list(itertools.accumulate(map(_outcomes, metrics), operator.add))
    names = sorted(so_far[-1])
    if names:
        counts = [[counted[name] for counted in so_far] for name in names]
        axes.stackplot([step["step"] for step in metrics], counts, labels=names)
        axes.legend(loc="upper left")
    axes.set(ylabel="rollouts so far, by outcome")


def _plot_drift(axes: Any, metrics: Sequence[StepMetrics]) -> None:
    shares = [[step[_DRIFT_SHARE.format(kind)] for step in metrics] for kind in _DRIFT_COLORS]
    axes.stackplot(
        [step["step"] for step in metrics], shares, labels=list(_DRIFT_COLORS), colors=list(_DRIFT_COLORS.values())
    )
    axes.legend(loc="lower right")
    axes.set(ylabel="transitions, by drift kind", ylim=(0, 1))


def print_transcript(console: rich.console.Console, title: str, rollout: Rollout, question: str) -> None:
    """One rollout as a conversation."""
    said = f"reward {rollout.reward:.2f}" if rollout.reward is not None else f"{rollout.outcome}: {rollout.reason}"
    table = rich.table.Table(box=None, show_header=False)
    table.add_row("user", question)
    for message in rollout.messages():
        calls = [
            f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())
        ]
        table.add_row(str(message["role"]), " ".join([*calls, str(message.get("content") or "")]).strip())
    console.print(f"{title} ({said})", markup=False, soft_wrap=True)
    console.print(table)


def print_result(console: rich.console.Console, summary: Summary, out: Path) -> None:
    """What came of it, in two lines."""
    change = f"mean reward {summary.reward_first:.2f} → {summary.reward_last:.2f}"
    effort = f"{summary.steps} steps, {summary.rollouts} rollouts, {summary.seconds:.0f} s"
    if summary.learned:
        console.print(f"[green]It learned:[/] {change} in {effort}.", soft_wrap=True)
    else:
        console.print(
            f"[red]It did not learn:[/] {change} in {effort}; {LEARNED_REWARD} is wanted, and 100 steps are enough.",
            soft_wrap=True,
        )
    console.print(f"Figures are in {out}: reward.png, metrics.jsonl, summary.json.", soft_wrap=True)


def _outcomes(step: StepMetrics) -> Counter[str]:
    """How many rollouts ended how, since the step before."""
    return Counter(
        {
            name.removeprefix(_OUTCOME_PREFIX).removesuffix("_total"): int(value)
            for name, value in step.items()
            if name.startswith(_OUTCOME_PREFIX) and value
        }
    )
