"""Whole answers: the project's own corpus, what NeMo Gym really sent, and long rollouts."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

import make_corpus
import turnloom
from conftest import RealBody
from rollouts import assert_as_reference, everything, feed, rows_of
from turnloom._gym import turns_from_agent_output
from turnloom.bench import Shape, made_body
from turnloom.bench._baseline import training_rows

DATA = Path(__file__).parent / "data"
SMALL_BODIES = sorted(path.name for path in DATA.glob("*.json"))

# file: (tokens of each row, transitions, codes of defects)
FACTS: dict[str, tuple[list[int], list[str], list[str]]] = {
    "clean.json": ([59], ["clean"] * 3, []),
    "drift.json": ([71], ["realign", "clean", "realign", "clean"], []),
    "forked.json": ([34, 57, 25], ["clean", "fork", "realign", "fork", "clean"], []),
    "indented.json": ([59], ["clean"] * 3, []),
    "spaced.json": ([59], ["clean"] * 3, []),
    "no_ids.json": ([], [], []),
    "odd_logprobs.json": ([35], ["clean"], []),
    "overflow.json": ([34], ["clean"], []),
    "parallel_calls.json": ([45], ["clean"], []),
    "reasoning_last.json": ([35], ["clean"], []),
    "string_ids.json": ([27], ["clean"], []),
    "sub_agents.json": ([13, 13, 20, 20], ["fork"] * 3, []),
    "defects.json": (
        [31],
        ["clean"],
        [
            *("duplicate_turn", "empty", "missing", "not_an_id", "not_an_id", "not_an_id", "length_mismatch"),
            *("not_a_logprob", "not_a_list", "missing"),
        ],
    ),
}


# The project's own corpus


def test_the_generator_makes_the_corpus_byte_for_byte() -> None:
    made = make_corpus.small_bodies()
    assert sorted(made) == SMALL_BODIES == sorted(FACTS)
    for name, body in made.items():
        assert body == (DATA / name).read_bytes(), name


@pytest.mark.parametrize("name", SMALL_BODIES)
def test_small_bodies(name: str) -> None:
    body = (DATA / name).read_bytes()
    tokens, transitions, codes = FACTS[name]
    rollout = turnloom.parse_run(body)
    assert [len(row.input_ids) for row in rollout.rows] == tokens
    assert [one.transition for one in rollout.turns[1:]] == transitions
    assert [defect.code for defect in rollout.defects] == codes
    assert rollout.outcome == ("no_tokens" if not tokens else "ok")
    assert rollout.truncated == (name == "overflow.json")
    for threshold in (0, 1, 2, 3, 1024):
        assert_as_reference(body, threshold)
        assert_as_trl(body, threshold)


def test_one_rollout_in_three_styles() -> None:
    compact, spaced, indented = (
        everything(feed((DATA / f"{name}.json").read_bytes())) for name in ("clean", "spaced", "indented")
    )
    assert compact == spaced == indented


@pytest.mark.parametrize("name", ["small", "mid", "single", "forked", "spaced", "indented"])
def test_long_bodies(name: str) -> None:
    body = make_corpus.body(name)
    assert rows_of(turnloom.parse_run(body).rows) == rows_of(training_rows(body))


def test_the_sha256_of_a_body_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_corpus, "BODIES", tmp_path / "bodies")
    body = make_corpus.body("small")
    assert body == made_body("small")
    assert hashlib.sha256(body).hexdigest() == make_corpus.committed_sha256()["small"]
    (tmp_path / "bodies" / "small.json").write_bytes(body + b"\n")
    with pytest.raises(ValueError, match=r"small\.json"):
        make_corpus.body("small")


def test_many_turns_of_a_long_context() -> None:
    """128 turns that end at 69,000 tokens: each prompt is compared, none is parsed twice."""
    body = made_body("128 turns", Shape(128, first=2_000, context=300, generated=225))
    rollout = turnloom.parse_run(body)
    assert rollout.drift == turnloom.Drift(clean=127, transitions=127)
    assert [len(row.input_ids) for row in rollout.rows] == [2_000 + 127 * 525 + 225]


# What NeMo Gym really sent


def test_a_real_answer_is_what_its_index_says(real_body: RealBody) -> None:
    rollout = turnloom.parse_run(real_body.content, fork_threshold_tokens=0)
    facts = real_body.facts
    assert len(rollout.turns) == facts["turns"]
    rows = rollout.rows or rollout.unscored_rows
    assert [len(row.input_ids) for row in rows] == [run["tokens"] for run in facts["segments"]]
    assert rollout.defects == ()
    if facts.get("status", 200) != 200:
        assert rollout.outcome == "agent_failure"
        return
    assert rollout.outcome == expected_outcome(facts)
    assert rollout.reward == (facts["reward"] if rollout.outcome == "ok" else None)
    if "items" in facts:
        carriers = {one.item_index for one in rollout.turns}
        items = [item["type"] + "*" * (index in carriers) for index, item in enumerate(rollout.output)]
        assert items == facts["items"]
        assert sum(int(row.completion_mask.sum()) for row in rows) == facts["generated_tokens"]
        assert rollout.truncated == (facts["incomplete"] is not None)


def expected_outcome(facts: dict[str, object]) -> str:
    if facts.get("mask_sample"):
        return "masked"
    if not facts["turns"]:
        return "no_tokens"
    return "no_reward" if facts["reward"] is None else "ok"


@pytest.mark.parametrize("threshold", [0, 1024])
def test_a_real_answer_gives_what_the_reference_gives(real_body: RealBody, threshold: int) -> None:
    assert_as_reference(real_body.content, threshold)
    assert_as_trl(real_body.content, threshold)


def test_a_real_answer_loses_no_item(real_body: RealBody) -> None:
    rollout = turnloom.parse_run(real_body.content)
    document = json.loads(real_body.content)
    if isinstance(document, dict) and "response" in document:
        for item in document["response"]["output"]:
            for field in ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"):
                item.pop(field, None)
    assert rollout.document == document
    assert isinstance(rollout.messages(), list)
    assert everything(feed(real_body.content, range(0, len(real_body.content), 1_000))) == everything(rollout)


def test_there_are_real_answers(bodies_folder: Path) -> None:
    """Lest an empty folder pass for all of them."""
    assert len(list((bodies_folder / "real").glob("*.response.json"))) >= 25
    assert len(list((bodies_folder / "gym_repo").glob("*.jsonl"))) >= 5


def assert_as_trl(body: bytes, threshold: int) -> None:
    """The turns that Python code makes of the answer, by TRL's reconciler, are the rows of the core."""
    document = json.loads(body)
    turns = turns_from_agent_output(document) if isinstance(document, dict) else []
    rollout = turnloom.parse_run(body, fork_threshold_tokens=threshold)
    assert [len(turn.prompt_ids) for turn in turns] == [turn.prompt_tokens for turn in rollout.turns]
    assert [len(turn.output_ids) for turn in turns] == [turn.output_tokens for turn in rollout.turns]
    records = [TurnRecord(turn.prompt_ids, turn.output_ids, turn.output_log_probs, turn.output_mask) for turn in turns]
    sequences, tally = _chain_to_sequences(records, "r", threshold)
    assert rows_of(rollout.rows or rollout.unscored_rows) == rows_of(
        (
            np.asarray(sequence.input_ids, np.int64),
            np.asarray(sequence.completion_mask, np.int64),
            np.asarray(sequence.old_log_probs, np.float32),
        )
        for sequence in sequences
    )
    assert tally == {count: getattr(rollout.drift, count) for count in tally}
