"""The policy server: an OpenAI-compatible chat endpoint that samples for real, and takes weights between batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import safetensors.torch
import torch
from aiohttp import web
from transformers import DynamicCache

from turnloom.demo.model import make_model, make_tokenizer

_MAX_BATCH = 128


class Generation(NamedTuple):
    """What one model call sampled."""

    ids: list[int]
    log_probs: list[float]


class _Request(NamedTuple):
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    answer: asyncio.Future[Generation]


class Policy:
    """Samples batches of calls, one after the other, in a thread of its own; weights change between two batches."""

    def __init__(self, seed: int) -> None:
        self.tokenizer = make_tokenizer()
        self._model = make_model(seed).eval()
        self._rng = torch.Generator().manual_seed(seed)
        self._has_weights = asyncio.Event()
        self._waiting: list[_Request] = []
        self._work = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")

    async def generate(self, prompt_ids: list[int], *, max_tokens: int, temperature: float) -> Generation:
        """Sample one call, together with all that wait. The first weights are waited for."""
        request = _Request(prompt_ids, max_tokens, temperature, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._work.set()
        return await request.answer

    async def load_weights(self, body: bytes) -> None:
        """Replace the weights, once the batch that is being sampled has ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load_weights, body)
        self._has_weights.set()

    async def serve(self) -> None:
        """Sample what waits, for ever."""
        loop = asyncio.get_running_loop()
        await self._has_weights.wait()
        while True:
            await self._work.wait()
            batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
            if not self._waiting:
                self._work.clear()
            try:
                generations = await loop.run_in_executor(self._thread, self._sample, batch)
            except Exception as error:
                for request in batch:
                    request.answer.set_exception(error)
                continue
            for request, generation in zip(batch, generations, strict=True):
                if not request.answer.done():  # whoever asked may have left
                    request.answer.set_result(generation)

    def _load_weights(self, body: bytes) -> None:
        # Tied to the embeddings, the head is not sent.
        missing, unexpected = self._model.load_state_dict(safetensors.torch.load(body), strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise ValueError(f"these are not the policy's weights: missing {missing}, unexpected {unexpected}")

    @torch.inference_mode()
    def _sample(self, batch: Sequence[_Request]) -> list[Generation]:
        """One forward per token, with a key-value cache, until each request has ended."""
        ids, attention_mask = _left_padded([request.prompt_ids for request in batch], self.tokenizer.pad_token_id)
        temperatures = torch.tensor([request.temperature for request in batch])[:, None]
        cache = DynamicCache(config=self._model.config)
        generations = [Generation([], []) for _ in batch]
        while not all(map(self._has_ended, batch, generations)):
            answer = self._model(input_ids=ids, attention_mask=attention_mask, cache=cache, logits_to_keep=1)
            log_probs = torch.log_softmax(answer.logits[:, -1] / temperatures, dim=-1)
            ids = torch.multinomial(log_probs.exp(), 1, generator=self._rng)
            sampled = zip(ids[:, 0].tolist(), log_probs.gather(1, ids)[:, 0].tolist(), strict=True)
            for request, generation, (token, log_prob) in zip(batch, generations, sampled, strict=True):
                if not self._has_ended(request, generation):
                    generation.ids.append(token)
                    generation.log_probs.append(log_prob)
            attention_mask = torch.nn.functional.pad(attention_mask, (0, 1), value=1)
        return generations

    def _has_ended(self, request: _Request, generation: Generation) -> bool:
        return generation.ids[-1:] == [self.tokenizer.eos_token_id] or len(generation.ids) >= request.max_tokens


def _left_padded(prompts: Sequence[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids and attention mask, both [B, L]. No positions: rotary embeddings see nothing but distances."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def policy_app(policy: Policy) -> web.Application:
    """The HTTP side: `/v1/chat/completions` as vLLM answers it with token ids, and `/weights` for the trainer."""

    async def chat_completions(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked.get("top_p", 1.0) != 1.0:
            raise web.HTTPBadRequest(text="the demo's policy samples from its whole distribution: top_p must be 1")
        prompt_ids = policy.tokenizer.apply_chat_template(
            _with_parsed_arguments(asked["messages"]), add_generation_prompt=True, return_dict=False
        )
        generation = await policy.generate(prompt_ids, max_tokens=asked["max_tokens"], temperature=asked["temperature"])
        return web.json_response(_completion(policy.tokenizer, prompt_ids, generation))

    async def weights(request: web.Request) -> web.Response:
        await policy.load_weights(await request.read())
        return web.Response()

    async def sampling(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(policy.serve())
        yield
        task.cancel()

    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.post("/v1/chat/completions", chat_completions), web.post("/weights", weights)])
    app.cleanup_ctx.append(sampling)
    return app


def _with_parsed_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The arguments of tool calls as objects, as chat templates expect them."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def _completion(tokenizer: Any, prompt_ids: list[int], generation: Generation) -> dict[str, Any]:
    ended = generation.ids[-1] == tokenizer.eos_token_id
    words = tokenizer.convert_ids_to_tokens(generation.ids)
    choice = {
        "message": {"role": "assistant", "content": " ".join(words[:-1] if ended else words)},
        "finish_reason": "stop" if ended else "length",
        "token_ids": generation.ids,
        "logprobs": {
            "content": [
                {"token": word, "logprob": log_prob} for word, log_prob in zip(words, generation.log_probs, strict=True)
            ]
        },
    }
    return {"object": "chat.completion", "choices": [choice], "prompt_token_ids": prompt_ids}
