"""Rows and groups, without a trainer."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

import turnloom
from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout
from turnloom import Turn
from turnloom._groups import DenseIds, check_rows, only_members, positions
from turnloom._groups._rows import agent_for, with_prompt
from turnloom._groups._scoring import ROLLOUTS_WITHOUT_ROWS, WantedTurns, train_only

# Rows


def row(**fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "hi"}, **fields}


def test_all_wrong_rows_are_told_at_once() -> None:
    rows = [row(), {"answer": 4}, *(row(agent_ref={"name": "chess"}) for _ in range(11)), row()]
    with pytest.raises(turnloom.ConfigError) as caught:
        check_rows(rows, ["code", "math"])
    told = str(caught.value)
    assert told.startswith("12 of 14 rows")
    assert "row 1: the row's responses_create_params is missing" in told
    assert "row 2: agent_ref.name is 'chess', and there is no such agent; agents: code, math" in told
    assert "row 10:" in told
    assert "row 11:" not in told
    assert told.endswith("and 2 more")


def test_sound_rows_and_streams_are_let_through() -> None:
    check_rows([row(), row(agent_ref={"name": "math"})], ["code", "math"])
    check_rows(iter([{"answer": 4}]), ["code"])
    with pytest.raises(turnloom.ConfigError, match="no rows"):
        check_rows([], ["code"])


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (DatasetDict(train=Dataset.from_list([row()])), r"a DatasetDict of train, not of rows.*load_dataset\(.*split="),
        (
            {"train": [row()], "test": []},
            r"a dict of train, test, not of rows: choose a split, as in dataset\['",
        ),
        ({}, "a dict of nothing, not of rows"),
        (None, "dataset=None: something with rows is needed"),
        ("rows.jsonl", "dataset='rows.jsonl': something with rows"),
        (7, "dataset=7: something with rows"),
        (
            [row(), None, "{}"],
            "2 of 3 rows cannot.*\n  row 1: a row is a mapping.* not NoneType.*\n  row 2: .* not str",
        ),
    ],
)
def test_what_has_no_rows_is_told(dataset: Any, said: str) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        check_rows(dataset, ["code"])


@pytest.mark.parametrize("wrong", [None, "{}", 7])
def test_a_stream_of_what_are_no_rows_is_refused_row_by_row(wrong: Any) -> None:
    with pytest.raises(turnloom.ConfigError, match=r"a row is a mapping"):
        with_prompt(wrong)


def test_the_agent_of_a_row_that_was_never_sent() -> None:
    agents = ["code", "math"]
    assert agent_for(row(agent_ref={"name": "math"}), agents) == "math"
    assert agent_for({"nemo_gym_row": json.dumps(row())}, agents) == "code"
    assert agent_for(row(agent_ref={"name": "chess"}), agents) is None
    assert agent_for({"nemo_gym_row": "{"}, agents) is None


def test_a_row_has_a_prompt_its_own_or_what_the_agent_is_asked() -> None:
    assert with_prompt(row(answer=4)) == row(answer=4, prompt=[{"role": "user", "content": "hi"}])
    assert with_prompt(row(prompt="mine"))["prompt"] == "mine"
    assert with_prompt(row(prompt=None))["prompt"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("start", [0, 2, 7])
def test_rows_have_their_positions_also_after_a_resume_and_over_epochs(start: int) -> None:
    dataset = [row(answer=number) for number in range(3)]
    numbered = positions(iter(dataset[start % 3 :]), dataset, start=start)
    taken = [(position, each["answer"]) for position, each in (next(numbered) for _ in range(8))]
    assert taken == [(number % 3, number % 3) for number in range(start, start + 8)]


def test_a_dataset_that_can_be_read_only_once_is_told_at_its_end() -> None:
    once = iter([row()])
    numbered = positions(once, once, start=0)
    assert next(numbered) == (0, row())
    with pytest.raises(turnloom.ConfigError, match="can be read only once"):
        next(numbered)


# Groups


def numbers_of(groups: list[tuple[int, bool]]) -> list[int]:
    """The numbers given to the groups with rows, scored in this order."""
    ids = DenseIds()
    numbered = [(ids.number(group_id, has_rows=has_rows), has_rows) for group_id, has_rows in groups]
    return [number for number, has_rows in numbered if has_rows]


def test_a_failed_group_leaves_no_hole() -> None:
    assert numbers_of([(0, True), (1, False), (2, True), (3, False), (4, False), (5, True), (6, True)]) == [0, 1, 2, 3]


@given(st.lists(st.booleans(), max_size=12).flatmap(lambda groups: st.permutations(list(enumerate(groups)))))
def test_resuming_skips_no_group_and_repeats_no_more_than_failed(groups: list[tuple[int, bool]]) -> None:
    """Whenever training stops, in whatever order the groups were scored."""
    ids = DenseIds()
    trained: dict[int, int] = {}
    scored: set[int] = set()
    for group_id, has_rows in groups:
        number = ids.number(group_id, has_rows=has_rows)
        scored.add(group_id)
        if has_rows:
            assert number not in trained
            trained[number] = group_id
        resumed_at = next(number for number in range(len(groups) + 1) if number not in trained)
        assert set(range(resumed_at)) <= scored, "a group before the place was never seen"
        repeated = [trained[number] for number in range(resumed_at) if trained[number] >= resumed_at]
        assert len(repeated) <= sum(not has_rows for group_id, has_rows in groups if group_id in scored)


@dataclass
class Group:
    prompts: list[str]
    reward_kwargs: dict[str, list[int]]
    rewards: list[float | None]
    unused: list[int]
    group_id: int = 3


def test_members_are_taken_out_of_every_parallel_list() -> None:
    group = Group(["a", "b", "c"], {"x": [1, 2, 3], "y": [4, 5, 6]}, [1.0, None, 0.0], [])
    assert only_members(group, [0, 2]) == Group(["a", "c"], {"x": [1, 3], "y": [4, 6]}, [1.0, 0.0], [])
    assert group.rewards == [1.0, None, 0.0]


def first_turn(turn: Turn) -> bool:
    return turn.item_index == 0


def second_turn(turn: Turn) -> bool:
    return turn.item_index == 1


def no_turn(turn: Turn) -> bool:
    return False


def test_only_the_wanted_turns_are_trained() -> None:
    held = rollout(CLEAN)
    (trained,) = train_only(held.rows, held.turns, second_turn)
    assert trained.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert trained.completion_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert trained.old_log_probs.tolist() == [0, 0, 0, 0, 0, -1.0]
    assert held.rows[0].completion_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert (trained.completion_mask.dtype, trained.old_log_probs.dtype) == (np.int64, np.float32)
    assert (trained.turn_spans.tolist(), held.rows[0].turn_spans.tolist()) == ([[1, 5, 6]], [[0, 2, 4], [1, 5, 6]])
    assert (trained.rollout_id, trained.turn_count) == (held.id, 2)
    assert turnloom.spread({held.id: [0.5, -2.0]}, [trained])[0].tolist() == [0, 0, 0, 0, 0, -2.0]


def test_rows_with_nothing_left_to_train_are_dropped() -> None:
    held = rollout(FORK)
    (trained,) = train_only(held.rows, held.turns, second_turn)
    assert trained.input_ids.tolist() == [7, 6]
    (trained,) = train_only(held.rows, held.turns, first_turn)
    assert trained.input_ids.tolist() == [1, 2, 3, 4]
    assert train_only(held.rows, held.turns, no_turn) == ()


def test_a_function_that_wants_no_turn_of_anything_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    held, one_turn = rollout(CLEAN), rollout(CLEAN[:1])
    wanted = WantedTurns(second_turn)
    for _ in range(3):  # it wants one now and then
        for _ in range(ROLLOUTS_WITHOUT_ROWS - 1):
            assert wanted.rows_of(one_turn) == ()
        assert len(wanted.rows_of(held)) == 1
    assert not caplog.messages
    for _ in range(3 * ROLLOUTS_WITHOUT_ROWS):
        assert wanted.rows_of(one_turn) == ()
    (warning,) = caplog.messages
    assert ROLLOUTS_WITHOUT_ROWS == 64
    assert "train_turn_fn has refused every turn of the last 64 rollouts" in warning


def test_generated_ids_are_those_of_all_turns_in_order() -> None:
    for turns in (CLEAN, FORK, REALIGN):
        assert rollout(turns).generated_ids() == [3, 4, 6]
    assert failed().generated_ids() == []
