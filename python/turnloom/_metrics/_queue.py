"""The way of the metrics into a trainer's queue."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any, Protocol

from turnloom._client import AgentState
from turnloom._metrics._catalogue import PREFIX
from turnloom._metrics._in_flight import InFlight
from turnloom._metrics._numbers import NOTHING, Cumulative, Metric, cumulative, in_flight_now, spread
from turnloom._metrics._tally import Tally


class MetricsQueue(Protocol):
    """Where metrics go: `queue.Queue` and its kin of `multiprocessing`."""

    def put_nowait(self, item: Any, /) -> None: ...


class Metrics:
    """The metrics of all agents, of which a queue takes what is new since the last time it had room.

    `METRICS` says which there are. Names: `nemo_gym/<metric>` over all agents, `nemo_gym/agent/<agent>/<metric>` for
    each, `nemo_gym/env/<agent>/<field>` for what the environment reports.
    """

    def __init__(self, tallies: Mapping[str, Tally]) -> None:
        self._tallies = tallies
        self._taken: dict[str, Cumulative] = {}

    def counts(self) -> dict[str, int]:
        """All counts since the beginning."""
        named = _named({agent: cumulative(tally).since(NOTHING) for agent, tally in self._tallies.items()})
        return {name: int(value) for name, value in named.items() if not isinstance(value, tuple)}

    def new(self, agents: Mapping[str, AgentState] | None = None) -> dict[str, Metric]:
        """What the queue has not taken yet, and how things are now; empty when nothing began or ended.

        Args:
            agents: what the client tells of each agent (`GymClient.agents`).
        """
        return self._new(self._changed(), agents or {})

    def push(self, metrics_queue: MetricsQueue, agents: Mapping[str, AgentState] | None = None) -> bool:
        """Offer what is new; what a full queue does not take stays for the next time. Whether it was taken."""
        changed = self._changed()
        if not changed:
            return True
        try:
            metrics_queue.put_nowait(self._new(changed, agents or {}))
        except queue.Full:
            return False
        self._taken.update(changed)
        for agent in changed:
            self._tallies[agent].extremes.clear()
        return True

    def _changed(self) -> dict[str, Cumulative]:
        """The numbers of those agents of which there is something new."""
        return {
            agent: cumulative(tally)
            for agent, tally in self._tallies.items()
            if not self._taken.get(agent, NOTHING).is_of(tally)
        }

    def _new(self, changed: Mapping[str, Cumulative], agents: Mapping[str, AgentState]) -> dict[str, Metric]:
        if not changed:
            return {}
        new: dict[str, dict[str, Metric]] = {}
        for agent, tally in self._tallies.items():
            new[agent] = in_flight_now(InFlight.of(tally, agents.get(agent)))
            if agent in changed:
                new[agent] |= changed[agent].since(self._taken.get(agent, NOTHING)) | tally.extremes | spread(tally)
        found = _named(new)
        whole = spread(*self._tallies.values())
        return found | {f"{PREFIX}/{name}": value for name, value in whole.items()}


def _named(by_agent: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    """The metrics of each agent, and of all."""
    named: dict[str, Metric] = {}
    for agent, metrics in by_agent.items():
        for name, value in metrics.items():
            if name.startswith("env/"):
                named[f"{PREFIX}/env/{agent}/{name.removeprefix('env/')}"] = value
                continue
            named[f"{PREFIX}/agent/{agent}/{name}"] = value
            of_all = f"{PREFIX}/{name}"
            named[of_all] = _together(name, named[of_all], value) if of_all in named else value
    return named


def _together(name: str, one: Metric, other: Metric) -> Metric:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0] + other[0], one[1] + other[1]
    assert not isinstance(one, tuple)
    assert not isinstance(other, tuple)
    if name.endswith("_max"):
        return max(one, other)
    return min(one, other) if name.endswith("_min") else one + other
