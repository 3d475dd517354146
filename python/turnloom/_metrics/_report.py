"""What a run tells of itself while it lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from turnloom._client import AgentState
from turnloom._metrics._ledger import Ledger
from turnloom._metrics._progress import Progress
from turnloom._metrics._prometheus import prometheus_endpoint

logger = logging.getLogger("turnloom")

PROGRESS_EVERY_S: Final = 60.0
"""A line of progress is logged so often, while something is going on."""


@contextlib.asynccontextmanager
async def reports(
    ledger: Ledger, agents: Callable[[], Mapping[str, AgentState]], *, prometheus_port: int | None
) -> AsyncIterator[None]:
    """Log progress while the block runs, and serve the snapshot to Prometheus where a port is given.

    Args:
        agents: gives what the client tells of each agent.

    Raises:
        ConfigError: nothing can be served at the port.
    """
    async with contextlib.AsyncExitStack() as stack:
        if prometheus_port is not None:
            await stack.enter_async_context(prometheus_endpoint(prometheus_port, lambda: ledger.snapshot(agents())))
        telling = asyncio.create_task(_tell(Progress(ledger), agents))
        try:
            yield
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling


async def _tell(progress: Progress, agents: Callable[[], Mapping[str, AgentState]]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        if line := progress.line(agents()):
            logger.info(line)
