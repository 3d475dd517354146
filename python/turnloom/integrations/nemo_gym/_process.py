"""The worker's process: how it ends, and how its end is told."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import Queue
from typing import Any, Final

logger = logging.getLogger("turnloom")

END_S: Final = 3.0
"""How long the process may take to end once it is asked to; then it is ended."""


GARBAGE_THRESHOLD: Final = 10_000
"""New objects that live, until Python's collector looks at them; its own default is 700."""


# In the worker's process


def leave_interrupts_to_the_trainer() -> None:
    """In the worker's process, ignore SIGINT: Ctrl-C reaches all of a terminal, and the trainer stops this one."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def log_to_stderr() -> None:
    """In the worker's process, show our log from INFO on, unless a module of the user's has set up logging there."""
    if multiprocessing.parent_process() is None or logger.hasHandlers():
        return
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
    logger.addHandler(shown)
    logger.setLevel(logging.INFO)


def collect_garbage_rarely() -> None:
    """In the worker's process, let Python's collector look less often, and never at what the imports have made.

    Rollouts in flight are many objects that live, and to look at them again and again is nearly half of what a small
    rollout costs when there are thousands. Those of the imports are more, and a look at them holds the event loop up.
    """
    if multiprocessing.parent_process() is not None:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # else libraries in C say at the end that their objects have leaked
        gc.set_threshold(GARBAGE_THRESHOLD)


def stop_when_told(stop_event: asyncio.Event) -> None:
    """In the worker's process, set the event at SIGTERM, and when the trainer's process ends without a word."""
    trainer = multiprocessing.parent_process()
    if trainer is None or threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def told(why: str) -> None:
        logger.warning("the rollout worker's process ends: %s", why)
        _end_within(END_S)

    def on_sigterm() -> None:
        told("it was sent SIGTERM")
        stop_event.set()

    def watch_trainer() -> None:
        wait([trainer.sentinel])
        told("the trainer's is gone")
        with contextlib.suppress(RuntimeError):  # the loop is over, and samples that nobody reads are all that is left
            loop.call_soon_threadsafe(stop_event.set)

    loop.add_signal_handler(signal.SIGTERM, on_sigterm)
    threading.Thread(target=watch_trainer, name="turnloom-trainer-watcher", daemon=True).start()


def _end_within(seconds: float) -> None:
    """End this process even if a reward function, or a queue that nobody reads, would keep it."""
    timer = threading.Timer(seconds, os._exit, [0])
    timer.daemon = True
    timer.start()


def leave_unread(*queues: Any) -> None:
    """Let the process end although nobody reads these queues, which then may end in the middle of an item.

    Only for an end that was asked for. After a failure the trainer reads every sample before it hears of the failure.
    """
    for each in queues:
        if hasattr(each, "cancel_join_thread"):
            each.cancel_join_thread()


# In the trainer's process


class WorkersQueue(Queue):  # type: ignore[type-arg]
    """A queue from the worker's process, which is empty once that has ended, even in the middle of an item.

    A queue of `multiprocessing` waits for ever for the rest of an item whose writer was killed.
    """

    _writer: Connection

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item.

        Raises:
            queue.Empty: there was none in time, or the process has ended.
        """
        try:
            return super().get(block, timeout)
        except (EOFError, OSError):
            raise queue.Empty from None

    def leave_writing_to_the_worker(self) -> None:
        """Close this process's own end for writing: with the worker's gone there is then none."""
        self._writer.close()


class EndsWell:
    """What TRL's worker does not do about a process that ends or dies, as the first base of a worker."""

    def __init__(self: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rollout_buffer = WorkersQueue(self.rollout_buffer._maxsize, ctx=self._mp_ctx)
        self.metrics_queue = WorkersQueue(self.metrics_queue._maxsize, ctx=self._mp_ctx)

    def start(self: Any) -> None:
        """Start the process."""
        super().start()  # type: ignore[misc]
        self.rollout_buffer.leave_writing_to_the_worker()
        self.metrics_queue.leave_writing_to_the_worker()

    def check_health(self: Any, stale_after_s: float) -> None:
        """Raise when the process has failed, ended, or gives no sign of life."""
        process = self._process
        if process is not None and process.exitcode is not None and not self._failed_event.is_set():
            how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit status {process.exitcode}"
            raise RuntimeError(
                f"the rollout worker's process has ended ({how}) while the trainer still needs it: signal 9 is often "
                "the kernel's, when memory is short; exit status 0 follows a SIGTERM"
            )
        super().check_health(stale_after_s)  # type: ignore[misc]

    def stop(self: Any) -> None:
        """End the process, within some seconds in any case."""
        process = self._process
        if process is None or process.pid is None:
            return
        # In a thread of its own: the event waits for its listener to wake up, for ever if that has died.
        threading.Thread(target=self._stop_event_mp.set, name="turnloom-stop", daemon=True).start()
        process.join(END_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        self._process = None
