"""The worker's process: how it ends, and how its end is told."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from typing import Any, Final

_LAST_WORDS_S: Final = 5.0
"""How long a process that failed may take to hand over what it has queued."""


def leave_interrupts_to_the_trainer() -> None:
    """In the worker's process, ignore SIGINT: Ctrl-C reaches all of a terminal, and the trainer stops this one."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_without_trainer(stop_event: asyncio.Event) -> None:
    """In the worker's process, set the event when the trainer's ends without a word."""
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        asyncio.get_running_loop().add_reader(trainer.sentinel, stop_event.set)


def leave_unread(*queues: Any) -> None:
    """Let the process end although nobody reads these queues, which then may end in the middle of an item.

    Only for an end that was asked for. After a failure the trainer reads every sample before it hears of the failure,
    and half a sample would keep it waiting for the rest.
    """
    for each in queues:
        if hasattr(each, "cancel_join_thread"):
            each.cancel_join_thread()


class EndsWell:
    """What TRL's worker does not do about a process that has died, as the first base of a worker."""

    def check_health(self: Any, stale_after_s: float) -> None:
        """Raise when the process has failed, died, or gives no sign of life."""
        process = self._process
        if process is not None and process.exitcode is not None and not self._failed_event.is_set():
            how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit status {process.exitcode}"
            raise RuntimeError(
                f"the rollout worker's process has died ({how}) without telling why: signal 9 is often the kernel's, "
                "when memory is short"
            )
        super().check_health(stale_after_s)  # type: ignore[misc]

    def stop(self: Any) -> None:
        """End the process."""
        process = self._process
        if process is None or not (self._failed_event.is_set() or process.exitcode is not None):
            super().stop()  # type: ignore[misc]
            return
        # It ends by itself. To ask it, as TRL would, is to wait for ever: the event waits for its listener to wake up,
        # who has died with the process.
        process.join(_LAST_WORDS_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        self._process = None
