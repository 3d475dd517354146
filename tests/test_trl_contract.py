"""What TRL's loop and trainer take for granted of a loop of ours, over a long run in which everything goes wrong."""

import asyncio
import math
import pickle
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from trl.experimental.async_grpo.async_grpo_trainer import _reduce_metric
from trl.experimental.async_grpo.packing import TreeRow

from trl_loops import ONE_TURN, TWO_ROWS, TWO_TURNS, Turns, answering, dataset_of, running, scored
from turnloom.integrations.nemo_gym._trl import AsyncRolloutWorker
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop
from turnloom.testing import gym_answer

WORKER = sys.modules[AsyncRolloutWorker.__module__]

GENERATIONS = 4
REALIGN: Turns = [*ONE_TURN, ([1, 2, 3, 9], [1], [-1.0])]
UNUSABLE: Turns = [([1, 2], [3, 4, 5], [None, -9999.0, -0.5])]
LOW = {"total_run_time": 2.0, "max_depth": 3, "min_score": 0.5, "solved": False, "reward_components": {"total": 1}}
HIGH = {"total_run_time": 4.0, "max_depth": 9, "min_score": 2.5, "solved": True, "reward_components": {"total": 2}}


def with_tool_calls(row: dict[str, Any]) -> dict[str, Any]:
    """Reasoning, a call whose arguments are no JSON, the tool's output, and text that is null."""
    answer = gym_answer(row, turns=[ONE_TURN[0], TWO_TURNS[1]], reward=0.75)
    first, last = answer["response"]["output"]
    ids = {name: first.pop(name) for name in list(first) if name.endswith(("_ids", "_probs"))}
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": '{"a": 1,', **ids}
    output = {"type": "function_call_output", "call_id": "c", "output": "[bold]4[/wrong]"}
    answer["response"]["output"] = [{"type": "reasoning", "summary": None}, call, output, {**last, "content": None}]
    return answer


def truncated(row: dict[str, Any]) -> dict[str, Any]:
    answer = gym_answer(row, turns=ONE_TURN, reward=0.0)
    answer["response"].update(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    return answer


ANSWERS = (
    scored(1.0, TWO_TURNS, **LOW),
    scored(0.0, TWO_ROWS, **HIGH),
    500,
    scored(0.5, REALIGN),
    scored(None),
    with_tool_calls,
    scored(0.25, UNUSABLE),
    scored(float("nan")),
    scored(1.0, []),
    truncated,
    scored(1.0, mask_sample=True),
    lambda row: b"{",
    scored(0.0, [([1, 2], [3], []), *ONE_TURN]),
    400,
    500,
    500,
    503,
)
SENT = 300


@dataclass
class Seen:
    """What passed between the loop and TRL."""

    rollouts: list[tuple[Any, ...]] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)
    pushed: list[dict[str, Any]] = field(default_factory=list)
    pushing_threads: set[int] = field(default_factory=set)
    rewarded: list[dict[str, list[Any]]] = field(default_factory=list)
    thread: int = 0
    loop: NemoGymRolloutLoop | None = None

    def put_nowait(self, metrics: dict[str, Any]) -> None:
        """As the metrics queue."""
        self.pushed.append(metrics)
        self.pushing_threads.add(threading.get_ident())

    def by_name(self) -> dict[str, list[Any]]:
        values = defaultdict(list)
        for put in self.pushed:
            for name, value in put.items():
                values[name].append(value)
        return values

    def last_message(self, completions: list[Any], **columns: list[Any]) -> list[float]:
        """As a reward function; it dies of a completion without messages, as users' do."""
        self.rewarded.append({"completions": completions, **columns})
        return [float(completion[-1]["role"] == "assistant") for completion in completions]


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_long_run())


async def _long_run() -> Seen:
    seen = Seen(thread=threading.get_ident())
    settings = {
        "num_generations": GENERATIONS,
        "max_inflight_tasks": 2 * GENERATIONS,
        "metrics_queue": seen,
        "reward_funcs": [seen.last_message],
        "log_completions": True,
    }
    async with running(answering(*ANSWERS), dataset_of({}, {}, {}), **settings) as run:
        generate = run.loop._generate_one

        async def generate_one(*args: Any, **kwargs: Any) -> Any:
            seen.rollouts.append(await generate(*args, **kwargs))
            return seen.rollouts[-1]

        run.loop._generate_one = generate_one
        seen.loop = run.loop
        while len(seen.rollouts) < SENT:
            seen.samples += await run.samples(1)
    while not run.loop.rollout_buffer.empty():
        seen.samples.append(run.loop.rollout_buffer.get_nowait())
    return seen


# The tuple of six


def test_a_rollout_is_the_tuple_that_the_loop_unpacks(seen: Seen) -> None:
    assert len(seen.rollouts) >= SENT
    for completion, ids, sequences, tool_calls, tool_failures, reward in seen.rollouts:
        assert type(completion) is type(ids) is type(sequences) is list
        assert all(type(message) is dict and isinstance(message["role"], str) for message in completion)
        assert {type(token) for token in ids} <= {int}
        assert all(type(each) is WORKER.TrainingSequence for each in sequences)
        assert (tool_calls, tool_failures) == (0, 0)
        assert reward is None or (type(reward) is float and math.isfinite(reward))
        assert (reward is None) == (not sequences) == (not completion)


def test_a_rollout_that_cannot_be_scored_is_trls_empty_one(seen: Seen) -> None:
    unscored = [rollout for rollout in seen.rollouts if rollout[-1] is None]
    assert len(unscored) > SENT / 3
    assert all(rollout == ([], [], [], 0, 0, None) for rollout in unscored)


# Samples


def test_arrays_reach_the_trainer_without_a_copy(seen: Seen) -> None:
    made = {id(array) for _, _, sequences, *_ in seen.rollouts for each in sequences for array in _arrays(each)}
    assert seen.samples
    for sample in seen.samples:
        assert {id(array) for array in _arrays(sample)} <= made
        assert all(array.flags.writeable for array in _arrays(sample))


def _arrays(row: Any) -> tuple[Any, Any, Any]:
    return row.input_ids, row.completion_mask, row.old_log_probs


def test_a_sample_has_the_types_that_the_trainer_reads(seen: Seen) -> None:
    for sample in seen.samples:
        assert [array.dtype for array in _arrays(sample)] == [np.int64, np.int64, np.float32]
        assert len({array.shape for array in _arrays(sample)}) == 1
        assert (type(sample.advantage), type(sample.model_version), type(sample.group_id)) == (float, int, int)
        assert math.isfinite(sample.advantage)
        assert {type(value) for value in sample.metrics.values()} == {float}
        assert type(sample.enqueued_at) is float
        assert all(set(message) >= {"role", "content"} for message in [*list(sample.prompt), *list(sample.completion)])
    again = pickle.loads(pickle.dumps(seen.samples))
    assert [sample.metrics for sample in again] == [sample.metrics for sample in seen.samples]


def test_every_sample_has_a_loss_term_and_no_logprob_that_spoils_the_loss(seen: Seen) -> None:
    for sample in seen.samples:
        ids, mask, log_probs = _arrays(sample)
        assert len(ids)
        assert mask[0] == 0, "which is no loss term wherever it is trained"
        assert mask.any()
        assert set(mask.tolist()) <= {0, 1}
        assert np.isfinite(log_probs).all()
        assert not log_probs[mask == 0].any()


def test_the_trainers_packing_takes_the_samples_of_a_step(seen: Seen) -> None:
    row = TreeRow()
    for sample in seen.samples:
        row.add({each.name: getattr(sample, each.name) for each in fields(sample)})
    packed = row.pack()
    assert packed["token_index"].numel() == sum(int(sample.completion_mask.sum()) for sample in seen.samples)
    assert set(packed["segment_id"].tolist()) == set(range(len(seen.samples)))


def test_every_row_of_a_conversation_has_its_group_and_metrics_of_its_own(seen: Seen) -> None:
    assert len({id(sample.metrics) for sample in seen.samples}) == len(seen.samples)
    rollout_of = {id(each.input_ids): each.rollout_id for _, _, sequences, *_ in seen.rollouts for each in sequences}
    told = defaultdict(list)
    for sample in seen.samples:
        told[rollout_of[id(sample.input_ids)]].append((sample.group_id, sample.advantage, sample.metrics))
    assert max(map(len, told.values())) == 2, "there were forks"
    assert all(each == told[rollout][0] for rollout in told for each in told[rollout])


def test_group_ids_count_from_0_without_a_hole(seen: Seen) -> None:
    ids = {sample.group_id for sample in seen.samples}
    assert ids == set(range(len(ids)))


def test_a_reward_function_gets_lists_of_one_length_and_no_empty_completion(seen: Seen) -> None:
    lengths = set()
    for columns in seen.rewarded:
        assert set(columns) == {"completions", "prompts", "completion_ids", "nemo_gym_row", "number"}
        (length,) = {len(column) for column in columns.values()}
        lengths.add(length)
        assert all(columns["completions"])
        assert all(type(ids) is list and ids for ids in columns["completion_ids"])
        assert len(set(columns["number"])) == 1
    assert 0 not in lengths
    assert len(lengths) > 2, "members have left in different numbers"


def test_the_reward_column_is_the_agents(seen: Seen) -> None:
    assert seen.loop is not None
    assert seen.loop._provides_rollout_reward
    assert seen.loop.reward_func_names == ["last_message", "nemo_gym"]
    for sample in seen.samples:
        assert sample.metrics["reward"] == sample.metrics["rewards/last_message"] + sample.metrics["rewards/nemo_gym"]
        assert not any(name.startswith("tools/") for name in sample.metrics)


# Metrics


def test_a_name_has_one_shape_for_the_whole_run(seen: Seen) -> None:
    for name, values in seen.by_name().items():
        assert len({type(value) for value in values}) == 1, name
        for value in values:
            if isinstance(value, tuple):
                assert len(value) == 2, name
                assert all(type(each) in (int, float) and math.isfinite(each) for each in value), name
            else:
                assert type(value) is float, name
                assert math.isfinite(value), name


def test_metrics_are_pushed_by_the_loops_own_thread(seen: Seen) -> None:
    assert seen.pushing_threads == {seen.thread}


def test_a_number_of_ours_is_reduced_as_its_name_says(seen: Seen) -> None:
    """TRL sums a float under a name with the word `total`, takes the extremum under one with `max` or `min`."""
    for name, values in seen.by_name().items():
        if name.startswith("nemo_gym/") and not isinstance(values[0], tuple):
            words = name.split("/")[-1].split("_")
            assert {"total", "max", "min"} & set(words) <= {words[-1]}, name
    reduced = {name: _reduce_metric(name, values) for name, values in seen.by_name().items()}
    cancelled = reduced.get("nemo_gym/outcome/cancelled_total", 0.0)
    assert reduced["nemo_gym/rollouts_total"] == len(seen.rollouts)
    outcomes = [value for name, value in reduced.items() if name.startswith("nemo_gym/outcome/")]
    assert sum(outcomes) == len(seen.rollouts)
    scored_rollouts = sum(reward is not None for *_, reward in seen.rollouts)
    assert reduced["nemo_gym/outcome/ok_total"] == scored_rollouts
    share = (len(seen.rollouts) - cancelled, scored_rollouts)
    assert reduced["nemo_gym/success_frac"] == pytest.approx(share[1] / share[0])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("total_run_time", 2.0, 4.0),
        ("max_depth", 3.0, 9.0),
        ("min_score", 0.5, 2.5),
        ("solved", 0.0, 1.0),
        ("reward_components/total", 1.0, 2.0),
    ],
)
def test_a_field_of_the_environment_is_a_mean_whatever_it_is_called(
    seen: Seen, name: str, low: float, high: float
) -> None:
    values = seen.by_name()[f"nemo_gym/env/math/{name}"]
    assert len(values) > 3
    assert low < _reduce_metric(f"nemo_gym/env/math/{name}", values) < high


def test_trls_own_numbers_of_a_rollout_are_there(seen: Seen) -> None:
    reduced = {name: _reduce_metric(name, values) for name, values in seen.by_name().items()}
    ok = [rollout for rollout in seen.rollouts if rollout[-1] is not None]
    assert reduced["completions/max_length"] == max(len(ids) for _, ids, *_ in ok)
    assert reduced["completions/mean_length"] == pytest.approx(sum(len(ids) for _, ids, *_ in ok) / len(ok))
    assert reduced["rollout/samples_per_rollout"] == pytest.approx(sum(len(each[2]) for each in ok) / len(ok))
    assert reduced["rollout/fork_frac"] + reduced["rollout/realign_frac"] < 1
    # Clipped is what does not end in an id that ends a generation; here the realigned ones end in it.
    assert reduced["completions/clipped_ratio"] == pytest.approx(sum(ids[-1] != 1 for _, ids, *_ in ok) / len(ok))
