"""The core beside Python's threads and processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import make_corpus
import turnloom
from rollouts import everything, feed, rows_of


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How far another thread has counted. It moves only while this thread gives the GIL away of its own will."""
    count = 0
    stop = False
    started = threading.Event()

    def run() -> None:
        nonlocal count
        while not stop:
            count += 1
            started.set()
            time.sleep(0)  # gives the GIL back

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)  # nobody is made to give it away
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(10)
        yield lambda: count
    finally:
        stop = True
        thread.join()
        sys.setswitchinterval(interval)


def advances(read: Callable[[], int], call: Callable[[], object]) -> bool:
    """Whether the other thread counts on during one of some calls."""
    for _ in range(20):
        before = read()
        call()
        if read() > before:
            return True
    return False


def test_the_gil_is_released_while_a_body_is_parsed() -> None:
    body = make_corpus.body("mid")
    with counting() as read:
        assert not advances(read, lambda: sum(range(10_000))), "the test cannot tell"
        assert advances(read, lambda: turnloom.parse_run(body))
        assert advances(read, lambda: turnloom.RunParser().feed(body))


def test_the_gil_is_released_while_rows_are_padded_and_packed() -> None:
    rows = turnloom.parse_run(make_corpus.body("single")).rows * 8
    with counting() as read:
        assert advances(read, lambda: turnloom.pad(rows, pad_token_id=0))
        assert advances(read, lambda: turnloom.pad_prompt_completion(rows, pad_token_id=0))
        assert advances(read, lambda: turnloom.pack(rows))


def test_threads_parse_at_once() -> None:
    bodies = [make_corpus.body(name) for name in ("mid", "forked", "small")] * 2
    expected = [everything(turnloom.parse_run(body)) for body in bodies]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(lambda body: everything(feed(body, range(0, len(body), 50_000))), bodies))
    finally:
        sys.setswitchinterval(interval)
    assert told == expected


def test_one_parser_in_two_threads_at_once_is_no_crash() -> None:
    """Nobody should; whoever does gets an exception or a parsed body, and the interpreter lives."""
    body = make_corpus.body("mid")
    parser = turnloom.RunParser()
    barrier = threading.Barrier(2)

    def feed_all() -> str:
        barrier.wait()
        try:
            parser.feed(body)
        except (turnloom.MalformedBody, RuntimeError) as error:
            return type(error).__name__
        return "fed"

    with ThreadPoolExecutor(2) as pool:
        ends = sorted(future.result() for future in [pool.submit(feed_all), pool.submit(feed_all)])
    assert ends in (["MalformedBody", "fed"], ["RuntimeError", "fed"])
    assert len(turnloom.parse_run(body).rows) == 1


FORK = """
import os, sys, turnloom
from pathlib import Path

body = Path(sys.argv[1]).read_bytes()
parser = turnloom.RunParser()
parser.feed(body[: len(body) // 2])
child = os.fork()
parser.feed(body[len(body) // 2 :])
rollout = parser.finish()
again = turnloom.parse_run(body)
assert rollout.drift == again.drift and len(rollout.turns) == 4
assert [row.input_ids.tobytes() for row in rollout.rows] == [row.input_ids.tobytes() for row in again.rows]
batch = turnloom.pad(rollout.rows, pad_token_id=0)
assert batch.input_ids.shape[0] == 1
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_parser_goes_on_in_both_processes_after_a_fork() -> None:
    make_corpus.body("small")
    source = str(Path(turnloom.__file__).parents[1])
    command = [sys.executable, "-W", "error", "-c", FORK, str(make_corpus.BODIES / "small.json")]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 4])
def test_arrays_made_in_a_thread_live_on(threads: int) -> None:
    body = make_corpus.body("small")
    expected = rows_of(turnloom.parse_run(body).rows)
    with ThreadPoolExecutor(threads) as pool:
        rollouts = list(pool.map(turnloom.parse_run, [body] * 50))
    assert all(rows_of(rollout.rows) == expected for rollout in rollouts)
