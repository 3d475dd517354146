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
        """Left-padded prompts, a key-value cache, one forward per token until each request has ended."""
        # Positions need no correction for the padding: rotary embeddings see nothing but distances.
        width = max(len(request.prompt_ids) for request in batch)
        pads = torch.tensor([width - len(request.prompt_ids) for request in batch])
        ids = torch.tensor([[self.tokenizer.pad_token_id] * (width - len(r.prompt_ids)) + r.prompt_ids for r in batch])
        temperatures = torch.tensor([request.temperature for request in batch])[:, None]
        attention_mask = (torch.arange(width)[None, :] >= pads[:, None]).long()
        cache = DynamicCache(config=self._model.config)
        generations = [Generation([], []) for _ in batch]
        going = set(range(len(batch)))
        while going:
            logits = self._model(
                input_ids=ids,
                attention_mask=attention_mask,
                cache=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            log_probs = torch.log_softmax(logits / temperatures, dim=-1)
            ids = torch.multinomial(log_probs.exp(), 1, generator=self._rng)
            chosen = log_probs.gather(1, ids)
            for row, (token, log_prob) in enumerate(zip(ids[:, 0].tolist(), chosen[:, 0].tolist(), strict=True)):
                if row in going:
                    generations[row].ids.append(token)
                    generations[row].log_probs.append(log_prob)
                    if token == self.tokenizer.eos_token_id or len(generations[row].ids) >= batch[row].max_tokens:
                        going.discard(row)
            attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(batch), 1)], dim=1)
        return generations


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
