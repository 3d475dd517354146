"""Memory: a body is parsed while it arrives and not kept; what comes out owns its memory."""

import gc
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import make_corpus
import turnloom
from rollouts import answer, rows_of, turn
from rollouts import arrays_of as arrays_of_row

ROOT = Path(__file__).resolve().parents[1]
MEGABYTE = 1_000_000


def run_python(script: str, *arguments: str) -> list[int]:
    """The numbers that a fresh interpreter prints."""
    paths = [str(ROOT / "benches"), str(ROOT / "tests"), str(Path(turnloom.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


FEED_BIG_BODY = """
    import os
    import turnloom
    import turnloom.bench._corpus as corpus

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def chunks():
        pending = b""
        for piece in corpus.chunks("big"):
            pending += piece
            while len(pending) >= 65_536:
                yield pending[:65_536]
                pending = pending[65_536:]
        yield pending

    for chunk in chunks():  # what making the body takes is taken before
        pass
    parser = turnloom.RunParser()
    before = peak = resident()
    size = 0
    for chunk in chunks():
        parser.feed(chunk)
        size += len(chunk)
        peak = max(peak, resident())
    fed = resident()
    rollout = parser.finish()
    row, = rollout.rows
    print(size, peak - before, resident() - fed, len(row.input_ids), rollout.drift.clean)
"""


def test_a_body_of_84_mb_is_not_kept() -> None:
    size, grown, grown_by_finish, tokens, clean = run_python(FEED_BIG_BODY)
    assert size > 83 * MEGABYTE
    assert (tokens, clean) == (129_000, 199)
    assert grown < 40 * MEGABYTE
    assert grown_by_finish < 10 * MEGABYTE


FEED_ROUTED_EXPERTS = """
    import turnloom
    from high_water import high_water

    parser = turnloom.RunParser()
    parser.feed(b'{"reward":1,"response":{"output":[{"prompt_token_ids":[1],"generation_token_ids":[2],')
    parser.feed(b'"generation_log_probs":[-0.5],"routed_experts":[[0]')
    before = high_water()
    piece = b",[" + b"[1,22,333]," * 6_000 + b"[4]]"
    for _ in range(1_000):
        parser.feed(piece)
    parser.feed(b"]}]}}")
    rollout = parser.finish()
    after = high_water()
    print(rollout.turns[0].routed_experts_bytes, after - before, len(rollout.rows))
"""


def test_routed_experts_are_not_kept() -> None:
    size, grown, rows = run_python(FEED_ROUTED_EXPERTS)
    assert size > 60 * MEGABYTE
    assert rows == 1
    assert grown < 5 * MEGABYTE


MANY_DEFECTS = """
    import turnloom
    from high_water import high_water

    parser = turnloom.RunParser()
    parser.feed(b'{"reward":1,"response":{"output":[{"prompt_token_ids":["' + b"9" * 100)
    before = high_water()
    for _ in range(1_000):
        parser.feed(b"9" * 60_000)
    parser.feed(b'"],"generation_token_ids":[1],"generation_log_probs":[0]}]}}')
    rollout = parser.finish()
    after = high_water()
    print(after - before, len(rollout.defects), len(rollout.defects[0].detail))
"""


def test_an_endless_id_is_not_kept() -> None:
    grown, defects, detail = run_python(MANY_DEFECTS)
    assert defects == 1
    assert detail < 1_000
    assert grown < 5 * MEGABYTE


def test_parsing_again_and_again_keeps_nothing() -> None:
    grown, rows = run_python(
        """
        import make_corpus, turnloom
        from high_water import allocated

        body = make_corpus.body("mid")
        for round in range(30):
            rollout = turnloom.parse_run(body)
            broken = turnloom.RunParser()
            broken.feed(body[: 9_000_000])
            if round == 4:
                before = allocated()
        print(allocated() - before, len(rollout.rows))
        """
    )
    assert rows == 1
    assert grown < MEGABYTE / 2  # of one round the arrays alone are 1 MB


def arrays_of(rollout: turnloom.Rollout) -> list[np.ndarray]:
    return [array for row in rollout.rows for array in (*arrays_of_row(row), row.turn_spans)]


def test_arrays_are_writable_and_outlive_everything() -> None:
    body = bytearray(answer(turn([1, 2], [3, 4]), turn([9], [8])))
    parser = turnloom.RunParser()
    parser.feed(body)
    rollout = parser.finish()
    told = rows_of(rollout.rows)
    arrays = arrays_of(rollout)
    body[:] = b" " * len(body)
    del body, parser, rollout
    gc.collect()
    assert rows_of([arrays[:4], arrays[4:]]) == told
    for array in arrays:
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        array[:] = 7
        assert (array == 7).all()


def test_arrays_of_one_rollout_share_nothing() -> None:
    arrays = arrays_of(turnloom.parse_run(make_corpus.body("forked")))
    assert len(arrays) > 3
    for number, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:number])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_torch_takes_the_arrays_as_they_are(dtype: torch.dtype) -> None:
    arrays = arrays_of(turnloom.parse_run(answer(turn([1, 2], [3, 4]))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = [torch.from_numpy(array) for array in arrays]
    assert [tensor.data_ptr() for tensor in tensors] == [array.ctypes.data for array in arrays]
    assert dtype in {tensor.dtype for tensor in tensors}
    tensors[0][0] = 99
    assert arrays[0][0] == 99
