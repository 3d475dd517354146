"""Measures how late an event loop is while many large answers arrive at once, with turnloom and without.

    python benches/bench_event_loop.py [--fast] [--json FILE]

Another process serves bodies of 20 MB, to all requests together once all have come. Meanwhile a ticker sleeps for 10 ms
again and again, and notes how much later it woke up. Without turnloom means: read the whole answer with the same HTTP
client, then `json`, TRL's reconciler and numpy. That way gets fewer bodies, as it holds them all in memory.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from turnloom.bench import Shape, made_body

TICK_S = 0.01
SHAPE = Shape(turns=74, first=2_300, context=530, generated=500)
WITH, WITHOUT = "turnloom", "read all, json"
BODIES = {WITH: 200, WITHOUT: 20}
FAST_BODIES = {WITH: 8, WITHOUT: 2}
ROW = {"responses_create_params": {"input": []}}


def make_body() -> bytes:
    return made_body("event loop", SHAPE)


def serve(to_parent: Connection, together: int) -> None:
    """Answer requests with the body, `together` at a time."""
    asyncio.run(_serve(to_parent, together))


async def _serve(to_parent: Connection, together: int) -> None:
    body = make_body()
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
    all_have_come = asyncio.Barrier(together)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in request.lower().split(b"\r\n") if line.startswith(b"content-length")]
        await reader.readexactly(int(lengths[0]))
        await all_have_come.wait()
        writer.write(head)
        for start in range(0, len(body), 1 << 18):
            writer.write(body[start : start + (1 << 18)])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", backlog=together)
    to_parent.send((server.sockets[0].getsockname()[1], len(body)))
    async with server:
        await server.serve_forever()


async def with_turnloom(url: str, count: int) -> int:
    from turnloom import GymClient

    async with GymClient({"bench": url}) as gym:
        runs = (gym.run(ROW, max_tokens=1, temperature=1.0, top_p=1.0) for _ in range(count))
        return sum(len(rollout.raise_for_outcome().rows) for rollout in await asyncio.gather(*runs))


async def without(url: str, count: int) -> int:
    import httpx
    from httpx_aiohttp import HttpxAiohttpClient

    from turnloom.bench._baseline import training_rows

    async with HttpxAiohttpClient(limits=httpx.Limits(max_connections=None), timeout=None) as http:

        async def run() -> int:
            response = await http.post(f"{url}/run", json=ROW)
            return len(training_rows(response.content))

        return sum(await asyncio.gather(*(run() for _ in range(count))))


async def tick(lags: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK_S)
        lags.append(time.perf_counter() - start - TICK_S)


async def timed(way: Callable[[str, int], Awaitable[int]], url: str, count: int) -> tuple[list[float], float]:
    """How late each tick was, and the seconds of it all."""
    lags: list[float] = []
    ticker = asyncio.create_task(tick(lags))
    start = time.perf_counter()
    rows = await way(url, count)
    await asyncio.sleep(0)  # the tick that the last of the work held up
    seconds = time.perf_counter() - start
    ticker.cancel()
    with suppress(asyncio.CancelledError):
        await ticker
    assert rows == count, f"{rows} rows of {count} bodies"
    return lags, seconds


def measure(name: str, count: int) -> dict[str, Any]:
    way = with_turnloom if name == WITH else without
    import_module("turnloom" if name == WITH else "turnloom.bench._baseline")  # which takes seconds, and none of these
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, count), daemon=True)
    server.start()
    port, size = ours.recv()
    try:
        lags, seconds = asyncio.run(timed(way, f"http://127.0.0.1:{port}", count))
    finally:
        server.terminate()
        server.join()
    p50, p99 = np.percentile(lags, [50, 99])
    return {"way": name, "bodies": count, "bytes": size, "seconds": seconds, "ticks": len(lags)} | {
        "p50": p50,
        "p99": p99,
        "max": max(lags),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer bodies")
    parser.add_argument("--json", type=Path, help="write the figures, in seconds, to this file too")
    arguments = parser.parse_args()
    results = [measure(name, count) for name, count in (FAST_BODIES if arguments.fast else BODIES).items()]
    print("| way | bodies | MB each | s | MB/s | ticks | lag p50 ms | lag p99 ms | lag max ms |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: | --: |")
    for it in results:
        size = it["bytes"] / 1e6
        lags = " | ".join(f"{1e3 * it[key]:.1f}" for key in ("p50", "p99", "max"))
        rate = size * it["bodies"] / it["seconds"]
        print(
            f"| {it['way']} | {it['bodies']} | {size:.1f} | {it['seconds']:.2f} | {rate:.0f} | {it['ticks']} | {lags} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
