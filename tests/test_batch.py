"""Rows → padded and packed arrays, and tensors that share their memory."""

import gc
import warnings

import numpy as np
import pytest

import turnloom
from turnloom import TrainingRow


def row(ids, mask, log_probs):
    return TrainingRow(np.array(ids, np.int64), np.array(mask, np.int64), np.array(log_probs, np.float32))


ROWS = [row([1, 2, 3], [0, 1, 1], [0, -1, -2]), row([4, 5, 6, 7, 0], [0, 0, 1, 0, 1], [0, 0, -3, 0, -4])]


def padded(values, *, length, fill, left):
    return [[fill] * (length - len(v)) + v if left else v + [fill] * (length - len(v)) for v in values]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("multiple_of", "length"), [(1, 5), (4, 8), (8, 8), (5, 5)])
def test_pad(side, multiple_of, length):
    batch = turnloom.pad(ROWS, pad_token_id=9, padding_side=side, multiple_of=multiple_of)
    pad = {"length": length, "left": side == "left"}
    assert batch.input_ids.tolist() == padded([r.input_ids.tolist() for r in ROWS], fill=9, **pad)
    assert batch.attention_mask.tolist() == padded([[1] * 3, [1] * 5], fill=0, **pad)
    assert batch.completion_mask.tolist() == padded([r.completion_mask.tolist() for r in ROWS], fill=0, **pad)
    assert batch.old_log_probs.tolist() == padded([r.old_log_probs.tolist() for r in ROWS], fill=0.0, **pad)


def test_a_token_that_equals_the_padding_stays_a_token():
    assert turnloom.pad(ROWS, pad_token_id=0).attention_mask[1].tolist() == [1, 1, 1, 1, 1]


def test_pad_prompt_completion():
    batch = turnloom.pad_prompt_completion(ROWS, pad_token_id=9)
    assert batch.prompt_ids.tolist() == [[9, 1], [4, 5]]
    assert batch.prompt_mask.tolist() == [[0, 1], [1, 1]]
    assert batch.completion_ids.tolist() == [[2, 3, 9], [6, 7, 0]]
    assert batch.completion_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.loss_mask.tolist() == [[1, 1, 0], [1, 0, 1]]
    assert batch.old_log_probs.tolist() == [[-1, -2, 0], [-3, 0, -4]]


def test_pack():
    batch = turnloom.pack(ROWS)
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch.completion_mask.tolist() == [0, 1, 1, 0, 0, 1, 0, 1]
    assert batch.row_index.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 8]
    assert batch.max_seqlen == 5


DTYPES = {"old_log_probs": np.float32, "cu_seqlens": np.int32}
LAYOUTS = [turnloom.pad, turnloom.pad_prompt_completion, turnloom.pack]


def arrays(batch):
    return {name: value for name in batch.__slots__ if isinstance(value := getattr(batch, name), np.ndarray)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [ROWS, []])
def test_arrays_are_writable_contiguous_and_typed(layout, rows):
    for name, array in arrays(layout(rows)).items():
        assert array.dtype == DTYPES.get(name, np.int64), name
        assert array.flags.writeable, name
        assert array.flags.c_contiguous, name


def test_no_rows_give_empty_arrays():
    assert {name: array.shape for name, array in arrays(turnloom.pad([])).items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "completion_mask", "old_log_probs"), (0, 0)
    )
    assert turnloom.pad_prompt_completion([]).completion_ids.shape == (0, 0)
    packed = turnloom.pack([])
    assert (packed.input_ids.shape, packed.cu_seqlens.tolist(), packed.max_seqlen) == ((0,), [0], 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_share_the_arrays_memory(layout):
    torch = pytest.importorskip("torch")
    batch = layout(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = batch.to_torch()
    pointers = {name: array.ctypes.data for name, array in arrays(batch).items()}
    assert {name: t.data_ptr() for name, t in tensors.items() if isinstance(t, torch.Tensor)} == pointers
    before = {name: array.copy() for name, array in arrays(batch).items()}
    del batch
    gc.collect()
    for name, array in before.items():
        assert tensors[name].numpy().tolist() == array.tolist(), name
        tensors[name][...] = 1


def test_rows_of_a_rollout_are_shared_with_torch_as_they_are():
    torch = pytest.importorskip("torch")
    item = b'{"prompt_token_ids":[1,2],"generation_token_ids":[3],"generation_log_probs":[-0.5]}'
    rollout = turnloom.parse_run(b'{"reward":1,"response":{"output":[' + item + b"]}}")
    for array in rollout.rows[0]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.from_numpy(array).data_ptr() == array.ctypes.data


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ragged_rows_are_refused(layout):
    with pytest.raises(ValueError, match="row 1 has 2 input_ids, 1 completion_mask and 2 old_log_probs"):
        layout([ROWS[0], row([1, 2], [1], [0, -1])])


def test_settings_are_checked():
    with pytest.raises(turnloom.ConfigError, match="padding_side"):
        turnloom.pad(ROWS, padding_side="middle")
    with pytest.raises(turnloom.ConfigError, match="multiple_of"):
        turnloom.pad(ROWS, multiple_of=0)


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"turnloom\[torch\]"):
        turnloom.pack(ROWS).to_torch()
