"""Lets turnloom's worker run for long: thousands of rollouts, of which some fail in every way there is.

    python benches/soak.py [--minutes 20] [--rollouts 20000] [--seed 1] [--retry]
    python benches/soak.py --fast

The worker is the one that a trainer would have, in a process of its own; this process takes what it makes in place of
the trainer, and a third one is the agent server, which gives a share of the rollouts a fault, drawn from a seed. At the
end every rollout must be accounted for exactly once: what the loop has counted by outcome is what the server says that
it did, no request came twice, no member of a group is missing, and as many samples have come as the answers have rows.
Twice the server takes no connection for a while. Behind the rows that are counted come some that it holds until the
worker is stopped: they are the `cancelled`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from loopback import process_of, raise_descriptor_limit

FORK_ROWS = 3
"""Rows of one answer of the fault `forks`; all others that are `ok` have one."""


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    rollouts: int
    minutes: float
    in_flight: int = 256
    group_size: int = 8
    share: float = 0.1
    seed: int = 1
    outages_s: tuple[float, ...] = (30.0, 60.0)
    """How long the server takes no connection, each time."""
    on_failure: str = "drop"

    @property
    def groups(self) -> int:
        return self.rollouts // self.group_size

    @property
    def latency_s(self) -> float:
        """How long an answer takes on average, so that the minutes are filled; at most twice as long."""
        return 60 * self.minutes * self.in_flight / self.rollouts

    @property
    def run_timeout_s(self) -> float:
        return 2 * self.latency_s + 5.0

    def rows(self) -> list[dict[str, Any]]:
        """Those to count, and then as many as fill every slot."""
        held = -(-self.in_flight // self.group_size)
        return [
            {"number": number, "responses_create_params": {"input": "2 + 2?"}} for number in range(self.groups + held)
        ]


@dataclass
class Told:
    """What the server says that it did."""

    gave: Counter[str] = field(default_factory=Counter)
    """How many rollouts got which fault, or `none`."""
    members: Counter[int] = field(default_factory=Counter)
    """How many members of its group came of each row."""
    repeated: int = 0
    """Requests that had come before."""
    held: int = 0


# The agent server


def serve(to_parent: Connection, plan: Plan) -> None:
    """Tells what it did whenever it is asked."""
    raise_descriptor_limit()
    asyncio.run(_serve(to_parent, plan))


async def _serve(to_parent: Connection, plan: Plan) -> None:
    from turnloom.testing import AgentCall, FakeAgent, Mix

    told, latencies, seen = Told(), random.Random(plan.seed), set[Any]()
    mix = Mix(share=plan.share, seed=plan.seed)
    told.gave = mix.counts

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        for name in (
            row["_ng_rollout_id"],
            tuple(row[f"_ng_{which}_index"] for which in ("task", "rollout", "attempt")),
        ):
            told.repeated += name in seen
            seen.add(name)
        if row["number"] >= plan.groups:
            told.held += 1
            await _hold(call)
        told.members[row["number"]] += row["_ng_attempt_index"] == 0
        await asyncio.sleep(latencies.uniform(0, 2 * plan.latency_s))
        await mix(call)

    async with FakeAgent(behave) as agent, asyncio.TaskGroup() as tasks:
        to_parent.send(agent.url)
        tasks.create_task(_outages(agent, plan))
        while True:
            await asyncio.get_running_loop().run_in_executor(None, to_parent.recv)
            to_parent.send(told)


async def _outages(agent: Any, plan: Plan) -> None:
    for seconds in plan.outages_s:
        await asyncio.sleep(60 * plan.minutes / (len(plan.outages_s) + 1))
        async with agent.refusing():
            await asyncio.sleep(seconds)


async def _hold(call: Any) -> NoReturn:
    """Keep the client waiting until it goes."""
    await call.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        await call.send(b" ")
        await asyncio.sleep(1.0)


def outcomes_of(told: Told) -> Counter[str]:
    """The outcomes that turnloom should have counted."""
    from turnloom.testing import FAULTS

    expected: Counter[str] = Counter({"cancelled": told.held})
    for name, count in told.gave.items():
        expected["ok" if name == "none" else FAULTS[name].outcome] += count
    return expected


def samples_of(told: Told) -> int:
    """How many samples the trainer should have got."""
    return outcomes_of(told)["ok"] + (FORK_ROWS - 1) * told.gave["forks"]


# In place of the trainer


class Trainer:
    """Takes what the worker makes, and counts."""

    def __init__(self, worker: Any) -> None:
        self.samples = 0
        self.groups: set[int] = set()
        self.totals: Counter[str] = Counter()
        """Of the worker's metrics, those that are summed."""
        self._worker = worker

    def take(self) -> None:
        """What there is by now."""
        self._worker.check_health(300.0)
        with suppress(queue.Empty):
            while True:
                self._take_sample(self._worker.rollout_buffer.get(timeout=0.2))
        with suppress(queue.Empty):
            while True:
                metrics = self._worker.metrics_queue.get_nowait()
                self.totals.update({name: int(n) for name, n in metrics.items() if name.endswith("_total")})

    def _take_sample(self, sample: Any) -> None:
        length = len(sample.input_ids)
        assert length == len(sample.completion_mask) == len(sample.old_log_probs) > 0
        assert sample.completion_mask.any()
        self.samples += 1
        self.groups.add(sample.group_id)

    @property
    def entered(self) -> int:
        return self.totals["nemo_gym/rollouts_total"]


@dataclass(frozen=True)
class Moment:
    """The worker's process at one time."""

    minute: float
    entered: int
    ok: int
    samples: int
    resident_mb: float
    descriptors: int
    cpu_s: float


def moment(began: float, trainer: Trainer, pid: int) -> Moment:
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[11:13]
    return Moment(
        minute=(time.monotonic() - began) / 60,
        entered=trainer.entered,
        ok=trainer.totals["nemo_gym/outcome/ok_total"],
        samples=trainer.samples,
        resident_mb=resident / 1024,
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        cpu_s=(int(user) + int(system)) / 100,
    )


@dataclass(frozen=True)
class Report:
    """What came of a plan."""

    plan: Plan
    told: Told
    sent: int
    """Rollouts, as the loop counts them."""
    counted: Counter[str]
    """Per outcome, likewise."""
    samples: int
    groups: set[int]
    moments: list[Moment]

    def mismatches(self) -> list[str]:
        """What is not accounted for exactly once; empty when all is."""
        plan, told = self.plan, self.told
        expected = outcomes_of(told)
        checks = {
            "rollouts that came, and that were sent": (expected.total(), self.sent),
            "rollouts that were sent, and that have ended": (self.sent, self.counted.total()),
            "outcomes given, and counted": (+expected, +self.counted),
            "requests that had come before": (0, told.repeated),
            "members of groups": (dict.fromkeys(range(plan.groups), plan.group_size), dict(told.members)),
            "slots, and rollouts held": (plan.in_flight, told.held),
            "rows of the answers, and samples": (samples_of(told), self.samples),
            "groups numbered": (set(range(plan.groups)), self.groups),
        }
        return [f"{what}: {ours} and {theirs}" for what, (ours, theirs) in checks.items() if ours != theirs]


def soak(plan: Plan, *, every_s: float, show: Any = lambda moment: None) -> Report:
    """Run the plan; `show` gets a moment now and then."""
    from soak_worker import make_worker

    with process_of(serve, plan) as server, tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        worker = make_worker(
            server.recv(),
            plan.rows(),
            counts,
            num_generations=plan.group_size,
            max_inflight_tasks=plan.in_flight,
            run_timeout=plan.run_timeout_s,
            on_failure=plan.on_failure,
        )
        worker.start()
        trainer, moments, began = Trainer(worker), [], time.monotonic()
        try:
            while True:
                trainer.take()
                told = _ask(server)
                if time.monotonic() - began >= every_s * len(moments):
                    moments.append(moment(began, trainer, worker._process.pid))
                    show(moments[-1])
                if told.held == plan.in_flight and trainer.entered == told.gave.total():
                    break  # nothing is left but what is held
        finally:
            worker.stop()
        counted = json.loads(counts.read_text())
        told = _ask(server)
    prefix, suffix = "nemo_gym/outcome/", "_total"
    by_outcome = {
        name.removeprefix(prefix).removesuffix(suffix): n for name, n in counted.items() if name.startswith(prefix)
    }
    return Report(
        plan, told, counted["nemo_gym/sent_total"], Counter(by_outcome), trainer.samples, trainer.groups, moments
    )


def _ask(server: Connection) -> Told:
    server.send("what have you done?")
    told: Told = server.recv()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--retry", action="store_true", help="run a new rollout in the place of one that failed")
    parser.add_argument("--fast", action="store_true", help="400 rollouts in six seconds")
    arguments = parser.parse_args()
    plan = Plan(
        arguments.rollouts,
        arguments.minutes,
        seed=arguments.seed,
        on_failure="retry" if arguments.retry else "drop",
    )
    if arguments.fast:
        plan = replace(plan, rollouts=400, minutes=0.1, in_flight=64, outages_s=(1.0,))
    print("| minute | rollouts | ok | samples | resident MB | descriptors | CPU s |")
    print("| --: | --: | --: | --: | --: | --: | --: |")

    def show(it: Moment) -> None:
        print(
            f"| {it.minute:.1f} | {it.entered:,} | {it.ok:,} | {it.samples:,} | {it.resident_mb:.0f} "
            f"| {it.descriptors} | {it.cpu_s:.0f} |",
            flush=True,
        )

    report = soak(plan, every_s=2.0 if arguments.fast else 60.0, show=show)
    print()
    print("| outcome | the server gave | turnloom counted |")
    print("| --- | --: | --: |")
    expected = outcomes_of(report.told)
    for outcome in sorted(expected | report.counted, key=lambda name: -expected[name]):
        print(f"| {outcome} | {expected[outcome]:,} | {report.counted[outcome]:,} |")
    print(f"| all | {expected.total():,} | {report.counted.total():,} |")
    print()
    mismatches = report.mismatches()
    print("\n".join(mismatches) or f"every rollout is accounted for once; {report.samples:,} samples came")
    raise SystemExit(bool(mismatches))


if __name__ == "__main__":
    main()
