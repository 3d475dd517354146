"""Train with TRL's `AsyncGRPOTrainer` where there is neither CUDA nor vLLM: in a test, in CI, on a laptop.

The trainer, its worker process and its loss are TRL's own. What needs a GPU is replaced, in the process of the trainer
and while a block runs:

    from turnloom.testing import CPU_CONFIG, WeightTransfer, accept_any_chat_template, cpu_training

    class ToMyPolicy(WeightTransfer):
        def publish(self, weights, version):
            ...  # hand them to whatever samples

    with cpu_training():
        config = AsyncGRPOConfig(**CPU_CONFIG, max_steps=3, ...)
        worker = NemoGymRolloutWorker.from_config(config, processing_class=accept_any_chat_template(tokenizer), ...)
        AsyncGRPOTrainer(..., args=config, rollout_worker=worker, weight_transfer=ToMyPolicy()).train()

Where CUDA is present nothing is replaced. What is done is said in the log, at level INFO. The worker's process needs
none of it. Needs the extra `trl`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, TypeVar

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError("training on a CPU needs torch and TRL: pip install 'turnloom[trl]'") from error

_logger = logging.getLogger(__name__)
_Tokenizer = TypeVar("_Tokenizer")

CPU_CONFIG: Final[Mapping[str, Any]] = {
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    # None asks vLLM for its longest sequence; 0 packs `per_device_train_batch_size` rows.
    "token_budget": 0,
    "report_to": [],
}
"""What `AsyncGRPOConfig` needs on a CPU without vLLM."""


@contextlib.contextmanager
def cpu_training() -> Iterator[None]:
    """Make TRL's asynchronous trainer and worker run on a CPU while the block runs; undone at its end.

    Make the worker and the trainer in the block, and train in it. Three things are replaced:

    - `AsyncRolloutWorker.__init__` finds vLLM available (nothing else does): it asks, and never uses it.
    - The trainer knows no peak FLOPS of the device, and so reports no model FLOPS utilization.
    - Tree attention is `sdpa_tree_attention`; TRL's needs FlashAttention kernels.

    Raises:
        ConfigError: TRL is missing, or a version that has not been tested.
    """
    if torch.cuda.is_available():
        _logger.info("CUDA is present: TRL's asynchronous trainer is left as it is")
        yield
        return
    from turnloom.integrations.nemo_gym import _trl

    trainer = sys.modules[_trl.AsyncGRPOTrainer.__module__]
    _logger.info("no CUDA here: TRL trains on the CPU, with SDPA for tree attention and without vLLM")
    with contextlib.ExitStack() as undo:
        undo.enter_context(_attribute(_trl.AsyncRolloutWorker, "__init__", _finding_vllm(_trl.AsyncRolloutWorker)))
        undo.enter_context(_attribute(trainer, "get_peak_flops_per_device", lambda accelerator, dtype: None))
        undo.enter_context(_attribute(trainer, "register_tree_attention", lambda: None))
        undo.enter_context(_registered_attention(trainer.TREE_ATTENTION))
        yield


def accept_any_chat_template(tokenizer: _Tokenizer) -> _Tokenizer:
    """The tokenizer itself, made so that TRL's rollout loop takes it whatever its chat template.

    The loop refuses templates that it does not know how to parse calls from, also where an agent server does all the
    parsing. `NemoGymRolloutLoop` needs no such help; other loops do.
    """
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = {}  # type: ignore[attr-defined]
    return tokenizer


class WeightTransfer:
    """Receives the trainer's weights after every sync, in place of vLLM. Pass it as `weight_transfer`.

    Override `publish`; as it is, the weights are kept.

    Attributes:
        version: how many syncs there were. The first is the one before the first step, so weights of version `n` have
            seen `n - 1` steps when `weight_sync_steps` is 1; TRL's model version is the same number.
        weights: what the last sync sent, by plain Hugging Face parameter name. A head that is tied to the embeddings
            is not among them.
    """

    def __init__(self) -> None:
        self.version = 0
        self.weights: dict[str, torch.Tensor] = {}

    def publish(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Hand new weights to the policy. Called by the trainer, which waits."""

    def init_weight_transfer(self) -> None:
        """Called once, before the first sync."""

    def pause(self) -> None:
        """Called before each sync."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Called at each sync, with the parameters one by one."""
        # Copies: the tensors are the trainer's own, and change with its next step.
        self.weights = {name: tensor.detach().clone() for name, tensor in iterator}
        self.version += 1
        self.publish(self.weights, self.version)

    def resume(self) -> None:
        """Called after each sync."""

    def destroy(self) -> None:
        """Called once, when training has ended."""


def sdpa_tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over rows that share their beginnings, as TRL packs them, by `scaled_dot_product_attention`.

    The `T` packed tokens form a tree of segments, each a run of tokens; a token sees those on the way from the root
    to itself. The mask is dense, `T * T` booleans for each layer: made for small models, not for long rows.

    Args:
        query: [1, heads, T, head size]; `key` and `value` may have fewer heads.
        tree_kv_index: the packed positions on the path to each segment, segment after segment.
        tree_cu_seqlens_q: [segments + 1], where each segment begins among the packed tokens.
        tree_cu_seqlens_k: [segments + 1], where each path begins in `tree_kv_index`.

    Returns:
        [1, T, heads, head size], and None for the attention weights.

    Raises:
        NotImplementedError: the model uses a sliding window or caps its attention scores.
    """
    for name, setting in (("sliding_window", sliding_window), ("softcap", softcap)):
        if setting:
            raise NotImplementedError(
                f"{type(module).__name__} uses {name}={setting}, which tree attention on the CPU does not have: "
                "take a model without it, or train on a GPU"
            )
    mask = _tree_mask(query.shape[2], tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2).contiguous(), None


def _tree_mask(
    tokens: int, kv_index: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor
) -> torch.Tensor:
    """[T, T], whether the token of the row sees that of the column."""
    segments = torch.arange(len(cu_seqlens_q) - 1, device=kv_index.device)
    on_path = torch.zeros(len(segments), tokens, dtype=torch.bool, device=kv_index.device)
    on_path[segments.repeat_interleave(cu_seqlens_k.diff()), kv_index] = True
    # Parents are packed before their children, so that on a path the order of packing is the order of the text.
    return on_path[segments.repeat_interleave(cu_seqlens_q.diff())].tril()


def _finding_vllm(worker_class: Any) -> Callable[..., None]:
    """The worker's `__init__`, with vLLM found available while it runs."""
    make = worker_class.__init__
    module = sys.modules[worker_class.__module__]

    @functools.wraps(make)
    def finding_vllm(self: Any, *args: Any, **kwargs: Any) -> None:
        with _attribute(module, "is_vllm_available", lambda *_, **__: True):
            make(self, *args, **kwargs)

    return finding_vllm


@contextlib.contextmanager
def _attribute(owner: ModuleType | type, name: str, value: Any) -> Iterator[None]:
    """The attribute replaced, then put back."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _registered_attention(name: str) -> Iterator[None]:
    """Our tree attention under TRL's name, without a mask of transformers' own; then what was there before."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    with contextlib.ExitStack() as undo:
        for interface, value in (
            (AttentionInterface, sdpa_tree_attention),
            (AttentionMaskInterface, lambda **_: None),
        ):
            # The registry has no public way to take an entry out again.
            registry = interface._global_mapping
            undo.callback(_put_back, registry, name, registry.get(name))
            registry[name] = value
        yield


def _put_back(registry: dict[str, Any], name: str, before: Any) -> None:
    if before is None:
        registry.pop(name, None)
    else:
        registry[name] = before
