"""Rollouts of every kind, as an agent's answers give them."""

import json
from typing import Any

import turnloom
from turnloom import Rollout, Timing
from turnloom.testing import gym_answer

CLEAN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
REALIGN = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 9], [6], [-1.0])]
FORK = [([1, 2], [3, 4], [-0.5, -0.25]), ([7], [6], [-1.0])]


def rollout(turns: Any = CLEAN, *, agent: str = "math", threshold: int = 1024, **more: Any) -> Rollout:
    body = json.dumps(gym_answer({}, turns=turns, **more))
    parsed = turnloom.parse_run(body, fork_threshold_tokens=threshold)
    parsed.agent = agent
    return parsed


def without_ids(**more: Any) -> Rollout:
    response = {"output": [{"type": "message", "role": "assistant", "content": "4"}, {"type": "reasoning"}], **more}
    parsed = turnloom.parse_run(json.dumps({"response": response, "reward": 1.0}))
    parsed.agent = "math"
    return parsed


def failed(outcome: Any = "timeout", agent: str = "math", reason: str = "no data for 300 s") -> Rollout:
    return Rollout(outcome, reason=reason, agent=agent)


def timed(rollout: Rollout, total_s: float, **more: Any) -> Rollout:
    rollout.timing = Timing(total_s=total_s, **more)
    return rollout
