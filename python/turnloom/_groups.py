"""From dataset rows to groups, outcomes and metrics: what is known of them, whoever the trainer is.

Every number is counted here, cumulatively; a trainer's queue gets the differences since it last took some. Metrics
have two shapes: `{name: float}` for counts and maxima, `{name: (sum, count)}` for means and shares.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from turnloom._exceptions import ConfigError
from turnloom._gym import agent_of, agent_request, check_row, gym_row, item_type, prompt_of, skipped_item_types
from turnloom._rollout import Outcome, Rollout, TrainingRow, Turn

logger = logging.getLogger("turnloom")

PREFIX: Final = "nemo_gym"
"""Every metric's name begins with it."""

UNKNOWN_AGENT: Final = "unknown"
"""Stands for the agent of a rollout that no client made, or that was given up before its row was found wrong."""

ANSWERED: Final[frozenset[Outcome]] = frozenset({"masked", "no_tokens", "no_reward", "ok"})
"""The outcomes of an agent that did its work: what the answer says can be counted."""

ROLLOUTS_WITHOUT_IDS: Final = 64
"""After so many answers, and no token id in any of them, there is no use in going on."""

ROLLOUTS_WITHOUT_ROWS: Final = 64
"""After so many rollouts in a row, of which the wanted turns are none, that is said."""

DRIFT_WINDOW: Final = 256
"""Transitions that are looked at together before the drift is called high."""

Metric = float | tuple[float, float]
GroupT = TypeVar("GroupT")


# --- Rows ---


def check_rows(dataset: Any, agents: Iterable[str]) -> None:
    """Look at every row of a map-style dataset before any is sent. Others are looked at when their turn comes.

    Raises:
        ConfigError: the dataset is none, or empty, or there are rows that no agent could take: up to ten of them, and
            why.
    """
    if isinstance(dataset, Mapping):
        names = ", ".join(map(str, list(dataset)[:10])) or "nothing"
        raise ConfigError(
            f"the dataset is a {type(dataset).__name__} of {names}, not of rows: choose a split, as in "
            "dataset['train'] or load_dataset(..., split='train')"
        )
    if isinstance(dataset, (str, bytes)) or not (hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")):
        raise ConfigError(f"dataset={dataset!r}: something with rows is needed, such as a datasets.Dataset")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        return
    if len(dataset) == 0:
        raise ConfigError("the dataset has no rows")
    wrong = list(_wrong_rows(dataset, list(agents)))
    if wrong:
        told = "\n".join(f"  row {number}: {error}" for number, error in wrong[:10])
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise ConfigError(f"{len(wrong)} of {len(dataset)} rows cannot be sent to an agent:\n{told}{more}")


def _wrong_rows(dataset: Iterable[Mapping[str, Any]], agents: list[str]) -> Iterator[tuple[int, ConfigError]]:
    for number, row in enumerate(dataset):
        try:
            agent_of(agent_request(row, max_tokens=1, temperature=1.0, top_p=1.0), agents)
        except ConfigError as error:
            yield number, error


def with_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a `prompt` for trainers and reward functions: its own, or else what the agent is asked."""
    return dict(row) if check_row(row).get("prompt") is not None else {**row, "prompt": prompt_of(row)}


def agent_for(row: Mapping[str, Any], agents: Iterable[str]) -> str | None:
    """The agent that a row goes to; None for a row that cannot be sent."""
    try:
        return agent_of(gym_row(row), agents)
    except ConfigError:
        return None


class OpenRows:
    """The dataset row of each group, until its last rollout has begun."""

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._open: dict[int, tuple[dict[str, Any], int]] = {}

    def open(self, group_id: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The group's row with its prompt; the same object for each of its rollouts."""
        if group_id not in self._open:
            self._open[group_id] = (with_prompt(row), self._group_size)
        return self._open[group_id][0]

    def take(self, group_id: int) -> dict[str, Any]:
        """The row for one rollout of the group."""
        row, left = self._open.pop(group_id)
        if left > 1:
            self._open[group_id] = (row, left - 1)
        return row


# --- Groups ---


class DenseIds:
    """Numbers the groups that yield rows so that none of the numbers stays unused.

    Trainers resume at the first number not trained. A group that fails would pin it for ever, so the next group takes
    its number and leaves its own to the one after. A group that is still at work keeps its own, hence none is skipped.
    """

    def __init__(self) -> None:
        self._unused: list[int] = []

    def number(self, group_id: int, *, has_rows: bool) -> int:
        """The number of a group that was scored; call it once for each."""
        heapq.heappush(self._unused, group_id)
        return heapq.heappop(self._unused) if has_rows else group_id


def only_members(group: GroupT, kept: Sequence[int]) -> GroupT:
    """The group with these members alone, in every list that runs parallel to them.

    Args:
        group: a dataclass whose lists, and dicts of lists, have one element per member.
    """

    def select(value: Any) -> Any:
        if isinstance(value, list):
            return [value[index] for index in kept]
        return {name: select(column) for name, column in value.items()} if isinstance(value, dict) else value

    fields = {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}  # type: ignore[arg-type]
    parallel = {name: select(value) for name, value in fields.items() if isinstance(value, (list, dict)) and value}
    return dataclasses.replace(group, **parallel)  # type: ignore[type-var]


def train_only(
    rows: Sequence[TrainingRow], turns: Iterable[Turn], train_turn_fn: Callable[[Turn], bool]
) -> tuple[TrainingRow, ...]:
    """The rows with only those turns trained that the function wants; rows with nothing left to train are dropped.

    Args:
        turns: all turns of the rollout that the rows are of.
    """
    kept = list(rows)
    for number, turn in enumerate(turns):
        if turn.row is not None and not train_turn_fn(turn):
            row = kept[turn.row]
            mask, log_probs = row.completion_mask.copy(), row.old_log_probs.copy()
            mask[turn.start : turn.end] = 0
            log_probs[turn.start : turn.end] = 0.0
            spans = row.turn_spans[row.turn_spans[:, 0] != number]
            kept[turn.row] = dataclasses.replace(row, completion_mask=mask, old_log_probs=log_probs, turn_spans=spans)
    return tuple(row for row in kept if row.completion_mask.any())


class WantedTurns:
    """Trains those turns alone that a function wants, and says so when it has wanted none of many rollouts."""

    def __init__(self, train_turn_fn: Callable[[Turn], bool]) -> None:
        self._train_turn_fn = train_turn_fn
        self._without_rows: int | None = 0  # rollouts in a row; None once the warning was given

    def rows_of(self, rollout: Rollout) -> tuple[TrainingRow, ...]:
        """What there is to train of a rollout that is `ok`."""
        rows = train_only(rollout.rows, rollout.turns, self._train_turn_fn)
        if self._without_rows is not None:
            self._without_rows = 0 if rows else self._without_rows + 1
            if self._without_rows >= ROLLOUTS_WITHOUT_ROWS:
                self._without_rows = None
                logger.warning(
                    "train_turn_fn has refused every turn of the last %d rollouts that were ok, so that nothing of "
                    "them is trained: does it return True for the turns to train? (Said once.)",
                    ROLLOUTS_WITHOUT_ROWS,
                )
        return rows


# --- Metrics ---


class MetricsQueue(Protocol):
    """Where metrics go: `queue.Queue` and its kin of `multiprocessing`."""

    def put_nowait(self, item: Any, /) -> None: ...


class Metrics:
    """Cumulative numbers, of which a queue takes what is new since the last time it had room."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sums: dict[str, tuple[float, float]] = {}
        self._maxima: dict[str, float] = {}
        self._taken_counts: Counter[str] = Counter()
        self._taken_sums: dict[str, tuple[float, float]] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count. The name ends in `_total`, which trainers sum over their logging window."""
        self._counts[name] += number

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add `value` to a sum of which `weight` is the count; a share is the mean of what is 0 or 1."""
        total, count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (total + value, count + weight)

    def maximum(self, name: str, value: float) -> None:
        """Raise a maximum. The name ends in `_max`; it starts anew with each push."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def counts(self) -> dict[str, int]:
        """All counts since the beginning."""
        return dict(self._counts)

    def means(self) -> dict[str, float]:
        """All means since the beginning."""
        return {name: total / count for name, (total, count) in self._sums.items() if count}

    def new(self) -> dict[str, Metric]:
        """What the queue has not taken yet."""
        found: dict[str, Metric] = dict(self._maxima)
        found.update((name, float(n)) for name, n in (self._counts - self._taken_counts).items())
        for name, (total, count) in self._sums.items():
            taken_total, taken_count = self._taken_sums.get(name, (0.0, 0.0))
            if count > taken_count:
                found[name] = (total - taken_total, count - taken_count)
        return found

    def push(self, metrics_queue: MetricsQueue) -> bool:
        """Offer what is new; what a full queue does not take stays for the next time. Whether it was taken."""
        new = self.new()
        if not new:
            return True
        try:
            metrics_queue.put_nowait(new)
        except queue.Full:
            return False
        self._taken_counts, self._taken_sums = self._counts.copy(), self._sums.copy()
        self._maxima.clear()
        return True


def _scopes(agent: str) -> tuple[str, str]:
    return PREFIX, f"{PREFIX}/agent/{agent}"


class Ledger:
    """Enters every rollout once: into the metrics, into the log when it failed, and into what is watched.

    Names: `nemo_gym/<what>` over all agents, `nemo_gym/agent/<agent>/<what>` for each, `nemo_gym/env/<agent>/<field>`
    for what the environment reports.
    """

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._rollouts: Counter[str] = Counter()
        self._without_ids: int | None = 0  # None once an answer had some, or the alarm was given
        self._window: Counter[str] | None = Counter()  # None once the warning was given

    def enter(self, rollout: Rollout, *, latency_s: float) -> None:
        """Enter one rollout.

        Raises:
            ConfigError: so many answers have come and none had a token id; raised once.
        """
        agent = rollout.agent or UNKNOWN_AGENT
        self._rollouts[agent] += 1
        self._count(agent, rollout, latency_s)
        if rollout.outcome in ANSWERED:
            self._count_answer(agent, rollout)
            self._count_environment(agent, rollout)
            self._watch_drift(rollout)
            self._watch_ids(agent, rollout)
        if rollout.outcome != "ok":
            self._log_failure(agent, rollout)

    def enter_cancelled(self, agent: str | None) -> None:
        """Enter a rollout that was given up, since its results are wanted no more."""
        agent = agent or UNKNOWN_AGENT
        self._rollouts[agent] += 1
        for scope in _scopes(agent):
            self.metrics.count(f"{scope}/rollouts_total")
            self.metrics.count(f"{scope}/outcome/cancelled_total")

    def _count(self, agent: str, rollout: Rollout, latency_s: float) -> None:
        metrics, ok = self.metrics, rollout.outcome == "ok"
        trained = sum(int(row.completion_mask.sum()) for row in rollout.rows)
        for scope in _scopes(agent):
            metrics.count(f"{scope}/rollouts_total")
            metrics.count(f"{scope}/outcome/{rollout.outcome}_total")
            metrics.mean(f"{scope}/success_frac", float(ok))
            metrics.mean(f"{scope}/latency_s", latency_s)
            metrics.maximum(f"{scope}/latency_s_max", latency_s)
            if ok and rollout.reward is not None:
                metrics.mean(f"{scope}/reward", rollout.reward)
                metrics.mean(f"{scope}/rows_per_rollout", len(rollout.rows))
                metrics.mean(f"{scope}/trained_tokens", trained)

    def _count_answer(self, agent: str, rollout: Rollout) -> None:
        metrics, drift = self.metrics, rollout.drift
        tool_calls = sum(item_type(item) == "function_call" for item in rollout.output)
        skipped = sum(skipped_item_types(rollout.output).values())
        unrelated = sum(turn.transition == "fork" and turn.matched_tokens == 0 for turn in rollout.turns)
        for scope in _scopes(agent):
            metrics.mean(f"{scope}/turns", len(rollout.turns))
            metrics.mean(f"{scope}/tool_calls", tool_calls)
            metrics.mean(f"{scope}/truncated_frac", float(rollout.truncated))
            for name in ("discarded_tokens", "unusable_tokens", "positive_logprobs"):
                metrics.count(f"{scope}/{name}_total", getattr(drift, name))
            metrics.count(f"{scope}/defects_total", len(rollout.defects))
            metrics.count(f"{scope}/unrelated_prompts_total", unrelated)
            metrics.count(f"{scope}/skipped_items_total", skipped)
            for kind in ("clean", "realign", "fork"):
                metrics.mean(f"{scope}/drift/{kind}_frac", getattr(drift, kind), drift.transitions)
            metrics.mean(f"{scope}/drift/tokens", drift.drift_tokens, drift.transitions)
            metrics.maximum(f"{scope}/drift/tokens_max", float(drift.drift_max))

    def _count_environment(self, agent: str, rollout: Rollout) -> None:
        for defect in rollout.defects:
            self.metrics.count(f"{PREFIX}/defects/{defect.code}_total")
        for field, value in rollout.metrics.items():
            if math.isfinite(value):
                self.metrics.mean(f"{PREFIX}/env/{agent}/{field}", value)

    def _log_failure(self, agent: str, rollout: Rollout) -> None:
        self._failures[rollout.outcome, agent] += 1
        failures = self._failures[rollout.outcome, agent]
        if str(failures).strip("0") == "1":  # 1, 10, 100, …
            logger.warning(
                "agent %r: %s, %d of its %d rollouts so far; the latest: %s",
                agent,
                rollout.outcome,
                failures,
                self._rollouts[agent],
                rollout.reason,
            )

    def _watch_drift(self, rollout: Rollout) -> None:
        if self._window is None:
            return
        drift = rollout.drift
        self._window.update(clean=drift.clean, realign=drift.realign, fork=drift.fork)
        if self._window.total() < DRIFT_WINDOW:
            return
        window, self._window = self._window, Counter()
        if 2 * window["clean"] < window.total():
            self._window = None
            lossless = "Set fork_threshold_tokens=0 to lose no token, and look" if window["realign"] else "Look"
            logger.warning(
                "of the last %d transitions between model calls %d realigned and %d forked: the prompts do not repeat "
                "what was generated. A realign takes what it replaces out of the training, so that bad tokens are "
                "never punished; a fork makes one more row. %s for the cause in the chat template: does it drop the "
                "thinking, or change white space? (Said once.)",
                window.total(),
                window["realign"],
                window["fork"],
                lossless,
            )

    def _watch_ids(self, agent: str, rollout: Rollout) -> None:
        if self._without_ids is None:
            return
        if rollout.turns or rollout.defects:
            self._without_ids = None
            return
        if rollout._parsed.response.get("incomplete_details") is not None:
            return  # cut before its first token
        self._without_ids += 1
        if self._without_ids >= ROLLOUTS_WITHOUT_IDS:
            self._without_ids = None
            types = Counter(map(item_type, rollout.output))
            items = ", ".join(f"{number} {name}" for name, number in types.items()) or "none"
            raise ConfigError(
                f"{ROLLOUTS_WITHOUT_IDS} rollouts were answered and none carried a token id, so there is nothing to "
                "train on. Set return_token_id_information: true on NeMo Gym's model server, and let no proxy strip "
                "prompt_token_ids, generation_token_ids and generation_log_probs from the items. "
                f"Items of the last answer, of the agent {agent!r}: {items}."
            )
