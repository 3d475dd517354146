"""A run that can only fail is ended, with one error that says where to look."""

from typing import Any

import pytest

import turnloom
from made_rollouts import failed, rollout
from turnloom import AgentHTTPError, Rollout
from turnloom._groups import _breaker
from turnloom._groups._breaker import GROUPS_WITHOUT_SCORE, Breaker


def refused(status: int, agent: str = "math") -> Rollout:
    return Rollout(
        "http_error",
        reason=f"agent {agent!r}, HTTP {status}: the body begins 'why'",
        error=AgentHTTPError("", status=status),
        agent=agent,
    )


def fail(breaker: Breaker, group_id: int, *members: Rollout, newest: int | None = None) -> None:
    for each in members or (failed(),):
        breaker.enter(each)
    breaker.group_failed(group_id, newest=group_id if newest is None else newest)


def test_eight_failed_groups_in_a_row_are_too_many() -> None:
    assert GROUPS_WITHOUT_SCORE == 8
    breaker = Breaker()
    for group_id in range(7):
        fail(breaker, group_id)
    with pytest.raises(turnloom.ConfigError, match="8 groups in a row"):
        fail(breaker, 7)
    fail(breaker, 8)  # the run is about to end: one error is enough


def test_a_scored_rollout_between_begins_the_row_anew() -> None:
    breaker = Breaker()
    for group_id in range(7):
        fail(breaker, group_id, refused(500))
    breaker.enter(rollout())  # of a group that is still at work
    for group_id in range(7, 14):
        fail(breaker, group_id, failed("timeout", "code"))
    with pytest.raises(turnloom.ConfigError) as caught:
        fail(breaker, 14, failed("timeout", "code"))
    assert "agent 'code': 8 timeout. The latest: no data for 300 s." in str(caught.value)
    assert "math" not in str(caught.value), "what was before the scored rollout is over"


def test_groups_that_were_open_together_fail_as_one() -> None:
    """An agent that is started anew loses all that it was at work on."""
    breaker = Breaker()
    for group_id in range(64):
        fail(breaker, group_id, failed("disconnected"), newest=63)
    for group_id in range(64, 70):
        fail(breaker, group_id, newest=80)
    with pytest.raises(turnloom.ConfigError):
        fail(breaker, 70, newest=80)


def test_the_error_names_agents_counts_the_last_message_and_where_to_look() -> None:
    breaker = Breaker()
    for group_id in range(7):
        fail(breaker, group_id, refused(422), refused(422), refused(500), failed("masked", "code", "the environment"))
    with pytest.raises(turnloom.ConfigError) as caught:
        fail(breaker, 7, refused(422))
    first, code, math = str(caught.value).splitlines()
    assert first.startswith("8 groups in a row ended without one scored rollout")
    assert code.startswith("  agent 'code': 7 masked. The latest: the environment. Look at the environment, which")
    assert "honor_mask_sample" in code
    assert math.startswith("  agent 'math': 15 http_error 422, 7 http_error 500. The latest: agent 'math', HTTP 422: ")
    assert "the body begins 'why'. Look at the rows of the dataset" in math


@pytest.mark.parametrize(
    ("member", "where"),
    [
        (refused(422), "the rows of the dataset"),
        (refused(404), "its URL in agent_servers: there is no agent"),
        (refused(401), "the user and password"),
        (refused(500), "the agent's own log"),
        (failed("unreachable"), "its URL in agent_servers, and whether it is up"),
        (failed("no_tokens"), "return_token_id_information: true"),
        (failed("no_reward"), "the environment's verifier"),
        (failed("timeout"), "run_timeout and deadline"),
        (failed("malformed"), "NeMo Gym's JSON"),
        (failed("agent_failure"), "its model server"),
        (failed("disconnected"), "memory"),
        (failed("masked"), "honor_mask_sample=False"),
    ],
)
def test_each_outcome_has_its_advice(member: Rollout, where: str) -> None:
    breaker = Breaker()
    for group_id in range(7):
        fail(breaker, group_id, member)
    with pytest.raises(turnloom.ConfigError) as caught:
        fail(breaker, 7, member)
    assert where in str(caught.value).partition("Look at ")[2]


def test_every_outcome_that_a_failure_can_have_is_advised() -> None:
    failures: set[Any] = set(turnloom.OUTCOMES) - {"ok", "cancelled"}
    assert set(_breaker._ADVICE) == failures
