"""Rows → padded and packed arrays, and tensors that share their memory."""

import dataclasses
import gc
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnloom
from layouts import LAYOUTS, ROWS, VALUES, arrays, laid_out_by_hand, refused_by_hand, row, told
from turnloom import ConfigError, TrainingRow

DTYPES = {"old_log_probs": np.float32, "values": np.float32, "cu_seqlens": np.int32}
ALL_KEPT = {"kept_rows": [0, 1], "dropped_rows": 0, "truncated_rows": 0, "truncated_tokens": 0}


# The layouts


def test_pad() -> None:
    assert told(turnloom.pad(ROWS, pad_token_id=9, multiple_of=4, values=VALUES)) == ALL_KEPT | {
        "input_ids": [[1, 2, 3, 9, 9, 9, 9, 9], [4, 5, 6, 7, 0, 9, 9, 9]],
        "attention_mask": [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]],
        "completion_mask": [[0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 0, 0]],
        "old_log_probs": [[0, -1, -2, 0, 0, 0, 0, 0], [0, 0, -3, 0, -4, 0, 0, 0]],
        "values": [[0, 0.5, 0.5, 0, 0, 0, 0, 0], [0, 0, 1.5, 0, 2.5, 0, 0, 0]],
    }


def test_pad_at_the_left() -> None:
    assert told(turnloom.pad(ROWS, pad_token_id=9, padding_side="left")) == ALL_KEPT | {
        "input_ids": [[9, 9, 1, 2, 3], [4, 5, 6, 7, 0]],
        "attention_mask": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
        "completion_mask": [[0, 0, 0, 1, 1], [0, 0, 1, 0, 1]],
        "old_log_probs": [[0, 0, 0, -1, -2], [0, 0, -3, 0, -4]],
        "values": None,
    }


def test_pad_prompt_completion() -> None:
    assert told(turnloom.pad_prompt_completion(ROWS, pad_token_id=9, values=VALUES)) == ALL_KEPT | {
        "prompt_ids": [[9, 1], [4, 5]],
        "prompt_mask": [[0, 1], [1, 1]],
        "completion_ids": [[2, 3, 9], [6, 7, 0]],
        "completion_mask": [[1, 1, 0], [1, 1, 1]],
        "loss_mask": [[1, 1, 0], [1, 0, 1]],
        "old_log_probs": [[-1, -2, 0], [-3, 0, -4]],
        "values": [[0.5, 0.5, 0], [1.5, 0, 2.5]],
    }


def test_pack() -> None:
    assert told(turnloom.pack(ROWS, values=VALUES)) == ALL_KEPT | {
        "input_ids": [1, 2, 3, 4, 5, 6, 7, 0],
        "position_ids": [0, 1, 2, 0, 1, 2, 3, 4],
        "completion_mask": [0, 1, 1, 0, 0, 1, 0, 1],
        "old_log_probs": [0, -1, -2, 0, 0, -3, 0, -4],
        "row_index": [0, 0, 0, 1, 1, 1, 1, 1],
        "cu_seqlens": [0, 3, 8],
        "max_seqlen": 5,
        "values": [0, 0.5, 0.5, 0, 0, 1.5, 0, 2.5],
    }


def test_a_token_that_equals_the_padding_stays_a_token() -> None:
    assert turnloom.pad(ROWS, pad_token_id=0).attention_mask[1].tolist() == [1, 1, 1, 1, 1]
    halves = turnloom.pad_prompt_completion(ROWS, pad_token_id=0)
    assert halves.completion_mask[1].tolist() == [1, 1, 1]
    zeros = turnloom.pad([row([0, 0], [0, 1], [0, -1])], pad_token_id=0, padding_side="left", multiple_of=4)
    assert zeros.attention_mask.tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_may_be_anything_with_the_three_arrays(layout: Any) -> None:
    handmade = TrainingRow([1, 2, 3], (0, 1, 1), np.array([0, -1, -2], np.float64))  # type: ignore[arg-type]
    strided = np.arange(10)[1:7:2]
    assert told(layout(iter([handmade]))) == told(layout(ROWS[:1]))
    picked = TrainingRow(strided, ROWS[0].completion_mask, ROWS[0].old_log_probs)
    assert told(layout([picked])) == told(layout([row([1, 3, 5], [0, 1, 1], [0, -1, -2])]))


# Against numpy


@st.composite
def some_rows(draw: st.DrawFn) -> list[TrainingRow]:
    rows = []
    for length in draw(st.lists(st.integers(0, 10), max_size=6)):
        ids = draw(st.lists(st.integers(0, 6), min_size=length, max_size=length))
        mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        rows.append(row(ids, mask, [-0.5 * place * trained for place, trained in enumerate(mask)]))
    return rows


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "max_length": st.one_of(st.none(), st.integers(1, 11)),
        "on_overflow": st.sampled_from(["error", "drop", "truncate"]),
        "vocab_size": st.one_of(st.none(), st.integers(5, 8)),
    },
)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(rows=some_rows(), settings=SETTINGS, data=st.data())
def test_any_rows_with_any_settings(layout: Any, rows: list[TrainingRow], settings: dict[str, Any], data: Any) -> None:
    if layout is not turnloom.pack:
        settings = settings | {"pad_token_id": data.draw(st.integers(-1, 9))}
    if layout is turnloom.pad:
        settings |= {"padding_side": data.draw(st.sampled_from(["left", "right"]))}
        settings |= {"multiple_of": data.draw(st.integers(1, 8))}
    values = [np.arange(1, len(one.input_ids) + 1, dtype=np.float32) for one in rows]
    refusal = refused_by_hand(rows, settings)
    if refusal is not None:
        with pytest.raises(ConfigError) as refused:
            layout(rows, values=values, **settings)
        assert str(refused.value).startswith(refusal)
        return
    expected = laid_out_by_hand(layout, rows, values, settings)
    assert told(layout(rows, values=values, **settings)) == expected
    assert told(layout(rows, **settings)) == expected | {"values": None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_many_tokens(layout: Any) -> None:
    """The core lays them out piece by piece."""
    drawn = np.random.default_rng(0)
    rows = []
    for length in (1, 127, 128, 129, 255, 256, 257, 1_000):
        mask = drawn.integers(0, 2, length) * (np.arange(length) >= length // 5)
        rows.append(row(drawn.integers(0, 99, length).tolist(), mask.tolist(), (-0.5 * mask).tolist()))
    values = [drawn.random(len(one.input_ids), np.float32) for one in rows]
    assert told(layout(rows, values=values)) == laid_out_by_hand(layout, rows, values, {"max_length": 1_000})


# Rows that are too long, ids that do not exist


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_that_is_too_long_is_refused(layout: Any) -> None:
    with pytest.raises(ConfigError, match="row 1 has 5 tokens, more than max_length=4") as refused:
        layout(ROWS, max_length=4)
    assert isinstance(refused.value, ValueError)
    assert 'on_overflow="truncate" keeps their first 4 tokens' in str(refused.value)
    assert type(pickle.loads(pickle.dumps(refused.value))) is ConfigError
    assert told(layout(ROWS, max_length=5)) == told(layout(ROWS))


def test_a_row_that_is_too_long_is_dropped_with_its_values() -> None:
    batch = turnloom.pack(
        [ROWS[1], ROWS[0], ROWS[1]], max_length=4, on_overflow="drop", values=[VALUES[i] for i in (1, 0, 1)]
    )
    assert (batch.kept_rows.tolist(), batch.dropped_rows, batch.truncated_rows) == ([1], 2, 0)
    assert (batch.input_ids.tolist(), batch.values.tolist()) == ([1, 2, 3], VALUES[0])
    assert (batch.row_index.tolist(), batch.cu_seqlens.tolist(), batch.max_seqlen) == ([0, 0, 0], [0, 3], 3)


def test_a_row_that_is_too_long_is_cut_in_all_arrays() -> None:
    batch = turnloom.pad(ROWS, max_length=3, on_overflow="truncate", values=VALUES)
    assert told(batch) == {
        "kept_rows": [0, 1],
        "dropped_rows": 0,
        "truncated_rows": 1,
        "truncated_tokens": 2,
        "input_ids": [[1, 2, 3], [4, 5, 6]],
        "attention_mask": [[1, 1, 1], [1, 1, 1]],
        "completion_mask": [[0, 1, 1], [0, 0, 1]],
        "old_log_probs": [[0, -1, -2], [0, 0, -3]],
        "values": [[0, 0.5, 0.5], [0, 0, 1.5]],
    }


def test_a_row_cut_before_its_first_trained_token_is_all_prompt() -> None:
    batch = turnloom.pad_prompt_completion(ROWS, max_length=2, on_overflow="truncate", pad_token_id=9)
    assert (batch.prompt_ids.tolist(), batch.completion_ids.tolist()) == ([[9, 1], [4, 5]], [[2], [9]])
    assert (batch.loss_mask.tolist(), batch.truncated_tokens) == ([[1], [0]], 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_when_every_row_is_dropped_the_batch_is_empty(layout: Any) -> None:
    batch = layout(ROWS, max_length=1, on_overflow="drop", values=VALUES)
    assert told(batch) == told(layout([], values=[])) | {"dropped_rows": 2}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("limit", [2**31, sys.maxsize, int(1e30)])
def test_no_limit_is_too_large(layout: Any, limit: int) -> None:
    """Tokenizers that know of no limit say `int(1e30)`."""
    assert told(layout(ROWS, max_length=limit)) == told(layout(ROWS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_id_beyond_the_vocabulary_is_refused(layout: Any) -> None:
    with pytest.raises(ConfigError, match=r"row 1: input_ids\[3\] is 7, which is not in a vocabulary of vocab_size=7"):
        layout(ROWS, vocab_size=7)
    with pytest.raises(ConfigError, match=r"row 0: input_ids\[1\] is -1, "):
        layout([row([0, -1], [0, 1], [0, 0])], vocab_size=8)
    assert told(layout(ROWS, vocab_size=8)) == told(layout(ROWS))
    assert layout(ROWS, vocab_size=7, max_length=3, on_overflow="truncate").truncated_tokens == 2
    with pytest.raises(ConfigError, match=r"row 2: input_ids\[0\] is 7"):  # the number it was given with
        layout([*ROWS, row([7], [1], [0])], vocab_size=7, max_length=3, on_overflow="drop")


# What is refused


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ragged_rows_are_refused(layout: Any) -> None:
    with pytest.raises(ConfigError, match="row 1 has 2 input_ids, 1 completion_mask and 2 old_log_probs"):
        layout([ROWS[0], row([1, 2], [1], [0, -1])])
    with pytest.raises(ConfigError, match=r"row 0: completion_mask has the shape \(1, 2\)"):
        layout([TrainingRow(np.zeros(2, np.int64), np.zeros((1, 2), np.int64), np.zeros(2, np.float32))])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_that_do_not_fit_are_refused(layout: Any) -> None:
    with pytest.raises(ConfigError, match="there are 2 rows, but values for 1"):
        layout(ROWS, values=VALUES[:1])
    with pytest.raises(ConfigError, match=r"row 1 has 5 tokens, but values\[1\] has 3"):
        layout(ROWS, values=[VALUES[0]] * 2)
    with pytest.raises(ConfigError, match=r"row 0: values has the shape \(3, 1\)"):
        layout(ROWS, values=[np.zeros((3, 1)), VALUES[1]])


@pytest.mark.parametrize(
    ("layout", "setting"),
    [
        (layout, setting)
        for layout in LAYOUTS
        for setting in ({"max_length": 0}, {"vocab_size": 0}, {"on_overflow": "cut"})
    ]
    + [(turnloom.pad, {"padding_side": "middle"}), (turnloom.pad, {"multiple_of": 0})],
)
def test_settings_are_checked(layout: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        layout(ROWS, **setting)


def test_a_batch_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="too large"):
        turnloom.pad(ROWS, multiple_of=2**62)
    with pytest.raises(MemoryError):
        turnloom.pad(ROWS, multiple_of=2**50)


# Memory


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [ROWS, []])
def test_arrays_are_writable_contiguous_and_typed(layout: Any, rows: list[TrainingRow]) -> None:
    for name, array in arrays(layout(rows, values=VALUES[: len(rows)])).items():
        assert array.dtype == DTYPES.get(name, np.int64), name
        assert array.flags.writeable, name
        assert array.flags.c_contiguous, name
        assert array.flags.aligned, name


def test_no_rows_give_empty_arrays() -> None:
    shapes = {name: array.shape for name, array in arrays(turnloom.pad([], multiple_of=8, values=[])).items()}
    matrices = ("input_ids", "attention_mask", "completion_mask", "old_log_probs", "values")
    assert shapes == {"kept_rows": (0,), **dict.fromkeys(matrices, (0, 0))}
    halves = turnloom.pad_prompt_completion([])
    assert (halves.prompt_ids.shape, halves.completion_ids.shape, halves.values) == ((0, 0), (0, 0), None)
    packed = turnloom.pack([])
    assert (packed.input_ids.shape, packed.cu_seqlens.tolist(), packed.max_seqlen) == ((0,), [0], 0)
    assert turnloom.pad([row([], [], [])]).input_ids.shape == (1, 0)


@pytest.mark.parametrize("layout", [layout.__name__ for layout in LAYOUTS])
def test_each_array_is_written_where_it_stays(layout: str) -> None:
    """No second copy is made on the way: the process grows by what the batch takes."""
    code = f"""
        import dataclasses, numpy as np, turnloom
        from pathlib import Path

        def bytes_of(what):
            return 1024 * int(Path("/proc/self/status").read_text().split(what)[1].split()[0])

        ids, zeros = np.arange(16_384), np.zeros(16_384, np.float32)
        rows = [turnloom.TrainingRow(ids, np.ones(16_384, np.int64), zeros)] * 128
        turnloom.{layout}(rows[:1])
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = bytes_of("VmRSS:")
        batch = turnloom.{layout}(rows)
        values = (getattr(batch, field.name) for field in dataclasses.fields(batch))
        size = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
        print((bytes_of("VmHWM:") - before) / size)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    source = str(Path(turnloom.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, check=True, timeout=60)
    assert 0.9 < float(done.stdout) < 1.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_share_the_arrays_memory(layout: Any) -> None:
    torch = pytest.importorskip("torch")
    batch = layout(ROWS, values=VALUES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = batch.to_torch()
    assert list(tensors) == [field.name for field in dataclasses.fields(batch)]
    pointers = {name: array.ctypes.data for name, array in arrays(batch).items()}
    assert {name: t.data_ptr() for name, t in tensors.items() if isinstance(t, torch.Tensor)} == pointers
    assert tensors["dropped_rows"] == 0
    before = {name: array.copy() for name, array in arrays(batch).items()}
    del batch
    gc.collect()
    for name, array in before.items():
        assert tensors[name].numpy().tolist() == array.tolist(), name
        tensors[name][...] = 1
    assert "values" not in layout(ROWS).to_torch()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_given_away_by_dlpack(layout: Any) -> None:
    torch = pytest.importorskip("torch")
    for name, array in arrays(layout(ROWS, values=VALUES)).items():
        tensor = torch.from_dlpack(array)
        assert (tensor.data_ptr(), tensor.tolist()) == (array.ctypes.data, array.tolist()), name
        tensor[...] = 3
        assert (array == 3).all()
        again = np.from_dlpack(array)
        assert np.shares_memory(again, array)
        assert again.dtype == array.dtype
        assert array.__dlpack_device__() == (1, 0)  # the CPU


def test_rows_of_a_rollout_are_shared_with_torch_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    item = b'{"prompt_token_ids":[1,2],"generation_token_ids":[3],"generation_log_probs":[-0.5]}'
    rollout = turnloom.parse_run(b'{"reward":1,"response":{"output":[' + item + b"]}}")
    (made,) = rollout.rows
    for array in (made.input_ids, made.completion_mask, made.old_log_probs, made.turn_spans):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.from_numpy(array).data_ptr() == array.ctypes.data
        assert torch.from_dlpack(array).data_ptr() == array.ctypes.data


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"turnloom\[torch\]"):
        turnloom.pack(ROWS).to_torch()
