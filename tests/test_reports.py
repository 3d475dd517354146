"""What the worker's process tells while it works: the line per minute, and the endpoint for Prometheus."""

import asyncio
import logging
import re
import socket

import pytest

import turnloom
from test_prometheus import labels, scrape
from trl_loops import answering, dataset_of, pushed, running, scored
from turnloom._groups import _runner
from turnloom._metrics import _report
from turnloom.testing import AgentCall


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


async def test_a_scrape_of_a_loop_at_work_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runner, "RETRY_PAUSE_S", 0.01)
    port = free_port()
    answers = answering(scored(1.0), 500, scored(0.0), scored(None))
    async with running(answers, dataset_of({}), prometheus_port=port, on_failure="retry", max_attempts=2) as run:
        await run.samples(9)
        found = await scrape(port)
        later = await scrape(port)
    for samples in (found, later):
        ended = sum(value for (name, _), value in samples.items() if name == "turnloom_rollouts_total")
        math = labels(agent="math")
        assert samples["turnloom_sent_total", math] == ended + samples["turnloom_in_flight", math]
        assert samples["turnloom_latency_seconds_count", math] == ended
        assert samples["turnloom_body_bytes_total", math] > 0
    assert found["turnloom_rollouts_total", labels(agent="math", outcome="ok")] >= 9
    assert found["turnloom_retries_total", math] >= 1
    assert found["turnloom_groups_total", math] >= 3
    put = [each for each in pushed(run.loop) if "nemo_gym/in_flight" in each]
    assert put[-1]["nemo_gym/in_flight"] == 0.0, "at the end"
    sent, ended = (sum(each.get(f"nemo_gym/{name}", 0) for each in put) for name in ("sent_total", "rollouts_total"))
    assert sent == ended >= 9
    with pytest.raises(OSError, match="refused"):
        await scrape(port)


async def test_the_line_tells_of_what_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(call: AgentCall) -> None:
        await call.body()
        await call.gone()

    told = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "3 in flight" in record.getMessage():
                told.set()

    caplog.set_level(logging.INFO, logger="turnloom")
    monkeypatch.setattr(_report, "PROGRESS_EVERY_S", 0.01)
    monkeypatch.setattr(logging.getLogger("turnloom"), "handlers", [Heard()])
    async with running(silent, dataset_of({})):
        await told.wait()
    assert any(re.search(r"3 in flight, the oldest for \d+ s", message) for message in caplog.messages)


async def test_a_port_in_use_ends_the_worker_before_anything_is_sent() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(turnloom.ConfigError, match=f"prometheus_port={port}: the port is in use"):
            async with running(answering(scored(1.0)), dataset_of({}), prometheus_port=port) as run:
                await run.work
    assert not run.agent.calls
