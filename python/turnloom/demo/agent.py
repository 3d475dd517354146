"""The agent server: `POST /run` as NeMo Gym's agents answer it, token ids on the last item of each model call."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from turnloom.demo import task

_MAX_TOKENS = 6


class _Call(NamedTuple):
    """One model call: what was said, in words, and the token fields for its item."""

    words: list[str]
    content: str
    token_fields: dict[str, Any]


def agent_app(policy_url: str) -> web.Application:
    """An agent that runs each row against the policy server at `policy_url`."""
    session: aiohttp.ClientSession

    async def policy_session(_: web.Application) -> AsyncIterator[None]:
        nonlocal session
        # No limit: how many rollouts run at once is the client's to say.
        async with aiohttp.ClientSession(policy_url, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield

    async def run(request: web.Request) -> web.Response:
        row = await request.json()
        if not {"responses_create_params", "item", "prices"} <= row.keys():
            detail = [{"loc": ["body"], "msg": "a row needs responses_create_params, item and prices"}]
            return web.json_response({"detail": detail}, status=422)
        return web.json_response(await run_row(session, row))

    app = web.Application()
    app.router.add_post("/run", run)
    app.cleanup_ctx.append(policy_session)
    return app


async def run_row(session: aiohttp.ClientSession, row: Mapping[str, Any]) -> dict[str, Any]:
    """One rollout: a call, the tool, an answer, the verdict."""
    params = row["responses_create_params"]
    messages: list[dict[str, Any]] = list(params["input"])
    first = await _call_policy(session, messages, params)
    item = task.looked_up(first.words)
    result = task.tool_result(item, row["prices"])
    output = _tool_exchange(first, item, result)
    messages += _as_messages(output)
    second = await _call_policy(session, messages, params)
    output.append(_message("assistant", second.content) | second.token_fields)
    components = task.reward_components(row, first.words, result, second.words)
    return {
        **row,
        "reward": task.total_reward(components),
        "reward_components": components,
        "response": {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "output": output,
        },
    }


def _tool_exchange(first: _Call, item: str | None, result: str) -> list[dict[str, Any]]:
    """The items of the first call and of what the environment says to it."""
    if item is None:
        return [_message("assistant", first.content) | first.token_fields, _message("user", result)]
    call_id = f"call_{uuid.uuid4().hex}"
    call = {
        "type": "function_call",
        "name": "lookup",
        "arguments": json.dumps({"item": item}),
        "call_id": call_id,
        "status": "completed",
    }
    return [call | first.token_fields, {"type": "function_call_output", "call_id": call_id, "output": result}]


def _message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _as_messages(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Responses items as chat messages, which the policy server writes out anew at every call."""
    messages: list[dict[str, Any]] = []
    for item in output:
        if item["type"] == "function_call":
            call = {"type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "content": item["output"]})
        else:
            messages.append({"role": item["role"], "content": item["content"][0]["text"]})
    return messages


async def _call_policy(
    session: aiohttp.ClientSession, messages: list[dict[str, Any]], params: Mapping[str, Any]
) -> _Call:
    body = {
        "messages": messages,
        "max_tokens": min(_MAX_TOKENS, params.get("max_output_tokens", _MAX_TOKENS)),
        "temperature": params.get("temperature", 1.0),
        "top_p": params.get("top_p", 1.0),
        "logprobs": True,
        "return_token_ids": True,
    }
    async with session.post("/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        completion = await response.json()
    (choice,) = completion["choices"]
    tokens = choice["logprobs"]["content"]
    return _Call(
        words=[token["token"] for token in tokens],
        content=choice["message"]["content"],
        token_fields={
            "prompt_token_ids": completion["prompt_token_ids"],
            "generation_token_ids": choice["token_ids"],
            "generation_log_probs": [token["logprob"] for token in tokens],
        },
    )
