"""Measures what it costs to have many rollouts in flight at once, with turnloom and with other clients.

    python benches/bench_http.py [--fast] [--worker] [--json FILE]

A server in another process answers each `POST /run` after one second with a small body. Each way has a client process
of its own and takes its turn in every round; figures are medians. `aiohttp` sends bytes and reads bytes, and so is what
there is to compare with; `aiohttp + json` makes the row's JSON, and training rows of the answer by way of `json` and
TRL's reconciler, as turnloom does by its own; `httpx` is httpx over its own pool, which is measured as far as it goes.

Much of what thousands of rollouts cost is Python's collector of garbage, which looks at all that is in flight again and
again. With `--worker` it is set as in the worker's process of turnloom (`NemoGymRolloutWorker`), and so for every way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loopback import Cost, content_length, cost_of, process_of, raise_descriptor_limit

ANSWER_AFTER_S = 1.0
SIZES = (256, 1024, 4096, 8192)
FAST_SIZES = (64, 256)
HTTPX_UP_TO = 1024
ROW = {"id": 7, "responses_create_params": {"input": "What is 2 + 2?"}}
SAMPLING = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0}
TURNLOOM, AIOHTTP, AIOHTTP_JSON, HTTPX = "turnloom", "aiohttp", "aiohttp + json", "httpx"


class Answering(asyncio.Protocol):
    """One connection of the server: for every whole request the answer, later."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, end, body = self._held.partition(b"\r\n\r\n")
        if end and len(body) >= content_length(head):
            self._held = b""
            asyncio.get_running_loop().call_later(ANSWER_AFTER_S, self._transport.write, self._answer)


def serve(to_parent: Connection) -> None:
    raise_descriptor_limit()
    asyncio.run(_serve(to_parent))


async def _serve(to_parent: Connection) -> None:
    from turnloom.testing import gym_answer

    turns = [(list(range(100)), list(range(100, 150)), [-0.5] * 50), (list(range(200)), [7] * 30, [-0.25] * 30)]
    body = json.dumps(gym_answer(ROW, turns=turns), separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    make = partial(Answering, head + body)
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, backlog=max(SIZES))
    to_parent.send((server.sockets[0].getsockname()[1], len(body)))
    async with server:
        await server.serve_forever()


# The ways: each sends so many rows at once, and gives the number of rows for training that came of them.


async def turnloom(url: str, count: int) -> int:
    from turnloom import GymClient

    async with GymClient({"bench": url}) as gym:

        async def run() -> int:
            return len((await gym.run(ROW, **SAMPLING)).raise_for_outcome().rows)

        return sum(await asyncio.gather(*(run() for _ in range(count))))


async def aiohttp(url: str, count: int) -> int:
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    body, headers = json.dumps(ROW).encode(), {"content-type": "application/json"}
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None)) as session:

        async def run() -> bool:
            async with session.post(f"{url}/run", data=body, headers=headers) as answer:
                return len(await answer.read()) > 0

        return sum(await asyncio.gather(*(run() for _ in range(count))))


async def aiohttp_json(url: str, count: int) -> int:
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    from turnloom.bench._baseline import training_rows

    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None)) as session:

        async def run() -> int:
            async with session.post(f"{url}/run", json=ROW) as answer:
                answer.raise_for_status()
                return len(training_rows(await answer.read()))

        return sum(await asyncio.gather(*(run() for _ in range(count))))


async def httpx(url: str, count: int) -> int:
    from httpx import AsyncClient, Limits

    async with AsyncClient(limits=Limits(max_connections=None), timeout=None) as http:

        async def run() -> bool:
            return len((await http.post(f"{url}/run", json=ROW)).content) > 0

        return sum(await asyncio.gather(*(run() for _ in range(count))))


WAYS: dict[str, Callable[[str, int], Awaitable[int]]] = {
    TURNLOOM: turnloom,
    AIOHTTP: aiohttp,
    AIOHTTP_JSON: aiohttp_json,
    HTTPX: httpx,
}


def take_turns(to_parent: Connection, way: str, url: str, *, as_worker: bool) -> None:
    """A client's process: measures the way with as many rows as the parent says, again and again."""
    from turnloom.integrations.nemo_gym._process import collect_garbage_rarely

    raise_descriptor_limit()
    asyncio.run(WAYS[way](url, 8))  # imports all, which takes seconds
    if as_worker:
        collect_garbage_rarely()
    to_parent.send(way)
    while True:
        count = to_parent.recv()
        to_parent.send(asyncio.run(_measured(WAYS[way], url, count)))


async def _measured(way: Callable[[str, int], Awaitable[int]], url: str, count: int) -> Cost:
    async def work() -> None:
        rows = await way(url, count)
        assert rows == count, f"{rows} rows of {count} answers"

    return await cost_of(work)


def measure(sizes: tuple[int, ...], rounds: int, *, as_worker: bool) -> tuple[int, dict[tuple[str, int], list[Cost]]]:
    """The size of a body, and of each way and number of rollouts what each round cost."""
    costs: dict[tuple[str, int], list[Cost]] = {}
    with ExitStack() as processes:
        port, body_bytes = processes.enter_context(process_of(serve)).recv()
        client = partial(take_turns, url=f"http://127.0.0.1:{port}", as_worker=as_worker)
        clients = {way: processes.enter_context(process_of(client, way)) for way in WAYS}
        for each in clients.values():
            each.recv()
        for number in range(rounds):
            for size in sizes:
                # Another order each round, so that no way has always the same one before it.
                for way in [*WAYS, *WAYS][number % len(WAYS) :][: len(WAYS)]:
                    if way == HTTPX and size > HTTPX_UP_TO:
                        continue
                    clients[way].send(size)
                    costs.setdefault((way, size), []).append(clients[way].recv())
    return body_bytes, costs


def table(costs: dict[tuple[str, int], list[Cost]]) -> list[dict[str, Any]]:
    """A line for each number of rollouts and way: medians, and what they are to be compared with."""
    lines = []
    least = min(size for _, size in costs)

    def median(way: str, size: int, what: str) -> float:
        return statistics.median(asdict(cost)[what] for cost in costs[way, size])

    for way, size in sorted(costs, key=lambda key: (key[1], list(WAYS).index(key[0]))):
        lines.append(
            {
                "in_flight": size,
                "way": way,
                "rounds": len(costs[way, size]),
                "wall_s": median(way, size, "wall_s"),
                "wall_of_aiohttp": median(way, size, "wall_s") / median(AIOHTTP, size, "wall_s"),
                "cpu_us": 1e6 * median(way, size, "cpu_s") / size,
                "cpu_growth": median(way, size, "cpu_s") / size / (median(way, least, "cpu_s") / least),
                "stall_s": median(way, size, "stall_s"),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="up to 256 rollouts, once")
    parser.add_argument("--worker", action="store_true", help="with Python's collector set as in the worker's process")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way takes its turn (5)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    allowed = raise_descriptor_limit() - 100
    sizes = tuple(size for size in (FAST_SIZES if arguments.fast else SIZES) if size <= allowed)
    body_bytes, costs = measure(sizes, 1 if arguments.fast else arguments.rounds, as_worker=arguments.worker)
    lines = table(costs)
    print(f"answers of {body_bytes:,} bytes after {ANSWER_AFTER_S:g} s; the growth is that from {sizes[0]} in flight")
    print("| in flight | way | wall s | × aiohttp | CPU µs per rollout | growth | worst stall ms |")
    print("| --: | --- | --: | --: | --: | --: | --: |")
    for it in lines:
        print(
            f"| {it['in_flight']:,} | {it['way']} | {it['wall_s']:.2f} | {it['wall_of_aiohttp']:.2f} "
            f"| {it['cpu_us']:.0f} | {it['cpu_growth']:.2f} | {1e3 * it['stall_s']:.0f} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
