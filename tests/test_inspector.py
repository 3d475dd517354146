"""An inspection tells what the parser tells, and keeps what the parser throws away."""

import itertools
import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

import make_corpus
import turnloom
from conftest import RealBody
from rollouts import answer, rows_of, turn
from strategies import BRANCHES, THRESHOLDS, Told, conversations
from turnloom.inspector import Inspection, inspect_run


def rebuilt(inspection: Inspection) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """The training rows that the segments of an inspection tell: ids, mask, logprobs."""
    rows: list[list[int]] = []
    for row in inspection.rows:
        kept = [segment for segment in row.segments if segment.start is not None]
        other, repeated = row.repeats or (0, 0)
        ends = list(itertools.accumulate((len(one.ids) for one in kept), initial=repeated))
        assert [segment.start for segment in kept] == ends[:-1]
        assert ends[-1] == row.tokens
        rows.append([*(rows[other][:repeated] if repeated else ()), *(token for one in kept for token in one.ids)])
        if row.row is not None:
            mask = [int(one.kind == "trained") for one in kept for _ in one.ids]
            log_probs = [value for one in kept for value in one.log_probs or [0.0] * len(one.ids)]
            yield rows[-1], [0] * repeated + mask, [0.0] * repeated + log_probs


def assert_tells_what_the_parser_tells(body: bytes, **settings: object) -> Inspection:
    rollout = turnloom.parse_run(body, **settings)
    inspection = inspect_run(body, **settings)
    rows = rollout.rows or rollout.unscored_rows
    found = list(rebuilt(inspection))
    if rows:
        assert [(ids, mask) for ids, mask, _ in found] == [(ids, mask) for ids, mask, *_ in rows_of(rows)]
        for row, (_, _, log_probs) in zip(rows, found, strict=True):
            assert row.old_log_probs.tolist() == np.array(log_probs, np.float32).tolist()
    assert tuple(one.facts for one in inspection.turns) == rollout.turns
    assert inspection.count("discarded") == rollout.drift.discarded_tokens
    assert inspection.count("unusable") == rollout.drift.unusable_tokens
    told = [message for one in inspection.turns for message in one.messages] + inspection.messages_after
    assert told == rollout.messages()
    for one in inspection.turns:
        assert (one.divergence is None) == (one.facts.drift_tokens == 0)
        if one.divergence:
            held, prompt = one.divergence.held, one.divergence.prompt
            assert held.tokens == one.facts.drift_tokens
            assert prompt.tokens == one.facts.prompt_tokens - one.facts.matched_tokens
            assert held.before == prompt.before
            assert held.ids[:1] != prompt.ids[:1]
    assert json.loads(json.dumps(inspection.to_json(), allow_nan=False))["outcome"] == rollout.outcome
    return inspection


@given(conversations(), THRESHOLDS, BRANCHES)
def test_every_conversation(told: list[Told], threshold: int, branches: str) -> None:
    body = answer(*(turn(one.prompt, one.output, one.logprobs) for one in told))
    assert_tells_what_the_parser_tells(body, fork_threshold_tokens=threshold, branches=branches)


@pytest.mark.parametrize("branches", ["linear", "best"])
@pytest.mark.parametrize("threshold", [0, 1024])
def test_real_bodies(real_body: RealBody, threshold: int, branches: str) -> None:
    if real_body.facts.get("status", 200) == 200:
        assert_tells_what_the_parser_tells(
            real_body.content, fork_threshold_tokens=threshold, branches=branches, honor_mask_sample=False
        )


def test_a_long_body() -> None:
    assert_tells_what_the_parser_tells(make_corpus.body("forked"))


def test_of_two_rows_that_fit_a_prompt_the_newest_is_realigned() -> None:
    body = answer(turn([1, 2], [3, 4]), turn([1, 2], [3, 5]), turn([1, 2, 3, 9], [6]))
    inspection = assert_tells_what_the_parser_tells(body, fork_threshold_tokens=2, branches="best")
    assert [one.row for one in inspection.turns] == [0, 1, 1]
    assert inspection.turns[2].divergence
    assert inspection.turns[2].divergence.held.ids == [5]
