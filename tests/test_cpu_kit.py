"""The pieces that let TRL train on a CPU: what they compute, what they refuse, and that they leave no trace."""

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from turnloom.integrations.nemo_gym._trl import AsyncGRPOConfig, AsyncGRPOTrainer, AsyncRolloutWorker
from turnloom.testing import CPU_CONFIG, WeightTransfer, accept_any_chat_template, cpu_training, sdpa_tree_attention
from turnloom.testing import cpu as cpu_kit

TRAINER = sys.modules[AsyncGRPOTrainer.__module__]
WORKER = sys.modules[AsyncRolloutWorker.__module__]
VOCABULARY = 12


def make_model(attention: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        **settings,
    )
    config._attn_implementation = attention
    return Qwen3ForCausalLM(config)


def random_samples(rng: random.Random) -> list[dict[str, Any]]:
    """Samples of which many share a beginning, as a group's rollouts do, and their forks."""
    texts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 9))]]
    for _ in range(rng.randint(0, 7)):
        shared = rng.choice(texts)
        kept = shared[: rng.randint(0, len(shared))]
        texts.append(kept + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9))])
    return [
        {
            "input_ids": np.array(text, dtype=np.int64),
            "completion_mask": np.array([rng.randrange(2) for _ in text[:-1]] + [1], dtype=np.int64),
            "old_log_probs": np.zeros(len(text), dtype=np.float32),
            "advantage": 1.0,
            "group_id": 0,
        }
        for text in texts
    ]


def trained_log_probs_of_tree(model: Any, samples: list[dict[str, Any]]) -> torch.Tensor:
    """Of all samples in one packed forward, as TRL's trainer makes it."""
    row = TRAINER.TreeRow()
    for sample in samples:
        row.add(sample)
    packed = row.pack()
    logits = model(
        input_ids=packed["input_ids"][None],
        position_ids=packed["position_ids"][None],
        tree_kv_index=packed["tree_kv_index"],
        tree_cu_seqlens_q=packed["tree_cu_seqlens_q"],
        tree_cu_seqlens_k=packed["tree_cu_seqlens_k"],
        tree_max_seqlen_q=0,
        tree_max_seqlen_k=0,
    ).logits[0, packed["token_index"]]
    targets = packed["shift_labels"][packed["token_index"]]
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]


def trained_log_probs_one_by_one(model: Any, samples: list[dict[str, Any]]) -> torch.Tensor:
    """Of each sample in a forward of its own, by transformers' eager attention."""
    found = []
    for sample in samples:
        ids, mask = torch.from_numpy(sample["input_ids"]), torch.from_numpy(sample["completion_mask"])
        log_probs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        found.append(log_probs.gather(1, ids[1:, None])[:, 0][mask[1:] == 1])
    return torch.cat(found)


@pytest.fixture(autouse=True)
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def cpu() -> Iterator[None]:
    with cpu_training():
        yield


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("seed", range(12))
def test_tree_attention_equals_each_sample_on_its_own(seed: int) -> None:
    samples = random_samples(random.Random(seed))
    tree_model, plain_model = make_model(TRAINER.TREE_ATTENTION), make_model("eager")
    tree = trained_log_probs_of_tree(tree_model, samples)
    plain = trained_log_probs_one_by_one(plain_model, samples)
    torch.testing.assert_close(tree, plain, atol=2e-5, rtol=1e-4)
    tree.sum().backward()
    plain.sum().backward()
    for (name, ours), theirs in zip(tree_model.named_parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.usefixtures("cpu")
def test_a_sliding_window_is_refused_and_named() -> None:
    model = make_model(TRAINER.TREE_ATTENTION, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(NotImplementedError, match="Qwen3Attention uses sliding_window=4"):
        trained_log_probs_of_tree(model, random_samples(random.Random(0)))


def test_capped_attention_scores_are_refused_and_named() -> None:
    tensor, index = torch.zeros(1, 1, 2, 8), torch.tensor([0, 1])
    with pytest.raises(NotImplementedError, match=r"Linear uses softcap=50\.0"):
        sdpa_tree_attention(
            torch.nn.Linear(1, 1),
            tensor,
            tensor,
            tensor,
            None,
            tree_kv_index=index,
            tree_cu_seqlens_q=torch.tensor([0, 2]),
            tree_cu_seqlens_k=torch.tensor([0, 2]),
            softcap=50.0,
        )


def state_of_trl() -> list[Any]:
    return [
        AsyncRolloutWorker.__init__,
        WORKER.is_vllm_available,
        TRAINER.get_peak_flops_per_device,
        TRAINER.register_tree_attention,
        AttentionInterface._global_mapping.get(TRAINER.TREE_ATTENTION),
        AttentionMaskInterface._global_mapping.get(TRAINER.TREE_ATTENTION),
        TRAINER.TREE_ATTENTION in AttentionInterface._global_mapping,
    ]


def test_what_was_replaced_is_put_back_also_after_an_error() -> None:
    before = state_of_trl()
    block = contextlib.ExitStack()
    block.enter_context(cpu_training())
    changed = [now is not then for now, then in zip(state_of_trl(), before, strict=True)]
    # All but `is_vllm_available`, which is replaced around the worker's `__init__` alone.
    assert changed == [True, False, True, True, True, True, True]
    with pytest.raises(RuntimeError, match="on purpose"), block:
        raise RuntimeError("on purpose")
    assert state_of_trl() == before


def test_an_attention_that_was_registered_before_is_put_back() -> None:
    TRAINER.register_tree_attention()
    try:
        before = state_of_trl()
        with cpu_training():
            assert AttentionInterface._global_mapping[TRAINER.TREE_ATTENTION] is sdpa_tree_attention
        assert state_of_trl() == before
    finally:
        del AttentionInterface._global_mapping[TRAINER.TREE_ATTENTION]
        del AttentionMaskInterface._global_mapping[TRAINER.TREE_ATTENTION]


def test_where_cuda_is_present_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = state_of_trl()
    with caplog.at_level("INFO", logger=cpu_kit.__name__), cpu_training():
        assert state_of_trl() == before
    assert "CUDA is present" in caplog.text


def test_what_is_done_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=cpu_kit.__name__), cpu_training():
        pass
    assert "no CUDA here" in caplog.text


@pytest.mark.skipif(WORKER.is_vllm_available(), reason="vLLM is installed, so the worker needs no help")
def test_a_worker_can_be_made_in_the_block_alone() -> None:
    with cpu_training():
        AsyncRolloutWorker()
        assert not WORKER.is_vllm_available()
    with pytest.raises(ImportError, match="vLLM is required"):
        AsyncRolloutWorker()


def test_the_config_is_made_without_a_warning(tmp_path: Any) -> None:
    config = AsyncGRPOConfig(**CPU_CONFIG, output_dir=str(tmp_path))
    assert (config.device.type, config.bf16, config.token_budget) == ("cpu", False, 0)
    assert not config.gradient_checkpointing


def test_weights_are_copied_and_counted() -> None:
    published = []

    class Recorder(WeightTransfer):
        def publish(self, weights: Any, version: int) -> None:
            published.append((version, weights["w"].tolist()))

    transfer = Recorder()
    live = torch.nn.Parameter(torch.tensor([1.0]))
    transfer.init_weight_transfer()
    for _ in range(2):
        transfer.pause()
        transfer.send_weights(iter([("w", live)]))
        transfer.resume()
        live.data += 1
    transfer.destroy()
    assert published == [(1, [1.0]), (2, [2.0])]
    assert (transfer.version, transfer.weights["w"].tolist()) == (2, [2.0])
    assert not transfer.weights["w"].requires_grad


def test_a_tokenizer_with_any_chat_template_is_taken() -> None:
    class Tokenizer:
        response_template: Any = None

    assert accept_any_chat_template(Tokenizer()).response_template == {}
    own = Tokenizer()
    own.response_template = {"fields": {}}
    assert accept_any_chat_template(own).response_template == {"fields": {}}


def test_a_missing_torch_is_told_with_its_extra() -> None:
    hide = "import sys; sys.modules['torch'] = None; from turnloom.testing import cpu_training"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, env=environment)
    assert "pip install 'turnloom[trl]'" in result.stderr
