"""Ctrl-C, and a run that stands still: both end every process that the demo started."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import rich.console

from turnloom.demo.progress import Bar

_STANDSTILL_S = 180.0
# A signal may take five seconds in all: for the worker's process to stop, for TRL to notice that it was killed (it
# looks once a second), and for the interpreter to end.
_STOP_S = 1.0
_LEAVE_S = 1.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Guard:
    """While the block runs, ends what has to be ended.

    SIGINT and SIGTERM raise KeyboardInterrupt. If the block has not been left soon after, the processes that
    `multiprocessing` started are killed, and then this one exits. If nothing happens for three minutes, it
    says where it stands, leaves the stacks of all threads in `stuck.txt`, and exits with 1.

    Attributes:
        signal: the number of the signal that came, if one did.
    """

    def __init__(self, bar: Bar, console: rich.console.Console, *, out: Path) -> None:
        self.signal: int | None = None
        self._bar = bar
        self._console = console
        self._out = out
        self._left = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Guard:
        self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        threading.Thread(target=self._watch_for_standstill, name="demo-standstill", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            return  # the first one is at work
        self.signal = number
        # Nothing is killed yet: the trainer ends its worker in good order.
        threading.Thread(target=self._exit_unless_left, name="demo-exit", daemon=True).start()
        raise KeyboardInterrupt

    def _exit_unless_left(self) -> None:
        if not self._left.wait(_STOP_S):
            _kill_children()
        if not self._left.wait(_LEAVE_S):
            self._exit(128 + (self.signal or 0))

    def _watch_for_standstill(self) -> None:
        while not self._left.wait(1.0):
            if time.monotonic() - self._bar.moved_at > _STANDSTILL_S:
                self._tell_standstill()
                self._exit(1)

    def _tell_standstill(self) -> None:
        stacks = self._out / "stuck.txt"
        with stacks.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        self._console.print(
            f"nothing has happened for {_STANDSTILL_S:.0f} s, since: {self._bar.happening}. Where each thread stands "
            f"is in {stacks}; please report it, and try again",
            style="red",
        )

    def _exit(self, status: int) -> None:
        _kill_children()
        self._console.show_cursor()
        os._exit(status)


def _kill_children() -> None:
    """Kill what `multiprocessing` started. Whoever started it waits for it, and must not find that another has."""
    for child in multiprocessing.active_children():
        child.kill()
