"""The policy: a Qwen3 of 75 thousand parameters, and a tokenizer that has one token per word."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from turnloom.demo.task import END, ITEMS, PRICES, WORDS, question

_SPECIAL_TOKENS: Final = ("<pad>", END, "<user>", "<assistant>", "<tool>", "<unknown>")
_CHAT_TEMPLATE: Final = """\
{%- for message in messages %}
{{- '<' ~ message.role ~ '> ' }}
{%- for call in message.tool_calls or [] %}
{{- call.function.name ~ ' ' ~ call.function.arguments.item }}
{%- endfor %}
{{- (message.content or '') ~ ' <end> ' }}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

WARM_START_STEPS: Final = 150
_WARM_START_BATCH: Final = 32
_WARM_START_NOISE: Final = 0.8
_IGNORED_LABEL: Final = -100


def make_tokenizer() -> Any:
    """One token per word of the task, and a chat template that writes a call as `lookup tea`."""
    vocabulary = {word: index for index, word in enumerate((*_SPECIAL_TOKENS, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=END,
        unk_token="<unknown>",
        additional_special_tokens=["<user>", "<assistant>", "<tool>"],
        padding_side="left",
        chat_template=_CHAT_TEMPLATE,
    )


def make_model(seed: int) -> Any:
    """The policy with random weights."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(_SPECIAL_TOKENS) + len(WORDS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=64,
            # Wider than usual: with 0.02 so small a model stays near the uniform distribution for long.
            initializer_range=0.1,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def warm_start(model: Any, tokenizer: Any, *, seed: int, on_step: Callable[[int], None] = lambda step: None) -> None:
    """Teach the model the shape of a conversation and next to nothing about its words.

    Supervised steps on transcripts in which each word of the assistant is random with probability 0.8: enough for a
    reward to be found by sampling, and far from one that is learned.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    transcripts = _noisy_transcripts(tokenizer, random.Random(seed))
    for step in range(WARM_START_STEPS):
        ids, labels = next(transcripts)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step + 1)


def _noisy_transcripts(tokenizer: Any, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of input ids and labels, both [B, L]. All transcripts have one length."""
    while True:
        pairs = [_noisy_transcript(tokenizer, rng) for _ in range(_WARM_START_BATCH)]
        yield torch.tensor([ids for ids, _ in pairs]), torch.tensor([labels for _, labels in pairs])


def _noisy_transcript(tokenizer: Any, rng: random.Random) -> tuple[list[int], list[int]]:
    item, price = rng.choice(ITEMS), rng.choice(PRICES)
    ids: list[int] = []
    labels: list[int] = []
    for role, text in (
        ("user", question(item)),
        ("assistant", f"lookup {item}"),
        ("tool", price),
        ("assistant", f"answer {price}"),
    ):
        words = tokenizer.convert_tokens_to_ids([*text.split(), END])
        if role == "assistant":
            words = [rng.randrange(1, len(tokenizer)) if rng.random() < _WARM_START_NOISE else word for word in words]
        ids += [tokenizer.convert_tokens_to_ids(f"<{role}>"), *words]
        labels += [_IGNORED_LABEL, *(words if role == "assistant" else [_IGNORED_LABEL] * len(words))]
    return ids, labels
