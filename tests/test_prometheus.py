"""The endpoint for Prometheus, read as Prometheus reads it."""

import asyncio
import socket
import sys
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import turnloom
from made_rollouts import CLEAN, FORK, failed, rollout, timed
from turnloom._metrics import METRICS, check_prometheus_port
from turnloom._metrics._ledger import Ledger
from turnloom._metrics._prometheus import FAMILIES, families, prometheus_endpoint


def some_rollouts() -> Ledger:
    ledger = Ledger()
    for reward in (0.0, 0.25, 1.0):
        ledger.enter_sent("math")
        ledger.enter(timed(rollout(CLEAN, reward=reward, accuracy=reward), 2.0, queue_s=0.5, body_bytes=10))
    ledger.enter_sent('a "b"\n')
    ledger.enter(timed(rollout(FORK, agent='a "b"\n', reward=-1.0), 1.0))
    ledger.enter_sent("math")
    ledger.enter(failed("timeout"))
    ledger.enter_sent("math")
    return ledger


async def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each sample's value, by its name and labels, as Prometheus' own parser has it."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    text = await asyncio.to_thread(read)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


async def test_a_scrape_has_the_numbers_of_each_agent() -> None:
    ledger = some_rollouts()
    agents: dict[str, Any] = {"math": SimpleNamespace(in_flight=1, queued=0, oldest_s=3.5)}
    async with prometheus_endpoint(0, lambda: ledger.snapshot(agents)) as port:
        first = await scrape(port)
        ledger.enter_cancelled("math")
        agents.clear()
        second = await scrape(port)
    math = labels(agent="math")
    assert first["turnloom_sent_total", math] == 5
    assert first["turnloom_in_flight", math] == 1
    assert first["turnloom_oldest_seconds", math] == 3.5
    assert first["turnloom_rollouts_total", labels(agent="math", outcome="ok")] == 3
    assert first["turnloom_rollouts_total", labels(agent="math", outcome="timeout")] == 1
    assert first["turnloom_rollouts_total", labels(agent='a "b"\n', outcome="ok")] == 1
    assert first["turnloom_latency_seconds", labels(agent="math", quantile="0.95")] == 2.0
    assert first["turnloom_latency_seconds_sum", math] == 6.0
    assert first["turnloom_latency_seconds_count", math] == 3
    assert first["turnloom_reward_min", math] == 0.0
    assert first["turnloom_reward_mean", math] == pytest.approx(1.25 / 3)
    assert first["turnloom_transitions_total", labels(agent='a "b"\n', kind="fork")] == 1
    assert first["turnloom_env", labels(agent="math", field="accuracy")] == pytest.approx(1.25 / 3)
    assert first["turnloom_rollouts_total", labels(agent="math", outcome="cancelled")] == 0
    assert second["turnloom_rollouts_total", labels(agent="math", outcome="cancelled")] == 1
    assert second["turnloom_in_flight", math] == 0


async def test_every_family_has_samples_and_a_meaning() -> None:
    ledger = some_rollouts()

    class Collector:
        def collect(self) -> Any:
            return families(ledger.snapshot())

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found.keys() == {name.removesuffix("_total") for name in FAMILIES}
    for name, family in FAMILIES.items():
        told = found[name.removesuffix("_total")]
        assert (told.type, told.documentation) == (family.kind, METRICS[family.metric][1])
        assert told.samples
        assert (family.kind == "counter") == name.endswith("_total"), "as Prometheus names them"


async def test_the_endpoint_is_closed_at_the_end() -> None:
    async with prometheus_endpoint(0, Ledger().snapshot) as port:
        await scrape(port)
    with pytest.raises(urllib.error.URLError):
        await scrape(port)
    async with prometheus_endpoint(port, Ledger().snapshot) as again:
        assert again == port


async def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(turnloom.ConfigError, match=f"prometheus_port={port}: the port is in use.* choose another"):
            async with prometheus_endpoint(port, Ledger().snapshot):
                pytest.fail("it was served")


@pytest.mark.parametrize("port", [0, -1, 65536, "9400", 9400.0, True])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(turnloom.ConfigError, match=r"prometheus_port=.*from 1 to 65535"):
        check_prometheus_port(port)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    check_prometheus_port(None)
    with pytest.raises(turnloom.ConfigError, match=r"pip install 'turnloom\[prometheus\]'"):
        check_prometheus_port(9400)
