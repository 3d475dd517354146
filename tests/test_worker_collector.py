"""How often Python's collector looks at the objects of the worker's process, and of others."""

import gc
import multiprocessing
from multiprocessing.connection import Connection

from turnloom.integrations.nemo_gym._process import GARBAGE_THRESHOLD, collect_garbage_rarely


def _tell(to_parent: Connection) -> None:
    collect_garbage_rarely()
    to_parent.send((gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count(), len(gc.get_objects())))


def test_it_looks_rarely_in_the_workers_process_alone() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_tell, args=(theirs,))
    process.start()
    enabled, threshold, frozen, looked_at = ours.recv()
    process.join()
    assert (enabled, threshold) == (True, GARBAGE_THRESHOLD)
    assert frozen > 10 * looked_at

    before = gc.get_threshold(), gc.get_freeze_count()
    collect_garbage_rarely()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
