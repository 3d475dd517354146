"""Faults ready made: what agent servers, and what lies between, do to those who ask them.

>>> from turnloom.testing import FAULTS, FakeAgent, Mix
>>> FAULTS["nan_reward"].outcome
'no_reward'
>>> agent = FakeAgent(FAULTS["nan_reward"].behaviour)   # every row gets it
>>> agent = FakeAgent(Mix(share=0.1, seed=7))           # one row in ten gets some fault, the others a sound answer
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turnloom.testing.agent import AgentCall, Behaviour, as_behaviour, gym_answer

if TYPE_CHECKING:
    from turnloom._rollout import Outcome

DELAY_S: Final = 0.1
"""How late the answer of `delay` is."""
DRIP_BYTES: Final = 64
DRIP_PAUSE_S: Final = 0.005
"""Between two drips, which are of `DRIP_BYTES`."""
LARGE_BYTES: Final = 10_000_000
"""The body of a large error."""
HUGE_TURNS: Final = 200
HUGE_TOKENS: Final = 250
"""`huge_body` has `HUGE_TURNS` turns, each of which adds so many tokens: 30 MB that tell 50,000 ids."""

Turns = Sequence[tuple[Sequence[int], Sequence[int], Sequence[float]]]

_SOUND: Final[Turns] = (([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0]))
_DRIFT: Final[Turns] = (*_SOUND, ([1, 2, 3, 4, 5, 7, 8], [9], [-0.75]))  # 6 has become 7
_FORKS: Final[Turns] = (*_SOUND, ([7, 8], [9], [-0.75]), ([5, 6], [7], [-0.125]))
_NO_IDS: Final[Turns] = (([], [], []),)


class Fault(NamedTuple):
    """One thing that an agent can do, and what comes of it."""

    behaviour: Behaviour
    """For `FakeAgent`."""
    outcome: Outcome
    """Of the rollout that turnloom makes of it."""
    what: str
    """For a person."""


async def sound(call: AgentCall) -> None:
    """The behaviour without a fault: two turns that make one row, and the reward 1.0."""
    await call.answer(gym_answer(await call.row(), turns=_SOUND))


async def _delay(call: AgentCall) -> None:
    await asyncio.sleep(DELAY_S)
    await sound(call)


async def _drip(call: AgentCall) -> None:
    body = await _sound_body(call)
    await call.send(_head(len(body)))
    for start in range(0, len(body), DRIP_BYTES):
        await asyncio.sleep(DRIP_PAUSE_S)
        await call.send(body[start : start + DRIP_BYTES])


async def _cookies(call: AgentCall) -> None:
    cookie = f"session={'c' * 100_000}; path=/; httponly"
    await call.answer(gym_answer(await call.row(), turns=_SOUND), headers={"set-cookie": cookie})


async def _huge_body(call: AgentCall) -> None:
    await call.answer(_huge())


@cache
def _huge() -> bytes:
    held = [str(10_000 + number % 90_000) for number in range(HUGE_TURNS * HUGE_TOKENS)]
    half = HUGE_TOKENS // 2
    logprobs = ",".join(["-0.5"] * half)
    items = []
    for end in range(HUGE_TOKENS, len(held) + 1, HUGE_TOKENS):
        prompt, generation = ",".join(held[: end - half]), ",".join(held[end - half : end])
        items.append(
            f'{{"type":"message","role":"assistant","content":"","prompt_token_ids":[{prompt}],'
            f'"generation_token_ids":[{generation}],"generation_log_probs":[{logprobs}]}}'
        )
    return f'{{"reward":1.0,"response":{{"status":"completed","output":[{",".join(items)}]}}}}'.encode()


async def _keep(call: AgentCall) -> None:
    await call.gone()


async def _reset(call: AgentCall) -> None:
    call.reset()


def _bytes(cut: Callable[[bytes], bytes], then: Callable[[AgentCall], Awaitable[None]] | None = None) -> Behaviour:
    """Sends what `cut` makes of the body of a sound answer, and closes the connection unless `then` does more."""

    async def behave(call: AgentCall) -> None:
        await call.send(cut(await _sound_body(call)))
        if then is not None:
            await then(call)

    return behave


def _answer(*, turns: Turns = _SOUND, reward: float | None = 1.0, status: str = "completed", **more: Any) -> Behaviour:
    """A whole answer that differs from a sound one in what it says."""

    async def behave(call: AgentCall) -> None:
        answer = gym_answer(await call.row(), turns=turns, reward=reward, **more)
        answer["response"]["status"] = status
        await call.answer(answer)

    return behave


def _errors(name: str, status: int, content: Any, **headers: str) -> Iterator[tuple[str, Fault]]:
    """The error with a small body and with a large one."""
    large = b"<p>" + b"x" * (LARGE_BYTES - 3)
    for suffix, body, size in (("", content, "a small body"), ("_of_10_mb", large, "a body of 10 MB")):

        async def behave(call: AgentCall, body: Any = body) -> None:
            await call.answer(body, status=status, headers=headers)

        yield name + suffix, Fault(behave, "http_error", f"a {status} with {size}")


async def _sound_body(call: AgentCall) -> bytes:
    return json.dumps(gym_answer(await call.row(), turns=_SOUND), separators=(",", ":")).encode()


def _head(length: int, *headers: str) -> bytes:
    # A client that kept the connection for its next row would meet its end there, and not here.
    return "\r\n".join(["HTTP/1.1 200 OK", "connection: close", f"content-length: {length}", *headers, "", ""]).encode()


FAULTS: Final[Mapping[str, Fault]] = {
    # Late.
    "delay": Fault(_delay, "ok", "a sound answer, a tenth of a second late"),
    "drip": Fault(_drip, "ok", "a sound answer, a few bytes at a time"),
    "silence": Fault(_bytes(lambda body: b"", _keep), "timeout", "not a byte, on a connection that stays open"),
    "silence_in_body": Fault(
        _bytes(lambda body: _head(len(body)) + body[: len(body) // 2], _keep), "timeout", "half a body, then not a byte"
    ),
    # Cut.
    "close_before_headers": Fault(_bytes(lambda body: b""), "disconnected", "closed without an answer"),
    "reset_before_headers": Fault(_bytes(lambda body: b"", _reset), "disconnected", "reset without an answer"),
    "reset_after_headers": Fault(
        _bytes(lambda body: _head(len(body)), _reset), "disconnected", "headers, then a reset"
    ),
    "half_body": Fault(
        _bytes(lambda body: _head(len(body)) + body[: len(body) // 2]), "disconnected", "half a body, then closed"
    ),
    "length_too_long": Fault(
        _bytes(lambda body: _head(len(body) + 1) + body),
        "disconnected",
        "a whole body, though its length promises more",
    ),
    "length_too_short": Fault(
        _bytes(lambda body: _head(len(body) // 2) + body), "disconnected", "a body that goes on after its length"
    ),
    # Not JSON.
    "bad_gzip": Fault(
        _bytes(lambda body: _head(len(body), "content-encoding: gzip") + body), "malformed", "gzip by its header alone"
    ),
    "not_json": Fault(
        _bytes(lambda body: _head(22) + b"<html>Welcome!</html>\n"), "malformed", "a web page with the status 200"
    ),
    # Errors.
    **dict(_errors("redirect", 307, {"detail": "moved"}, location="/run")),
    **dict(_errors("client_error", 422, {"detail": [{"type": "missing", "loc": ["body"], "msg": "Field required"}]})),
    **dict(_errors("server_error", 500, "Hit an exception calling an inner server")),
    # A 200 that carries a failure, or nothing to train.
    "failure_class": Fault(
        _answer(reward=0.0, _ng_failure_class="agent_error"), "agent_failure", "a 200 that names a failure class"
    ),
    "failed_response": Fault(_answer(reward=0.0, status="failed"), "agent_failure", "a 200 whose response has failed"),
    "mask_sample": Fault(_answer(mask_sample=True), "masked", "the environment asks not to train on it"),
    "no_token_ids": Fault(_answer(turns=_NO_IDS), "no_tokens", "an answer and a reward, without a token id"),
    "nan_reward": Fault(_answer(reward=math.nan), "no_reward", "a reward that is NaN"),
    "missing_reward": Fault(_answer(reward=None), "no_reward", "an answer without a reward"),
    # Sound, and hard to take.
    "cookies": Fault(_cookies, "ok", "a sound answer with a cookie of 100 KB"),
    "huge_body": Fault(_huge_body, "ok", "a sound answer of 30 MB"),
    "drift": Fault(_answer(turns=_DRIFT), "ok", "a prompt that rewrites the last generated token: a realign"),
    "forks": Fault(_answer(turns=_FORKS), "ok", "prompts that repeat nothing: two forks, three rows"),
}
"""Every fault by its name."""


class Mix:
    """A behaviour that is a fault for some of the rows, drawn from a seed, and the answer for the others.

    What a row gets follows from the seed, from what the row says (apart from `_ng_rollout_id`, which is new in each
    run), and, of equal rows, from how many came before; not from the order of different rows.

    Args:
        answer: as `FakeAgent` takes it; what rows get that get no fault.
        share: of the rows, that get a fault; each fault is as likely as the others.
        seed: another one draws other rows and faults.
        faults: those to draw from.

    Attributes:
        counts: how many rows got which fault, by its name, and how many got `"none"`.
    """

    def __init__(
        self,
        answer: Behaviour | Any = sound,
        *,
        share: float = 0.1,
        seed: int = 0,
        faults: Mapping[str, Fault] = FAULTS,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._answer = as_behaviour(answer)
        self._share = share
        self._seed = seed
        self._faults = faults
        self._seen: Counter[str] = Counter()

    async def __call__(self, call: AgentCall) -> None:
        name = self._draw(await call.row())
        self.counts[name or "none"] += 1
        await (self._answer if name is None else self._faults[name].behaviour)(call)

    def _draw(self, row: Mapping[str, Any]) -> str | None:
        said = json.dumps({name: value for name, value in row.items() if name != "_ng_rollout_id"}, sort_keys=True)
        draw = random.Random(f"{self._seed} {self._seen[said]} {said}")
        self._seen[said] += 1
        return draw.choice(list(self._faults)) if draw.random() < self._share else None
