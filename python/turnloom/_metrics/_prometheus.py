"""The snapshot for Prometheus, over HTTP."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from turnloom._exceptions import ConfigError
from turnloom._metrics._catalogue import METRICS
from turnloom._metrics._snapshot import AgentSnapshot, Distribution, Snapshot

if TYPE_CHECKING:
    from prometheus_client import Metric

SCRAPE_TIMEOUT_S: Final = 5.0
"""An event loop that is busy for longer answers no scrape."""

_QUANTILES: Final = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of Prometheus, with a value, or several, for each agent."""

    kind: Literal["counter", "gauge", "summary"]
    of: str
    """The member of `AgentSnapshot`."""
    metric: str
    """What it is called in `METRICS`."""
    label: str | None = None
    """What tells its values apart, where the member has several."""


FAMILIES: Final[Mapping[str, Family]] = {
    "turnloom_sent_total": Family("counter", "sent", "sent_total"),
    "turnloom_retries_total": Family("counter", "retries", "retries_total"),
    "turnloom_groups_total": Family("counter", "groups", "groups_total"),
    "turnloom_mixed_groups_total": Family("counter", "mixed_groups", "mixed_groups_frac"),
    "turnloom_stale_groups_total": Family("counter", "stale_groups", "stale_groups_total"),
    "turnloom_rollouts_total": Family("counter", "outcomes", "outcome/<outcome>_total", "outcome"),
    "turnloom_in_flight": Family("gauge", "in_flight", "in_flight"),
    "turnloom_queued": Family("gauge", "queued", "queued"),
    "turnloom_oldest_seconds": Family("gauge", "oldest_s", "oldest_s_max"),
    "turnloom_latency_seconds": Family("summary", "latency_s", "latency_s"),
    "turnloom_queue_seconds": Family("summary", "queue_s", "queue_s"),
    "turnloom_first_byte_seconds": Family("summary", "first_byte_s", "first_byte_s"),
    "turnloom_download_seconds": Family("summary", "download_s", "download_s"),
    "turnloom_parse_seconds": Family("summary", "parse_s", "parse_s"),
    "turnloom_body_bytes_total": Family("counter", "body_bytes", "body_bytes_total"),
    "turnloom_reward_mean": Family("gauge", "reward.mean", "reward"),
    "turnloom_reward_std": Family("gauge", "reward.std", "reward_std"),
    "turnloom_reward_min": Family("gauge", "reward.min", "reward_min"),
    "turnloom_reward_max": Family("gauge", "reward.max", "reward_max"),
    "turnloom_rows": Family("summary", "rows", "rows_per_rollout"),
    "turnloom_trained_tokens": Family("summary", "trained_tokens", "trained_tokens"),
    "turnloom_discarded_tokens_total": Family("counter", "discarded_tokens", "discarded_tokens_total"),
    "turnloom_unusable_tokens_total": Family("counter", "unusable_tokens", "unusable_tokens_total"),
    "turnloom_positive_logprobs_total": Family("counter", "positive_logprobs", "positive_logprobs_total"),
    "turnloom_turns": Family("summary", "turns", "turns"),
    "turnloom_tool_calls": Family("summary", "tool_calls", "tool_calls"),
    "turnloom_truncated_total": Family("counter", "truncated", "truncated_frac"),
    "turnloom_transitions_total": Family("counter", "transitions", "drift/<kind>_frac", "kind"),
    "turnloom_drift_tokens_total": Family("counter", "drift_tokens", "drift/tokens"),
    "turnloom_unrelated_prompts_total": Family("counter", "unrelated_prompts", "unrelated_prompts_total"),
    "turnloom_defects_total": Family("counter", "defects", "defects/<code>_total", "code"),
    "turnloom_skipped_items_total": Family("counter", "skipped_items", "skipped_items_total"),
    "turnloom_env": Family("gauge", "env", "env/<field>", "field"),
    "turnloom_env_left_out_total": Family("counter", "env_left_out", "env_left_out_total"),
}
"""What is served, by name."""


def import_prometheus_client() -> ModuleType:
    """The package that serves.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigError(
            f"prometheus_port needs the package prometheus_client ({error}): pip install 'turnloom[prometheus]'"
        ) from error
    return prometheus_client


def check_prometheus_port(port: Any) -> None:
    """Refuse a port that cannot be served at.

    Raises:
        ConfigError: it is no port, or `prometheus_client` is missing.
    """
    if port is None:
        return
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise ConfigError(f"prometheus_port={port!r}: a port from 1 to 65535 is needed, or None for no endpoint")
    import_prometheus_client()


@asynccontextmanager
async def prometheus_endpoint(port: int, snapshot: Callable[[], Snapshot]) -> AsyncIterator[int]:
    """Serve `/metrics` on all interfaces while the block runs; gives the port.

    Args:
        port: 0 is any that is free.
        snapshot: is called in this event loop, at every scrape.

    Raises:
        ConfigError: the port is in use, or not allowed.
    """
    client = import_prometheus_client()
    loop = asyncio.get_running_loop()

    async def taken() -> Snapshot:
        return snapshot()

    class Collector:
        def collect(self) -> Iterable[Metric]:
            return families(asyncio.run_coroutine_threadsafe(taken(), loop).result(SCRAPE_TIMEOUT_S))

    registry = client.CollectorRegistry()
    registry.register(Collector())
    try:
        server, thread = client.start_http_server(port, registry=registry)
    except OSError as error:
        why = "is in use on this machine" if error.errno == errno.EADDRINUSE else f"cannot be served at ({error})"
        raise ConfigError(f"prometheus_port={port}: the port {why}; choose another, or None for no endpoint") from error
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """The metrics of Prometheus, by agent."""
    from prometheus_client import Metric

    for name, family in FAMILIES.items():
        metric = Metric(name.removesuffix("_total"), METRICS[family.metric][1], family.kind)
        for agent, numbers in snapshot.agents.items():
            for suffix, labels, value in _samples(family, numbers):
                metric.add_sample(name + suffix, {"agent": agent, **labels}, value)
        yield metric


def _samples(family: Family, numbers: AgentSnapshot) -> Iterator[tuple[str, dict[str, str], float]]:
    member, *statistic = family.of.split(".")
    value = getattr(numbers, member)
    if family.label is not None:
        for key, each in value.items():
            yield "", {family.label: key}, each.mean if isinstance(each, Distribution) else each
    elif isinstance(value, Distribution):
        if statistic:
            yield "", {}, getattr(value, *statistic)
            return
        for quantile, name in _QUANTILES.items():
            yield "", {"quantile": quantile}, getattr(value, name)
        yield "_sum", {}, value.sum
        yield "_count", {}, value.count
    elif value is not None:
        yield "", {}, value
