"""The line per minute: what it says, and when."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from made_rollouts import CLEAN, FORK, REALIGN, failed, rollout
from turnloom._metrics import _report, reports
from turnloom._metrics._ledger import Ledger
from turnloom._metrics._progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def begin() -> tuple[Ledger, Progress, Clock]:
    ledger, clock = Ledger(), Clock()
    return ledger, Progress(ledger, clock=clock), clock


def state(in_flight: int, queued: int = 0, oldest_s: float = 0.0) -> Any:
    return SimpleNamespace(in_flight=in_flight, queued=queued, oldest_s=oldest_s)


def test_the_line_is_of_what_is_new_since_the_line_before() -> None:
    ledger, progress, clock = begin()
    for each in (rollout(CLEAN, reward=0.5), rollout(REALIGN, reward=1.0), rollout(FORK), failed()):
        ledger.enter(each)
    clock.now += 60
    assert progress.line({"math": state(2, 1, 342.4)}) == (
        "4 rollouts ended in 60 s (3 ok, 1 timeout); 3 in flight, 1 of them queued, the oldest for 342 s; "
        "mean reward 0.833; of 3 transitions 1 realigned and 1 forked"
    )
    for _ in range(2000):
        ledger.enter(failed("http_error"))
    ledger.enter(rollout(CLEAN, reward=-0.25))
    clock.now += 90
    assert progress.line() == (
        "2,001 rollouts ended in 90 s (1 ok, 2,000 http_error); none in flight; mean reward -0.25"
    )


def test_a_run_that_hangs_says_so_and_one_at_rest_says_nothing() -> None:
    ledger, progress, clock = begin()
    assert progress.line({"math": state(0)}) is None
    ledger.enter_sent("math")
    clock.now += 60
    assert progress.line({"math": state(1, 0, 59.8)}) == "no rollout ended in 60 s; 1 in flight, the oldest for 60 s"
    ledger.enter_cancelled("math")
    clock.now += 60
    assert progress.line({"math": state(0)}) == "1 rollout ended in 60 s (1 cancelled); none in flight"
    assert progress.line({"math": state(0)}) is None


def test_several_agents_at_work_have_their_words_each() -> None:
    ledger, progress, clock = begin()
    ledger.enter(rollout(agent="idle"))
    progress.line()
    ledger.enter(rollout(agent="math"))
    clock.now += 60
    agents = {"idle": state(0), "math": state(0), "code": state(4, 0, 9.0)}
    assert progress.line(agents) == (
        "1 rollout ended in 60 s (1 ok); 4 in flight, the oldest for 9 s; mean reward 1"
        " | code: no rollout ended in 60 s; 4 in flight, the oldest for 9 s"
        " | math: 1 rollout ended in 60 s (1 ok); none in flight; mean reward 1"
    )


async def test_a_line_is_logged_again_and_again_while_something_is_going_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="turnloom")
    looks: asyncio.Queue[None] = asyncio.Queue()
    in_flight = 1

    def agents() -> dict[str, Any]:
        looks.put_nowait(None)
        return {"math": state(in_flight)}

    assert _report.PROGRESS_EVERY_S == 60
    monkeypatch.setattr(_report, "PROGRESS_EVERY_S", 0.001)
    async with reports(Ledger(), agents, prometheus_port=None):
        for _ in range(3):
            await looks.get()
        in_flight = 0
        for _ in range(3):
            await looks.get()
    assert {(record.levelname, record.message) for record in caplog.records} == {
        ("INFO", "no rollout ended in 0 s; 1 in flight")
    }
    assert 2 <= len(caplog.records) <= 3
