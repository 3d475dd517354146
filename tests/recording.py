"""Records rollouts of a fake agent, and compares rollouts with what the records make of them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import turnloom
from turnloom.testing import FakeAgent, gym_answer

SAMPLING: dict[str, Any] = {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0}
ROW: dict[str, Any] = {"id": 7, "difficulty": 3, "responses_create_params": {"input": "2 + 2?"}}
CLEAN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
REALIGN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 9], [6], [-1.0])]
INTERLEAVED = [([1], [2], [-1.0]), ([5], [6], [-1.0]), ([1, 2, 3], [4], [-1.0]), ([5, 6, 7], [8], [-1.0])]
ANSWER = gym_answer(ROW, turns=CLEAN, reward=1.0, steps=2)


async def record(
    behaviour: Any, folder: Path, *, rows: Sequence[dict[str, Any]] = (ROW,), **settings: Any
) -> tuple[list[turnloom.Rollout], turnloom.RecordCounts]:
    """The rollouts of these rows, recorded in the folder."""
    async with FakeAgent(behaviour) as agent:
        gym = turnloom.GymClient({"math": agent.url}, record_dir=folder, **settings)
        async with gym:
            rollouts = await asyncio.gather(*(gym.run(row, **SAMPLING) for row in rows))
    return rollouts, gym.records


def assert_same(again: turnloom.Rollout, live: turnloom.Rollout) -> None:
    """Everything that a rollout tells, arrays bit for bit."""
    assert again.id == live.id
    for name in ("outcome", "reason", "reward", "agent", "server", "timing", "turns", "drift", "defects", "metrics"):
        assert getattr(again, name) == getattr(live, name), name
    assert json.dumps(again.document) == json.dumps(live.document)  # where NaN equals NaN
    assert (again.output, again.truncated) == (live.output, live.truncated)
    assert (type(again.error), str(again.error)) == (type(live.error), str(live.error))
    assert vars(again.error or object) == vars(live.error or object)
    for kind in ("rows", "unscored_rows"):
        assert_same_rows(getattr(again, kind), getattr(live, kind))


def assert_same_rows(again: Sequence[turnloom.TrainingRow], live: Sequence[turnloom.TrainingRow]) -> None:
    assert len(again) == len(live)
    for one, other in zip(again, live, strict=True):
        assert (one.rollout_id, one.turn_count) == (other.rollout_id, other.turn_count)
        for name in ("input_ids", "completion_mask", "old_log_probs", "turn_spans"):
            ours, theirs = getattr(one, name), getattr(other, name)
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours.view(np.uint8), theirs.view(np.uint8)), name
