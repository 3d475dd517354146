"""The policy server and the agent server, in a process of their own that ends when its standard input does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, NoReturn


class Servers:
    """Starts the process; it lives no longer than this one, however this one ends.

    Attributes:
        agent_url: where `POST /run` is answered; known after `wait_until_ready`.
        policy_url: where the policy samples and takes weights.
    """

    agent_url: str
    policy_url: str

    def __init__(self, *, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "turnloom.demo.servers", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in a terminal goes to a whole process group: this process is to end by its parent's will.
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Wait for the process to import torch and to listen.

        Raises:
            RuntimeError: it ended first; why is on standard error.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the servers did not start: exit status {self._process.wait()}")
        urls = json.loads(line)
        self.agent_url, self.policy_url = urls["agent"], urls["policy"]

    def stop(self) -> None:
        """End the process, which has nothing to save."""
        self._process.kill()
        # Waits, and closes the pipes.
        self._process.communicate()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


async def _serve(seed: int) -> None:
    from turnloom.demo.agent import agent_app
    from turnloom.demo.policy import Policy, policy_app

    policy_url = await _listen(policy_app(Policy(seed)))
    agent_url = await _listen(agent_app(policy_url))
    sys.stdout.write(json.dumps({"agent": agent_url, "policy": policy_url}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _listen(app: Any) -> str:
    """Serve on a free port of the loopback interface; the URL."""
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    return f"http://{host}:{port}"


def _exit_with_parent() -> NoReturn:
    """Read to the end of standard input, which comes when the parent has ended, and exit."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    asyncio.run(_serve(int(sys.argv[1])))
