"""What the benches of the client share: a server and clients in processes of their own, and what work costs these."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

TICK_S = 0.01
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Cost:
    """What some work took of the process that did it."""

    wall_s: float
    cpu_s: float
    stall_s: float
    """How late the event loop was, at most, to wake up someone who slept for `TICK_S`."""
    peak_bytes: int
    """How much the resident memory grew, at most."""


@contextmanager
def process_of(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """The function in a fresh process, given one end of a pipe; the other end is here."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def content_length(head: bytes) -> int:
    """Of a request with these headers."""
    return next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as may be; how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


async def cost_of(work: Callable[[], Awaitable[None]]) -> Cost:
    """Do the work, and measure."""
    gc.collect()
    late: list[float] = []
    ticker = asyncio.create_task(_tick(late))
    await asyncio.sleep(0)
    _set_peak_back()
    resident, cpu, wall = _resident("VmRSS"), time.process_time(), time.perf_counter()
    await work()
    await asyncio.sleep(0)  # the tick that the last of the work held up
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ticker.cancel()
    with suppress(asyncio.CancelledError):
        await ticker
    return Cost(wall, cpu, max(late, default=0.0), _resident("VmHWM") - resident)


async def _tick(late: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late.append(time.perf_counter() - start - TICK_S)


def _set_peak_back() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _resident(key: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
