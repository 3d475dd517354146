"""Groups at work, without a trainer: what each request says, what follows a failure, and what waits."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import turnloom
from made_rollouts import failed, rollout
from turnloom import AgentHTTPError, GymClient, Rollout, Timing
from turnloom._client import _backoff
from turnloom._groups import GroupPolicy, GroupRunner, _patience, _runner
from turnloom._groups._patience import Patience
from turnloom._metrics import Ledger
from turnloom.testing import AgentCall, FakeAgent, gym_answer

TURNS = [([1, 2], [3, 4], [-0.5, -0.25])]
ROW = {"responses_create_params": {"input": "hi"}}
FIELDS = ("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runner, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(_runner, "PATIENCE_PAUSE_S", 0.01)
    monkeypatch.setattr(_backoff, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(_backoff, "MAX_PAUSE_S", 0.01)


@asynccontextmanager
async def running(
    url: str, *, group_size: int = 2, deadline: float | None = None, **policy: Any
) -> AsyncIterator[tuple[GroupRunner, Ledger]]:
    ledger = Ledger()
    async with GymClient({"math": url}, deadline=deadline) as gym:
        yield (
            GroupRunner(
                gym,
                ledger,
                agents=("math",),
                group_size=group_size,
                slots=8,
                policy=GroupPolicy(**policy),
                deadline=deadline,
                sampling={"max_tokens": 64, "temperature": 1.0, "top_p": 1.0},
            ),
            ledger,
        )


def outcomes(ledger: Ledger) -> dict[str, int]:
    counts = ledger.metrics.counts()
    found = {
        name.removeprefix("nemo_gym/outcome/").removesuffix("_total"): count
        for name, count in counts.items()
        if name.startswith("nemo_gym/outcome/")
    }
    assert sum(found.values()) == counts["nemo_gym/rollouts_total"], "every rollout has one outcome"
    return found


async def of_one_group(runner: GroupRunner, group_id: int = 0, members: int = 2) -> list[Rollout | None]:
    runner.open(group_id, ROW, position=7, version=1)
    return await asyncio.gather(*(runner.run(group_id) for _ in range(members)))


def good(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    return gym_answer(row, turns=TURNS, reward=1.0, **more)


# What each request says


async def test_each_request_says_which_rollout_it_is() -> None:
    seen = []
    for _ in range(2):  # two runs, as before and after a resume
        async with FakeAgent(_answers(good)) as agent, running(agent.url) as (runner, _):
            done = [*await of_one_group(runner), *await of_one_group(runner, 1)]
            sent = [await call.row() for call in agent.calls]
        assert [tuple(row[name] for name in FIELDS) for row in sent] == [(7, 0, 0), (7, 1, 0)] * 2
        assert {each.id for each in done if each} == {row["_ng_rollout_id"] for row in sent}
        assert {row.rollout_id for each in done if each for row in each.rows} == {each.id for each in done if each}
        seen += [row["_ng_rollout_id"] for row in sent]
    assert len(set(seen)) == 8
    assert all(re.fullmatch(r"[0-9a-f]{32}", each) for each in seen)


def _answers(*answers: Any) -> Callable[[AgentCall], Any]:
    """The first attempts of a member get these answers in turn: a function of the row, a status, bytes, or None for a
    reset."""

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        answer = answers[min(row["_ng_attempt_index"], len(answers) - 1)]
        if answer is None:
            call.reset()
        elif isinstance(answer, int):
            await call.answer({"detail": "it broke"}, status=answer)
        elif answer is SILENCE:
            await call.gone()
        else:
            await call.answer(answer(row) if callable(answer) else answer)

    return behave


SILENCE = object()


# What follows a failure


@pytest.mark.parametrize(
    ("first", "outcome"),
    [
        (500, "http_error"),
        (503, "http_error"),
        (lambda row: good(row, _ng_failure_class="oom"), "agent_failure"),
        (b"{]", "malformed"),
    ],
)
async def test_a_new_rollout_takes_the_place_of_a_failed_one(first: Any, outcome: str) -> None:
    async with FakeAgent(_answers(first, good)) as agent, running(agent.url, on_failure="retry") as (runner, ledger):
        done = await of_one_group(runner)
        sent = [await call.row() for call in agent.calls]
    assert [each.outcome for each in done if each] == ["ok", "ok"]
    assert sorted(tuple(row[name] for name in FIELDS) for row in sent) == [(7, 0, 0), (7, 0, 1), (7, 1, 0), (7, 1, 1)]
    assert len({row["_ng_rollout_id"] for row in sent}) == 4
    assert outcomes(ledger) == {outcome: 2, "ok": 2}
    assert ledger.metrics.counts()["nemo_gym/retries_total"] == 2
    assert ledger.metrics.counts()["nemo_gym/agent/math/retries_total"] == 2


@pytest.mark.parametrize(("max_attempts", "calls"), [(None, 3), (1, 1), (2, 2), (5, 5)])
async def test_the_attempts_have_a_bound(max_attempts: int | None, calls: int) -> None:
    policy = {"on_failure": "retry", "max_attempts": max_attempts}
    async with FakeAgent(_answers(500)) as agent, running(agent.url, **policy) as (runner, ledger):
        (done,) = await of_one_group(runner, members=1)
    assert done is not None
    assert done.outcome == "http_error"
    assert len(agent.calls) == calls
    assert outcomes(ledger) == {"http_error": calls}
    assert ledger.metrics.counts().get("nemo_gym/retries_total", 0) == calls - 1


@pytest.mark.parametrize(
    ("only", "outcome"),
    [
        (422, "http_error"),
        (404, "http_error"),
        (None, "disconnected"),
        (lambda row: good(row, mask_sample=True), "masked"),
        (lambda row: gym_answer(row, turns=[], reward=1.0), "no_tokens"),
        (lambda row: gym_answer(row, turns=TURNS, reward=None), "no_reward"),
    ],
)
async def test_what_would_fail_again_or_may_still_run_is_not_tried_again(only: Any, outcome: str) -> None:
    async with FakeAgent(_answers(only, good)) as agent, running(agent.url, on_failure="retry") as (runner, ledger):
        await of_one_group(runner)
    assert len(agent.calls) == 2
    assert outcomes(ledger) == {outcome: 2}


async def test_failures_are_dropped_by_default() -> None:
    async with FakeAgent(_answers(500, good)) as agent, running(agent.url) as (runner, ledger):
        await of_one_group(runner)
    assert outcomes(ledger) == {"http_error": 2}
    assert "nemo_gym/retries_total" not in ledger.metrics.counts()


@pytest.mark.parametrize(("first", "outcome"), [(SILENCE, "timeout"), (None, "disconnected")])
async def test_what_may_still_run_is_tried_again_when_its_deadline_is_over(first: Any, outcome: str) -> None:
    policy = {"on_failure": "retry", "deadline": 0.2}
    async with FakeAgent(_answers(first, good)) as agent, running(agent.url, **policy) as (runner, ledger):
        (done,) = await of_one_group(runner, members=1)
    assert done is not None
    assert done.outcome == "ok"
    assert outcomes(ledger) == {outcome: 1, "ok": 1}


def timed(outcome: str, *, total_s: float, queue_s: float = 0.0) -> Rollout:
    made = failed(outcome)
    made.timing = Timing(total_s=total_s, queue_s=queue_s)
    return made


def test_how_long_a_new_rollout_waits_for_the_deadline_of_the_old_one() -> None:
    wait = GroupPolicy("retry").wait_before_next
    lost = timed("disconnected", total_s=5.0, queue_s=2.0)
    assert wait(lost, attempts=1, deadline=None) is None
    assert wait(lost, attempts=1, deadline=10.0) == 7.0, "waiting for a slot is not charged to the deadline"
    assert wait(lost, attempts=3, deadline=10.0) is None
    assert wait(timed("timeout", total_s=10.1), attempts=1, deadline=10.0) == 0.0
    assert wait(timed("unreachable", total_s=1.0), attempts=1, deadline=10.0) == 0.0
    refused = Rollout("http_error", reason="422", error=AgentHTTPError("422", status=422))
    assert wait(refused, attempts=1, deadline=10.0) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"on_failure": "again"}, r"on_failure='again': it is one of 'drop', 'retry'"),
        ({"on_failure": "retry", "max_attempts": 0}, "max_attempts=0: an integer of at least 1"),
        ({"on_failure": "retry", "max_attempts": 2.0}, r"max_attempts=2\.0"),
        ({"max_attempts": 2}, "max_attempts=2 has no effect without on_failure='retry'"),
        ({"max_staleness": -1}, "max_staleness=-1: an integer of at least 0"),
        ({"max_staleness": True}, "max_staleness=True"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        GroupPolicy(**settings)


# An agent that is down


def counting(waits_for: Callable[[Rollout], bool], waits: asyncio.Semaphore) -> Callable[[Rollout], bool]:
    def counted(each: Rollout) -> bool:
        waits.release()
        return waits_for(each)

    return counted


async def test_an_agent_that_is_down_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeAgent(good) as agent:
        url, port = agent.url, int(agent.url.rpartition(":")[2])
    async with running(url, group_size=4) as (runner, ledger):
        waits = asyncio.Semaphore(0)
        monkeypatch.setattr(runner._patience, "waits_for", counting(runner._patience.waits_for, waits))
        members = asyncio.ensure_future(of_one_group(runner, members=4))
        for _ in range(12):  # each has been sent again and again
            wait = asyncio.ensure_future(waits.acquire())
            await asyncio.wait({wait, members}, return_when=asyncio.FIRST_COMPLETED)
            assert not members.done()
        assert ledger.metrics.counts()["nemo_gym/sent_total"] == 4
        assert "nemo_gym/rollouts_total" not in ledger.metrics.counts(), "what waits has no outcome"
        async with FakeAgent(_answers(good), port=port) as agent:
            done = await members
            sent = [await call.row() for call in agent.calls]
    assert [each.outcome for each in done if each] == ["ok"] * 4
    assert [row["_ng_attempt_index"] for row in sent] == [0] * 4
    assert outcomes(ledger) == {"ok": 4}
    aside, waits_for_it, back = caplog.messages
    assert "is put aside" in aside
    assert "is out of reach: its rollouts wait" in waits_for_it
    assert "takes connections again" in back


def test_patience_has_an_end_for_each_agent_and_begins_anew_once_it_was_reached() -> None:
    now = 0.0
    patience = Patience(clock=lambda: now)
    assert _patience.PATIENCE_S == 300
    for seconds in (0.0, 100.0, 299.0):
        now = seconds
        assert patience.waits_for(failed("unreachable"))
    assert patience.waits_for(failed("unreachable", agent="code"))
    now = 300.0
    assert not patience.waits_for(failed("unreachable"))
    assert patience.waits_for(failed("unreachable", agent="code"))
    assert not patience.waits_for(failed("timeout")), "which may have had no connection"
    assert not patience.waits_for(failed("unreachable"))
    assert not patience.waits_for(failed("disconnected"))
    assert patience.waits_for(failed("unreachable"))
    assert not patience.waits_for(rollout())
    now = 599.0
    assert patience.waits_for(failed("unreachable"))


async def test_members_fail_when_the_patience_is_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patience, "PATIENCE_S", 0.1)
    async with FakeAgent(good) as agent:
        url = agent.url
    async with running(url) as (runner, ledger):
        await of_one_group(runner)
    assert outcomes(ledger) == {"unreachable": 2}


# Giving up


@pytest.mark.parametrize(("only", "ended"), [(500, {"http_error": 2, "cancelled": 2}), (None, {"cancelled": 2})])
async def test_what_waits_for_another_try_ends_at_once(
    only: Any, ended: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an attempt has failed, or the agent is out of reach."""
    monkeypatch.setattr(_runner, "RETRY_PAUSE_S", 10_000)
    monkeypatch.setattr(_runner, "PATIENCE_PAUSE_S", 10_000)
    async with FakeAgent(_answers(only)) as agent:
        url = agent.url if only else "http://127.0.0.1:9"
        async with running(url, on_failure="retry") as (runner, ledger):
            asked = asyncio.Semaphore(0)
            monkeypatch.setattr(runner._patience, "waits_for", counting(runner._patience.waits_for, asked))
            members = asyncio.ensure_future(of_one_group(runner))
            for _ in range(2):
                await asked.acquire()
            await asyncio.sleep(0)  # to the pause
            runner.stop()
            assert await members == [None, None]
            assert await of_one_group(runner, 1) == [None, None], "and what begins later is not sent"
    ended = {**ended, "cancelled": ended["cancelled"] + 2}
    assert outcomes(ledger) == ended
    assert ledger.metrics.counts()["nemo_gym/sent_total"] == sum(ended.values())


async def test_pauses_are_spread() -> None:
    pauses = [_runner._pause(2.0) for _ in range(200)]
    assert 1.0 <= min(pauses) < 1.5 < 2.5 < max(pauses) <= 3.0
