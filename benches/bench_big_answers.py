"""Measures what large answers cost a client: 64 of 84 MB, 16 at once, with turnloom and without.

    python benches/bench_big_answers.py [--fast] [--json FILE]

A server in another process sends the file, and does little else. Without turnloom means: read the whole answer with
aiohttp, then `json`, TRL's reconciler and numpy. Each way has a process of its own, in which all is imported before it
is measured. CPU is that of the client's process, and memory what its resident part grew by at most. The way without
gets fewer answers, still 16 at once, as they all cost the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import make_corpus
from loopback import Cost, content_length, cost_of, process_of

AT_ONCE = 16
ROW = {"responses_create_params": {"input": []}}
TURNLOOM, PURE = "turnloom", "read all, json"
ANSWERS = {TURNLOOM: 64, PURE: 16}
FAST_ANSWERS = {TURNLOOM: 4, PURE: 2}


def serve(to_parent: Connection, body: Path) -> None:
    asyncio.run(_serve(to_parent, body, body.stat().st_size))


async def _serve(to_parent: Connection, body: Path, size: int) -> None:
    loop = asyncio.get_running_loop()
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(content_length(await reader.readuntil(b"\r\n\r\n")))
        writer.write(head)
        with body.open("rb") as file:
            await loop.sendfile(writer.transport, file)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    to_parent.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


async def with_turnloom(url: str, count: int) -> int:
    from turnloom import GymClient

    async with GymClient({"bench": url}) as gym:

        async def run() -> int:
            rollout = await gym.run(ROW, max_tokens=1, temperature=1.0, top_p=1.0)
            return len(rollout.raise_for_outcome().rows)

        return await _some_at_once(run, count)


async def without(url: str, count: int) -> int:
    from aiohttp import ClientSession, ClientTimeout

    from turnloom.bench._baseline import training_rows

    async with ClientSession(timeout=ClientTimeout(total=None)) as session:

        async def run() -> int:
            async with session.post(f"{url}/run", json=ROW) as answer:
                return len(training_rows(await answer.read()))

        return await _some_at_once(run, count)


async def _some_at_once(run: Callable[[], Awaitable[int]], count: int) -> int:
    slots = asyncio.Semaphore(AT_ONCE)

    async def in_turn() -> int:
        async with slots:
            return await run()

    return sum(await asyncio.gather(*(in_turn() for _ in range(count))))


WAYS = {TURNLOOM: with_turnloom, PURE: without}


def measured(to_parent: Connection, way: str, url: str, small_url: str, count: int) -> None:
    asyncio.run(WAYS[way](small_url, 1))  # imports all, which takes seconds

    async def work() -> None:
        rows = await WAYS[way](url, count)
        assert rows == count, f"{rows} rows of {count} answers"

    to_parent.send(asyncio.run(cost_of(work)))


def measure(way: str, count: int) -> Cost:
    make_corpus.body("big")
    make_corpus.body("small")
    with (
        process_of(serve, make_corpus.BODIES / "big.json") as big,
        process_of(serve, make_corpus.BODIES / "small.json") as small,
    ):
        urls = [f"http://127.0.0.1:{server.recv()}" for server in (big, small)]
        with process_of(measured, way, *urls, count) as client:
            cost: Cost = client.recv()
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer answers")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    answers = FAST_ANSWERS if arguments.fast else ANSWERS
    costs = {way: measure(way, count) for way, count in answers.items()}
    size = (make_corpus.BODIES / "big.json").stat().st_size / 1e6
    print(f"answers of {size:.1f} MB, up to {AT_ONCE} at once")
    print("| way | answers | wall s | client CPU s | CPU ms per answer | peak memory MB | worst stall ms |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    lines: list[dict[str, Any]] = []
    for way, cost in costs.items():
        each = cost.cpu_s / answers[way]
        lines.append({"way": way, "answers": answers[way], "cpu_each_s": each, **asdict(cost)})
        print(
            f"| {way} | {answers[way]} | {cost.wall_s:.1f} | {cost.cpu_s:.2f} | {1e3 * each:.0f} "
            f"| {cost.peak_bytes / 1e6:.0f} | {1e3 * cost.stall_s:.0f} |"
        )
    ours, theirs = lines
    cpu, memory = theirs["cpu_each_s"] / ours["cpu_each_s"], theirs["peak_bytes"] / ours["peak_bytes"]
    print(f"{cpu:.0f} × less CPU per answer, {memory:.0f} × less memory")
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
