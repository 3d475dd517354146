"""A programmable agent server in the shape of NeMo Gym's, for tests: it answers, and it misbehaves, byte by byte.

>>> from turnloom.testing import FakeAgent, gym_answer
>>> answer = gym_answer({"id": 7}, turns=[([1, 2], [3], [-0.5])], reward=1.0)
>>> with FakeAgent(answer) as agent:          # a thread of its own; `async with` serves in the running loop
...     agent.url.startswith("http://127.0.0.1:")
True

What it does with each `POST /run` is an answer, or an async function of the call:

>>> async def half(call):
...     await call.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 100\\r\\n\\r\\n{")
...     call.reset()
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Self, TypeAlias


def gym_answer(
    row: Mapping[str, Any],
    *,
    turns: Iterable[tuple[Sequence[int], Sequence[int], Sequence[float]]],
    reward: float | None = 1.0,
    **more: Any,
) -> dict[str, Any]:
    """What NeMo Gym answers: the row's own fields, one assistant message per turn, and the reward.

    Args:
        row: the request; its fields come back.
        turns: per model call the prompt ids, the generated ids, and the logprobs of these.
        reward: None leaves it out.
        more: further fields of the answer.

    Examples:
        >>> answer = gym_answer({"id": 7}, turns=[([1, 2], [3], [-0.5])], reward=0.25, steps=1)
        >>> answer["id"], answer["reward"], answer["steps"], answer["response"]["output"][0]["generation_token_ids"]
        (7, 0.25, 1, [3])
    """
    output = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": []}],
            "prompt_token_ids": list(prompt),
            "generation_token_ids": list(generation),
            "generation_log_probs": list(log_probs),
        }
        for prompt, generation, log_probs in turns
    ]
    response = {"id": "resp", "status": "completed", "error": None, "incomplete_details": None, "output": output}
    return {**row, "response": response, **({} if reward is None else {"reward": reward}), **more}


class AgentCall:
    """One request whose headers have come, and the means to answer it well or badly.

    Attributes:
        method: as sent.
        path: as sent.
        headers: by their names in lower case; of repeated ones the last.
        client_address: host and port that it came from.
    """

    def __init__(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_last: Callable[[], bool] = lambda: False,
    ) -> None:
        request_line, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = request_line.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.client_address: tuple[str, int] = writer.get_extra_info("peername")
        self.keeps_alive = False
        self._reader = reader
        self._writer = writer
        self._is_last = is_last
        self._unread = int(self.headers.get("content-length", 0))
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """The request's body. What is never asked for is never read from the socket, but for some 128 KiB."""
        if self._body is None:
            self._body = await self.read(self._unread)
        return self._body

    async def read(self, size: int) -> bytes:
        """The next bytes of the request's body, fewer than `size` at its end; after this, `body` has only the rest."""
        data = await self._reader.readexactly(min(size, self._unread))
        self._unread -= len(data)
        return data

    async def row(self) -> Any:
        """The request's body as JSON."""
        return json.loads(await self.body())

    async def answer(self, content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer, after the whole request: bytes as they are, anything else as JSON."""
        await self.body()
        body = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
        sent = {"content-type": "application/json", "content-length": str(len(body))}
        if status != 500:  # as NeMo Gym does
            sent["set-cookie"] = "session=eyJzZXNzaW9uIjoiMSJ9; path=/; httponly"
        is_last = self._is_last()
        if is_last:
            sent["connection"] = "close"
        sent.update(headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        await self.send(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode("latin-1") + body)
        self.keeps_alive = not is_last

    async def send(self, data: bytes) -> None:
        """These bytes, whatever they mean. The connection ends when the function that was given the call returns."""
        self.keeps_alive = False
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> int:
        """Say nothing until the client has closed the connection; gives the bytes that still came."""
        count = 0
        with suppress(ConnectionError):
            while data := await self._reader.read(65536):
                count += len(data)
        return count

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Behaviour: TypeAlias = Callable[[AgentCall], Awaitable[None]]


class FakeAgent:
    """An agent server on this machine, up within its `with` (in a thread) or `async with` block.

    Other requests than `POST /run` with a JSON object get NeMo Gym's errors. An exception of the behaviour is raised
    at the end of the block, unless the client has just gone away.

    Args:
        behaviour: an answer for every row (bytes as they are, anything else as JSON), or an async function that is
            given each `AgentCall`.
        port: 0 takes a free one.

    Attributes:
        behaviour: as given; what is set here holds for the calls that come after.
        url: what a client is given.
        calls: every `POST /run` whose headers came, in order.
        connections: how many connections were accepted.
        open_connections: how many of them are open.
    """

    def __init__(self, behaviour: Behaviour | Any, *, port: int = 0) -> None:
        self.behaviour = behaviour
        self._port = port
        self.url = ""
        self.calls: list[AgentCall] = []
        self.connections = 0
        self.open_connections = 0
        self._errors: list[Exception] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None
        self._refuses = False
        self._stop: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._errors and kind is None:
            raise self._errors[0]

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(ready),), name="FakeAgent", daemon=True)
        self._thread.start()
        ready.wait()
        if self._errors:
            raise self._errors[0]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._thread is not None
        self._stop()
        self._thread.join()
        if self._errors and kind is None:
            raise self._errors[0]

    async def _serve(self, ready: threading.Event) -> None:
        stopped = asyncio.Event()
        self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)
        try:
            async with self:
                ready.set()
                await stopped.wait()
        except Exception as error:
            self._errors.append(error)
        finally:
            ready.set()

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        """Take no connection within the block, as a server that goes down in good order: each open one has its answer.

        For a server that serves in the caller's loop.
        """
        assert self._server is not None
        self._refuses = True
        with self._server.sockets[0].dup() as listener:
            self._server.close()
            # To a client they are open: closed with the listener, they would be lost without a call.
            waiting = _accept_all(listener)
        for connection in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._new_protocol, connection)
        try:
            yield
        finally:
            self._refuses = False
            await self._listen()

    def _new_protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._connected)

    async def until(self, condition: Callable[[FakeAgent], bool]) -> None:
        """Wait until something holds of this server, where it serves in the caller's loop.

        Examples:
            >>> await agent.until(lambda agent: agent.open_connections == 0)  # doctest: +SKIP
        """
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _note(self, *, connections: int = 0, call: AgentCall | None = None) -> None:
        async with self._changed:
            self.open_connections += connections
            self.connections += max(connections, 0)
            if call is not None:
                self.calls.append(call)
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await self._note(connections=1)
        try:
            while await self._one_call(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, or this server, has gone
        except Exception as error:
            self._errors.append(error)
        finally:
            writer.close()
            self._tasks.discard(task)
            await self._note(connections=-1)

    async def _one_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can have another."""
        head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
        call = AgentCall(head, reader, writer, is_last=lambda: self._refuses)
        if call.path != "/run":
            await call.answer({"detail": "Not Found"}, status=404)
        elif call.method != "POST":
            await call.answer({"detail": "Method Not Allowed"}, status=405, headers={"allow": "POST"})
        elif call.headers.get("content-type") != "application/json":
            await call.answer("Internal Server Error", status=500)
        else:
            await self._note(call=call)
            await as_behaviour(self.behaviour)(call)
        return call.keeps_alive


def as_behaviour(given: Behaviour | Any) -> Behaviour:
    """The function itself, or one that answers every row with what is given."""
    if callable(given):
        behaviour: Behaviour = given
        return behaviour

    async def answer(call: AgentCall) -> None:
        try:
            await call.row()
        except ValueError:
            detail = [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error"}]
            await call.answer({"detail": detail}, status=422)
        else:
            await call.answer(given)

    return answer


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted."""
    listener.setblocking(False)
    connections = []
    with suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            connections.append(connection)
    return connections
