"""Which turn and which rollout a row's tokens are of, and values spread over them."""

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnloom
from rollouts import Raw, answer, turn
from strategies import BRANCHES, THRESHOLDS, Told, conversations
from turnloom import ConfigError, TrainingRow, spread

# The second turn goes on from the first, the third forks; of the second one logprob is unusable.
BODY = answer(turn([1], [2, 3]), turn([1, 2, 3, 4], [5, 6], [Raw("null"), Raw("-1")]), turn([9], [8]))


def test_a_row_carries_its_turns_and_its_rollout() -> None:
    rollout = turnloom.parse_run(BODY)
    first, second = rollout.rows
    assert first.turn_spans.tolist() == [[0, 1, 3], [1, 4, 6]]
    assert second.turn_spans.tolist() == [[2, 1, 2]]
    assert (first.rollout_id, second.rollout_id, first.turn_count) == (rollout.id, rollout.id, 3)
    masked = turnloom.parse_run(BODY[:-1] + b',"mask_sample":true}')
    assert [row.rollout_id for row in masked.unscored_rows] == [masked.id] * 2


def test_a_turn_that_is_not_trained_has_no_span() -> None:
    body = answer(turn([1], [2], [Raw("null")]), turn([1, 2, 3], [4]), turn([1, 2, 3, 5], [6]))
    (row,) = turnloom.parse_run(body).rows
    assert (row.turn_spans.tolist(), row.completion_mask.tolist()) == ([[2, 4, 5]], [0, 0, 0, 0, 1])


def test_a_row_made_by_hand_needs_the_three_arrays_alone() -> None:
    row = TrainingRow(np.array([1]), np.array([1]), np.array([-1.0], np.float32))
    assert (row.turn_spans.shape, row.turn_spans.dtype, row.rollout_id, row.turn_count) == ((0, 3), np.int64, "", None)
    with pytest.raises(AttributeError):
        row.rollout_id = "other"  # type: ignore[misc]


def test_rows_pickle() -> None:
    (row, _) = turnloom.parse_run(BODY).rows
    again = pickle.loads(pickle.dumps(row))
    assert (again.rollout_id, again.turn_spans.tolist()) == (row.rollout_id, row.turn_spans.tolist())
    assert again != row  # arrays do not compare to one truth


CHILD = """
import os, sys, random, turnloom
random.seed(0)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, turnloom.parse_run(sys.argv[1]).id.encode())
    os._exit(0)
os.wait()
print(turnloom.parse_run(sys.argv[1]).id, os.read(reader, 99).decode())
"""


def test_no_two_rollouts_have_one_id() -> None:
    random.seed(0)
    ids = [turnloom.parse_run(BODY).id for _ in range(100)]
    ids += [turnloom.Rollout("timeout").id for _ in range(100)]
    environment = os.environ | {"PYTHONPATH": str(Path(turnloom.__file__).parents[1])}
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", CHILD, BODY.decode()]
        ids += subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert len(set(ids)) == len(ids) == 204
    assert {len(one) for one in ids} == {32}


# Spreading


def test_one_value_per_rollout() -> None:
    rollouts = [turnloom.parse_run(BODY), turnloom.parse_run(answer(turn([7], [8])))]
    rows = [row for rollout in rollouts for row in rollout.rows]
    spreads = spread({rollouts[0].id: -0.5, rollouts[1].id: 2}, rows)
    assert [one.tolist() for one in spreads] == [[0, -0.5, -0.5, 0, 0, -0.5], [0, -0.5], [0, 2]]
    assert {one.dtype for one in spreads} == {np.dtype(np.float32)}
    assert not np.signbit(spreads[0][0])


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: np.array(values, np.float16)])
def test_one_value_per_turn(kind: Any) -> None:
    rollout = turnloom.parse_run(BODY)
    spreads = spread({rollout.id: kind([1.5, -2.0, 3.0])}, rollout.rows)
    assert [one.tolist() for one in spreads] == [[0, 1.5, 1.5, 0, 0, -2], [0, 3]]
    assert not np.signbit(spreads[0][4])  # its logprob was unusable


def test_spread_values_are_laid_out_with_their_rows() -> None:
    rollout = turnloom.parse_run(BODY)
    values = spread({rollout.id: [1.5, -2.0, 3.0]}, rollout.rows)
    assert turnloom.pad(rollout.rows, values=values).values.tolist() == [[0, 1.5, 1.5, 0, 0, -2], [0, 3, 0, 0, 0, 0]]
    cut = turnloom.pack(rollout.rows, values=values, max_length=2, on_overflow="truncate")
    assert cut.values.tolist() == [0, 1.5, 0, 3]
    halves = turnloom.pad_prompt_completion(rollout.rows, values=values)
    assert halves.values.tolist() == [[1.5, 1.5, 0, 0, -2], [3, 0, 0, 0, 0]]


def test_values_without_a_home_are_refused() -> None:
    rollout = turnloom.parse_run(BODY)
    with pytest.raises(ConfigError, match=f"row 0 is of the rollout '{rollout.id}', for which there is no value"):
        spread({"other": 1.0}, rollout.rows)
    for wrong in ([], [1.0], [1.0, 2.0], [1.0] * 4):
        with pytest.raises(
            ConfigError, match=f"row 0: the rollout '{rollout.id}' has 3 turns, but {len(wrong)} values"
        ):
            spread({rollout.id: wrong}, rollout.rows)
    for wrong in ("much", {"a": 1.0}, [[1.0], [2.0, 3.0]]):
        with pytest.raises(ConfigError, match="are not numbers"):
            spread({rollout.id: wrong}, rollout.rows)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"the shape \(3, 1\)"):
        spread({rollout.id: np.ones((3, 1))}, rollout.rows)
    assert spread({}, []) == []


@pytest.mark.parametrize("wrong", [None, float("nan"), float("-inf"), 1e39, [1.0, None, 2.0], [1.0, 2.0, 1e300]])
def test_no_reward_is_no_value(wrong: Any) -> None:
    """Numpy makes NaN of None; one NaN ends a training."""
    rollout = turnloom.parse_run(BODY)
    with pytest.raises(ConfigError, match=f"the value of the rollout '{rollout.id}'.* finite"):
        spread({rollout.id: wrong}, rollout.rows)
    with pytest.raises(
        ConfigError, match="turn 1, is not" if isinstance(wrong, list) and wrong[1] is None else "finite"
    ):
        spread({rollout.id: np.array(wrong, np.float64)}, rollout.rows)


def test_rows_made_by_hand_may_be_spread_over() -> None:
    mask = np.array([0, 1, 1, 0, 1])
    row = TrainingRow(np.arange(5), mask, np.zeros(5, np.float32), rollout_id="a")
    assert spread({"a": 0.5}, [row])[0].tolist() == [0, 0.5, 0.5, 0, 0.5]
    with pytest.raises(ConfigError, match="row 0 has trained tokens that are in none of its turn_spans"):
        spread({"a": [0.5]}, [row])
    spans = np.array([[0, 1, 3], [3, 4, 5]])
    row = TrainingRow(np.arange(5), mask, np.zeros(5, np.float32), turn_spans=spans, rollout_id="a")
    assert spread({"a": [1, 2, 3, 4]}, [row])[0].tolist() == [0, 1, 1, 0, 4]
    with pytest.raises(ConfigError, match="at least 4 turns, but 3 values"):
        spread({"a": [1, 2, 3]}, [row])


@given(conversations(), THRESHOLDS, BRANCHES, st.data())
def test_each_trained_token_has_the_value_of_its_turn(
    told: list[Told], threshold: int, branches: Any, data: st.DataObject
) -> None:
    body = answer(*(turn(call.prompt, call.output, call.logprobs) for call in told))
    rollout = turnloom.parse_run(body, fork_threshold_tokens=threshold, branches=branches)
    per_turn = [float(number + 1) for number in range(len(rollout.turns))]
    expected = [np.zeros(len(row.input_ids)) for row in rollout.rows]
    for value, one in zip(per_turn, rollout.turns, strict=True):
        if one.row is not None:
            expected[one.row][one.start : one.end] = value
    for row, values in zip(rollout.rows, expected, strict=True):
        values[row.completion_mask == 0] = 0
    assert [one.tolist() for one in spread({rollout.id: per_turn}, rollout.rows)] == [one.tolist() for one in expected]
    value = data.draw(st.floats(-5, 5, width=32))
    same = spread({rollout.id: [value] * len(per_turn)}, rollout.rows)
    assert [one.tolist() for one in spread({rollout.id: value}, rollout.rows)] == [one.tolist() for one in same]
