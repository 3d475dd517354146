"""Turns into rows: the core, the reference and TRL's own reconciler agree bit for bit."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

import reference
import turnloom
from rollouts import Raw, answer, assert_as_reference, feed, rows_of, spans_of, turn
from strategies import BRANCHES, THRESHOLDS, Told, conversations
from turnloom.bench import _corpus as corpus
from turnloom.bench._baseline import training_rows

# name: (threshold, turns as (prompt, output, mask), rows as (ids, mask), what is not 0 in the counts)
CASES: dict[str, tuple[int, list[tuple[Any, ...]], list[tuple[Any, ...]], dict[str, int]]] = {
    "no turns": (1024, [], [], {}),
    "one turn": (1024, [([1, 2], [3, 4])], [([1, 2, 3, 4], [0, 0, 1, 1])], {}),
    "clean": (
        1024,
        [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])],
        [([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])],
        {"clean": 1},
    ),
    "clean, the prompt is what is held": (
        1024,
        [([1, 2], [3, 4]), ([1, 2, 3, 4], [6])],
        [([1, 2, 3, 4, 6], [0, 0, 1, 1, 1])],
        {"clean": 1},
    ),
    "realign": (
        2,
        [([1, 2], [3, 4]), ([1, 2, 3, 9, 5], [6])],
        [([1, 2, 3, 9, 5, 6], [0, 0, 1, 0, 0, 1])],
        {"realign": 1, "drift_tokens": 1, "drift_max": 1, "discarded_tokens": 1},
    ),
    "as many as the threshold fork": (
        2,
        [([1, 2], [3, 4]), ([1, 2, 8, 9, 5], [6])],
        [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 8, 9, 5, 6], [0, 0, 0, 0, 0, 1])],
        {"fork": 1, "drift_tokens": 2, "drift_max": 2},
    ),
    "one below the threshold, the whole answer goes": (
        3,
        [([1, 2], [3, 4]), ([1, 2, 8, 9, 5], [6])],
        [([1, 2, 8, 9, 5, 6], [0, 0, 0, 0, 0, 1])],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 2},
    ),
    "the prompt ends where the answer began": (
        1024,
        [([1, 2], [3, 4]), ([1, 2], [6])],
        [([1, 2, 6], [0, 0, 1])],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 2},
    ),
    "the prompt ends inside the answer": (
        1024,
        [([1, 2], [3, 4, 5]), ([1, 2, 3], [6])],
        [([1, 2, 3, 6], [0, 0, 1, 1])],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 2},
    ),
    "the prompt ends before the answer": (
        1024,
        [([1, 2, 3], [4]), ([1, 2], [6])],
        [([1, 2, 3, 4], [0, 0, 0, 1]), ([1, 2, 6], [0, 0, 1])],
        {"fork": 1, "drift_tokens": 2, "drift_max": 2},
    ),
    "drift before the last answer": (
        10**6,
        [([1, 2], [3, 4]), ([1, 7, 3, 4, 5], [6])],
        [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 7, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1])],
        {"fork": 1, "drift_tokens": 3, "drift_max": 3},
    ),
    "drift in an earlier answer": (
        1024,
        [([1], [2, 3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 9, 4, 5, 6], [8])],
        [([1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 1, 1]), ([1, 2, 9, 4, 5, 6, 8], [0, 0, 0, 0, 0, 0, 1])],
        {"clean": 1, "fork": 1, "drift_tokens": 4, "drift_max": 4},
    ),
    "threshold 0 discards nothing": (
        0,
        [([1, 2], [3, 4]), ([1, 2, 3, 9], [6])],
        [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 6], [0, 0, 0, 0, 1])],
        {"fork": 1, "drift_tokens": 1, "drift_max": 1},
    ),
    "a negative threshold likewise": (
        -5,
        [([1, 2], [3, 4]), ([1, 2, 3, 9], [6]), ([1, 2, 3, 9, 6], [7])],
        [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 6, 7], [0, 0, 0, 0, 1, 1])],
        {"clean": 1, "fork": 1, "drift_tokens": 1, "drift_max": 1},
    ),
    "threshold 1, drift 1": (
        1,
        [([1, 2], [3, 4]), ([1, 2, 3, 9], [6])],
        [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 9, 6], [0, 0, 0, 0, 1])],
        {"fork": 1, "drift_tokens": 1, "drift_max": 1},
    ),
    "a retry forks at threshold 1": (
        1,
        [([1], [2]), ([1, 2, 3], [4]), ([1, 2, 3], [5])],
        [([1, 2, 3, 4], [0, 1, 0, 1]), ([1, 2, 3, 5], [0, 0, 0, 1])],
        {"clean": 1, "fork": 1, "drift_tokens": 1, "drift_max": 1},
    ),
    "nothing usable": (1024, [([1], [3, 4], [0, 0])], [], {"unusable_tokens": 2}),
    "one token unusable": (
        1024,
        [([1, 2], [3, 4], [1, 0]), ([1, 2, 3, 4, 5], [6])],
        [([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 0, 1])],
        {"clean": 1, "unusable_tokens": 1},
    ),
    "a removed unusable token counts once": (
        3,
        [([1, 2], [3, 4], [0, 1]), ([1, 2], [6])],
        [([1, 2, 6], [0, 0, 1])],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 1, "unusable_tokens": 1},
    ),
    "realign leaves nothing": (
        3,
        [([1, 2], [3, 4]), ([1, 2, 8, 9], [5], [0])],
        [],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 2, "unusable_tokens": 1},
    ),
    "the first row has nothing to train": (
        1024,
        [([1], [2], [0]), ([7], [8])],
        [([7, 8], [0, 1])],
        {"fork": 1, "drift_tokens": 2, "drift_max": 2, "unusable_tokens": 1},
    ),
    "sub-agents call by call": (
        1024,
        [([1], [2]), ([9], [8]), ([1, 2], [3]), ([9, 8], [7])],
        [([1, 2], [0, 1]), ([9, 8], [0, 1]), ([1, 2, 3], [0, 0, 1]), ([9, 8, 7], [0, 0, 1])],
        {"fork": 3, "drift_tokens": 7, "drift_max": 3},
    ),
    "texts of ids begin alike": (
        1024,
        [([1, 2], [3, 12]), ([1, 2, 3, 123], [4])],
        [([1, 2, 3, 123, 4], [0, 0, 1, 0, 1])],
        {"realign": 1, "drift_tokens": 1, "drift_max": 1, "discarded_tokens": 1},
    ),
    "one id for two of the same digits": (
        1024,
        [([1, 2], [40, 12]), ([1, 2, 4012, 5], [6])],
        [([1, 2, 4012, 5, 6], [0, 0, 0, 0, 1])],
        {"realign": 1, "drift_tokens": 2, "drift_max": 2, "discarded_tokens": 2},
    ),
}

# What only TRL's reconciler can be asked: an empty prompt or generation is no turn of an answer.
UNTOLD_CASES = {
    "nothing generated, then clean": (1024, [([1, 2], []), ([1, 2, 3], [6])], [([1, 2, 3, 6], [0, 0, 0, 1])]),
    "nothing generated, then drift": (1024, [([1, 2], []), ([1, 3], [6])], [([1, 3, 6], [0, 0, 1])]),
    "nothing ever generated": (1024, [([1, 2], []), ([1, 2, 3], [])], []),
    "empty first prompt": (1024, [([], [4]), ([4, 5], [6])], [([4, 5, 6], [1, 0, 1])]),
    "empty later prompt": (1024, [([1], [4]), ([], [6])], [([1, 4], [0, 1]), ([6], [1])]),
}


def by_reference(turns: list[tuple[Any, ...]], threshold: int) -> tuple[list[Any], dict[str, int]]:
    made = [
        reference.Turn(index, list(prompt), list(output), *_mask_and_logprobs(output, *mask))
        for index, (prompt, output, *mask) in enumerate(turns)
    ]
    rows, counts = reference.reconcile(made, threshold)
    return [row.arrays() for row in rows if any(row.mask)], counts


def by_trl(turns: list[tuple[Any, ...]], threshold: int) -> tuple[list[Any], dict[str, float]]:
    records = []
    for prompt, output, *mask in turns:
        kept, logprobs = _mask_and_logprobs(output, *mask)
        records.append(TurnRecord(list(prompt), list(output), [float(value) for value in logprobs], kept))
    sequences, tally = _chain_to_sequences(records, "r", threshold)
    rows = [
        (
            np.asarray(sequence.input_ids, np.int64),
            np.asarray(sequence.completion_mask, np.int64),
            np.asarray(sequence.old_log_probs, np.float32),
        )
        for sequence in sequences
    ]
    return rows, tally


def by_core(turns: list[tuple[Any, ...]], threshold: int) -> turnloom.Rollout:
    told = []
    for prompt, output, *mask in turns:
        kept, logprobs = _mask_and_logprobs(output, *mask)
        texts = [float(value) if keep else None for keep, value in zip(kept, logprobs, strict=True)]
        told.append(turn(prompt, output, texts))
    return turnloom.parse_run(answer(*told), fork_threshold_tokens=threshold)


def _mask_and_logprobs(output: list[int], mask: list[int] | None = None) -> tuple[list[int], list[np.float32]]:
    mask = [1] * len(output) if mask is None else mask
    logprobs = [
        np.float32(-0.1 - token / 7) if keep else np.float32(0) for token, keep in zip(output, mask, strict=True)
    ]
    return mask, logprobs


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    threshold, turns, rows, counts = CASES[name]
    rollout = by_core(turns, threshold)
    assert [(row.input_ids.tolist(), row.completion_mask.tolist()) for row in rollout.rows] == rows
    expected = counts | {"transitions": max(len(turns) - 1, 0)}
    assert {count: value for count in rollout.drift.__slots__ if (value := getattr(rollout.drift, count))} == {
        count: value for count, value in expected.items() if value
    }
    reference_rows, reference_counts = by_reference(turns, threshold)
    trl_rows, tally = by_trl(turns, threshold)
    assert rows_of(rollout.rows) == rows_of(reference_rows) == rows_of(trl_rows)
    assert tally == {count: expected.get(count, 0) for count in tally}
    assert reference_counts == {count: expected.get(count, 0) for count in reference_counts}


@pytest.mark.parametrize("name", UNTOLD_CASES)
def test_the_reference_is_trl_where_no_answer_leads(name: str) -> None:
    threshold, turns, rows = UNTOLD_CASES[name]
    reference_rows, counts = by_reference(turns, threshold)
    trl_rows, tally = by_trl(turns, threshold)
    assert [(ids.tolist(), mask.tolist()) for ids, mask, _ in trl_rows] == rows
    assert rows_of(reference_rows) == rows_of(trl_rows)
    assert tally == {count: counts[count] for count in tally}


@given(conversations(), THRESHOLDS)
def test_any_conversation(told: list[Told], threshold: int) -> None:
    body = answer(*(turn(call.prompt, call.output, call.logprobs) for call in told))
    rollout = turnloom.parse_run(body, fork_threshold_tokens=threshold)
    turns, defects, unusable, positive = reference._take_turns(reference._output_items(body.decode()))
    as_trl = [(one.prompt, one.output, one.mask, one.logprobs) for one in turns]
    sequences, tally = _chain_to_sequences(
        [TurnRecord(prompt, output, logprobs, mask) for prompt, output, mask, logprobs in as_trl], "r", threshold
    )
    assert [row.input_ids.tolist() for row in rollout.rows] == [sequence.input_ids for sequence in sequences]
    assert [row.completion_mask.tolist() for row in rollout.rows] == [
        sequence.completion_mask for sequence in sequences
    ]
    assert [row.old_log_probs.tobytes() for row in rollout.rows] == [
        np.asarray(sequence.old_log_probs, np.float32).tobytes() for sequence in sequences
    ]
    rows, counts = reference.reconcile(turns, threshold)
    assert rows_of(rollout.rows) == rows_of(row.arrays() for row in rows if any(row.mask))
    for count, value in {**tally, **counts, "unusable_tokens": unusable, "positive_logprobs": positive}.items():
        assert getattr(rollout.drift, count) == value, count
    assert len(rollout.defects) == len(defects)


@given(conversations(), THRESHOLDS, BRANCHES)
def test_every_generated_token_is_accounted_for(told: list[Told], threshold: int, branches: Any) -> None:
    body = answer(*(turn(call.prompt, call.output, call.logprobs) for call in told))
    rollout = turnloom.parse_run(body, fork_threshold_tokens=threshold, branches=branches)
    trained = sum(int(row.completion_mask.sum()) for row in rollout.rows)
    duplicates = sum(len(told[defect.item_index].output) for defect in rollout.defects)
    lost = rollout.drift.discarded_tokens + rollout.drift.unusable_tokens + duplicates
    assert trained + lost == sum(len(call.output) for call in told)
    for row in rollout.rows:
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        assert set(row.completion_mask.tolist()) == {0, 1}
        assert not row.old_log_probs[row.completion_mask == 0].any()
    if threshold <= 0:
        assert rollout.drift.discarded_tokens == 0


@given(conversations(), THRESHOLDS, BRANCHES)
def test_a_turn_says_where_its_tokens_stand(told: list[Told], threshold: int, branches: Any) -> None:
    body = answer(*(turn(call.prompt, call.output, call.logprobs) for call in told))
    rollout = turnloom.parse_run(body, fork_threshold_tokens=threshold, branches=branches)
    covered = [np.zeros_like(row.completion_mask) for row in rollout.rows]
    for one in rollout.turns:
        call = told[one.item_index]
        assert (one.prompt_tokens, one.output_tokens) == (len(call.prompt), len(call.output))
        assert one.start <= one.end <= one.start + one.output_tokens
        if one.row is not None:
            row = rollout.rows[one.row]
            assert row.input_ids[one.start : one.end].tolist() == call.output[: one.end - one.start]
            covered[one.row][one.start : one.end] += 1
    places = [(one.row, one.start, one.end) for one in rollout.turns]
    for number, (row, times) in enumerate(zip(rollout.rows, covered, strict=True)):
        assert row.turn_spans.tolist() == spans_of(places, number, row.completion_mask)
        assert (row.rollout_id, row.turn_count) == (rollout.id, len(rollout.turns))
        assert times.max(initial=0) <= 1
        assert (times >= row.completion_mask).all(), "a trained token that no turn generated"
    assert rollout.generated_ids() == [token for one in rollout.turns for token in told[one.item_index].output]


@pytest.mark.parametrize("comma", [",", ", "])
@pytest.mark.parametrize("other", ["123", "12345", "1235", "9234"])
def test_a_difference_at_any_place_of_a_long_text(comma: str, other: str) -> None:
    """Texts are compared in blocks and words of some bytes: each place within them, and around their ends."""

    def rollout_of(prompt: list[str]) -> turnloom.Rollout:
        told = turn(Raw(f"[{comma.join(prompt)}]"), [8], [-1])
        return turnloom.parse_run(answer(first, told), fork_threshold_tokens=0)

    held = ["1234"] * 1_800
    first = turn(Raw(f"[{','.join(held)}]"), [7], [-1])
    for place in (*range(20), *range(675, 690), *range(810, 830), *range(1_360, 1_370), *range(1_630, 1_645), 1_799):
        changed = rollout_of([*held[:place], other, *held[place + 1 :]])
        assert [one.matched_tokens for one in changed.turns] == [0, place]
        assert changed.rows[1].input_ids.tolist() == [1234] * place + [int(other)] + [1234] * (1_799 - place) + [8]
        ended = rollout_of(held[: place + 1])
        assert ended.turns[1].matched_tokens == place + 1
        assert ended.rows[1].input_ids.tolist() == [1234] * (place + 1) + [8]


@pytest.mark.parametrize("seed", range(12))
def test_long_conversations(seed: int) -> None:
    """A thousand ids a turn and every kind of change, in one piece and in pieces of some size."""
    choose = random.Random(seed)
    talk = corpus.Conversation(f"long {seed}")
    changes = ("clean", "clean", "realign", "fork", "fresh")
    items = [talk.turn(choose.randrange(1, 1_000), choose.randrange(1, 600))]
    items += [talk.turn(choose.randrange(1, 400), choose.randrange(1, 600), choose.choice(changes)) for _ in range(12)]
    body = b"".join(corpus.answer(items))
    for threshold in (0, 2, 100):
        expected = rows_of(training_rows(body, fork_threshold=threshold))
        for size in (len(body), choose.randrange(1, 10_000), choose.randrange(1, 100)):
            rollout = feed(body, range(size, len(body), size), fork_threshold_tokens=threshold)
            assert rows_of(rollout.rows) == expected


def test_the_last_tokens_of_a_long_answer_drift() -> None:
    answer_ids = list(range(1000, 21_000))
    body = answer(turn([1], answer_ids), turn([1, *answer_ids[:-3], 7], list(range(61))))
    rollout = turnloom.parse_run(body)
    assert rollout.turns[1].transition == "realign"
    assert rollout.drift.discarded_tokens == 3
    assert int(rollout.rows[0].completion_mask.sum()) == 20_000 - 3 + 61
    lossless = turnloom.parse_run(body, fork_threshold_tokens=0)
    assert sum(int(row.completion_mask.sum()) for row in lossless.rows) == 20_061


def test_best_branches_give_each_sub_agent_a_row() -> None:
    """Interleaved sub-agents: four rows in TRL's way, two when a prompt may continue any open row."""
    body = answer(turn([1], [2]), turn([9], [8]), turn([1, 2, 5], [3]), turn([9, 8, 5], [7]))
    linear, best = (turnloom.parse_run(body, branches=branches) for branches in ("linear", "best"))
    assert [row.input_ids.tolist() for row in linear.rows] == [[1, 2], [9, 8], [1, 2, 5, 3], [9, 8, 5, 7]]
    assert [row.input_ids.tolist() for row in best.rows] == [[1, 2, 5, 3], [9, 8, 5, 7]]
    assert [turn.row for turn in best.turns] == [0, 1, 0, 1]
    assert [turn.transition for turn in best.turns] == [None, "fork", "clean", "clean"]
    for held in (linear, best):
        assert sum(int(row.completion_mask.sum()) for row in held.rows) == 4
    with pytest.raises(turnloom.ConfigError, match="branches='tree'"):
        turnloom.parse_run(body, branches="tree")


@given(conversations(max_turns=12), THRESHOLDS)
def test_best_branches_as_the_reference_has_them(told: list[Told], threshold: int) -> None:
    body = answer(*(turn(call.prompt, call.output, call.logprobs) for call in told))
    assert_as_reference(body, threshold, "best")


def test_a_prompt_continues_one_of_64_open_rows() -> None:
    """Of more rows the one that nobody continued for longest is closed: its agent forks when it comes back."""
    begun = [turn([agent, 7], [agent, 8]) for agent in range(100, 170)]
    again = [turn([agent, 7, agent, 8, 9], [10]) for agent in range(100, 170)]
    body = answer(*begun, begun[0], *again)
    assert_as_reference(body, branches="best")
    rollout = turnloom.parse_run(answer(*begun[:64], *again[:64]), branches="best")
    assert (rollout.drift.fork, rollout.drift.clean, len(rollout.rows)) == (63, 64, 64)
    rollout = turnloom.parse_run(answer(*begun[:65], again[0]), branches="best")
    assert (rollout.drift.fork, rollout.drift.clean, len(rollout.rows)) == (65, 0, 66)
