"""The bodies that are timed: answers of `/run` as NeMo Gym sends them, from fixed seeds.

Ids have the lengths of a vocabulary of 150,000 with many rare tokens; logprobs are float32 values as Python prints
them. Only exact arithmetic is used, so that every machine makes the same bytes.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

# (share, first id, end) of a vocabulary of 151,936
_ID_RANGES = ((2, 10, 100), (8, 100, 1_000), (18, 1_000, 10_000), (50, 10_000, 100_000), (100, 100_000, 151_936))
_PROSE = (
    'the of and to in is that it was for "the" on are\n with as his they be at one have this from or had by hot but '
    "some what there we can out other were all your when up use word how said an each she which their def return "
    "self. import None:\n\tif x[i] == 0: https://example.org/a?b=c&d größer 東京 naïve → ✓ C:\\temp\\x 3.14 1,024"
)
_WORDS = _PROSE.split(" ")


class Conversation:
    """One agent's rollout in the making: what its history holds, and the items that tell its model calls."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.history: list[list[str]] = []  # context and generation in turn, as the texts of ids
        self._calls = 0

    def turn(self, context: int, generated: int, change: str = "clean", **item: Any) -> bytes:
        """The item of the next model call: `context` new ids, `generated` ids, after a change of the history."""
        self.change_history(change)
        self.history.append(self.ids(context))
        prompt = [token for part in self.history for token in part]
        self.history.append(self.ids(generated))
        return self.item(prompt, self.history[-1], self.logprobs(generated), **item)

    def item(self, prompt: list[str], generation: list[str], logprobs: list[str], **item: Any) -> bytes:
        """One item with token fields first, of these texts of ids and logprobs."""
        fields = {"prompt_token_ids": prompt, "generation_token_ids": generation, "generation_log_probs": logprobs}
        token_fields = ",".join(f'"{name}":[{",".join(values)}]' for name, values in fields.items())
        rest = compact(self.call(4) | item)
        return f'{{{token_fields},"routed_experts":null,'.encode() + rest[1:]

    def change_history(self, change: str) -> None:
        """What the agent's chat template does to what the model wrote before it sends it again."""
        if change == "realign":  # white space at the end of the last answer is gone
            self.history[-1][-2:] = self.ids(1)
        elif change == "fork":  # the thinking at the beginning of earlier answers is gone
            for place in range(1, len(self.history), 2):
                del self.history[place][: len(self.history[place]) // 3 or 1]
        elif change == "fresh":  # another agent of the same rollout
            self.history = []

    def ids(self, count: int) -> list[str]:
        return [str(self._id()) for _ in range(count)]

    def _id(self) -> int:
        share = self._random.random() * 100
        start, end = next((start, end) for limit, start, end in _ID_RANGES if share < limit)
        return start + int(self._random.random() * (end - start))

    def logprobs(self, count: int) -> list[str]:
        return [repr(self._logprob()) for _ in range(count)]

    def _logprob(self) -> float:
        kind, u = self._random.random(), self._random.random()
        if kind < 0.1:
            return 0.0
        value = -u / 2 ** (13 + int(10 * kind)) if kind < 0.4 else -u * u * u * 8
        return float(struct.unpack("f", struct.pack("f", value))[0])

    def text(self, tokens: int) -> str:
        return " ".join(_WORDS[int(self._random.random() * len(_WORDS))] for _ in range(tokens * 3 // 4))

    # Items

    def call(self, tokens: int) -> dict[str, Any]:
        self._calls += 1
        arguments = json.dumps({"query": self.text(tokens), "limit": self._calls})
        call_id = f"call_{self._calls:04d}"
        return {"arguments": arguments, "call_id": call_id, "name": "search", "type": "function_call", "id": call_id}

    def tool_output(self, tokens: int) -> bytes:
        call_id = f"call_{self._calls:04d}"
        return compact({"call_id": call_id, "output": self.text(tokens), "type": "function_call_output", "id": None})

    def reasoning(self, tokens: int) -> dict[str, Any]:
        summary = [{"text": self.text(tokens), "type": "summary_text"}]
        return {"id": f"rs_{self._calls:04d}", "summary": summary, "type": "reasoning", "encrypted_content": None}

    def message(self, tokens: int) -> dict[str, Any]:
        content: list[Any] = [{"annotations": [], "text": self.text(tokens), "type": "output_text", "logprobs": None}]
        return {"id": "msg_1", "content": content, "role": "assistant", "status": "completed", "type": "message"}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def answer(
    items: Iterator[bytes] | list[bytes], *, response: dict[str, Any] | None = None, **fields: Any
) -> Iterator[bytes]:
    """The pieces of a body with these items, the request before them and the reward after."""
    conversation = Conversation("request")
    user = {"content": conversation.text(40), "role": "user", "type": "message"}
    tool = {"name": "search", "parameters": {"type": "object", "properties": {}}, "strict": True, "type": "function"}
    params = {"background": None, "input": [user], "temperature": 1.0, "tools": [tool], "top_p": None}
    yield b'{"responses_create_params":' + compact(params) + b',"response":{"id":"resp_1","error":null,"output":['
    for number, item in enumerate(items):
        yield b"," + item if number else item
    usage = {"input_tokens": 909, "output_tokens": 78, "total_tokens": 987}
    rest = {"parallel_tool_calls": True, "status": "completed", "incomplete_details": None, "usage": usage}
    yield b"]," + compact(rest | (response or {}))[1:] + b"," + compact({"reward": 1.0, "turns_used": 3} | fields)[1:]


# Large bodies


@dataclass(frozen=True)
class Shape:
    """A rollout of `turns` model calls. Each adds `context` ids (the first one `first`) and generates `generated`."""

    turns: int
    first: int
    context: int
    generated: int
    changes: tuple[str, ...] = ("clean",)
    dump: dict[str, Any] | None = None
    """How `json.dumps` writes the body again, instead of compactly."""


_MID = Shape(50, first=2_300, context=530, generated=500)
_BIG = Shape(200, first=3_000, context=400, generated=232)
SHAPES: Final = {
    "small": Shape(4, first=450, context=400, generated=120),
    "mid": _MID,
    "big": _BIG,
    "single": Shape(1, first=200, context=0, generated=260_000),
    "forked": Shape(50, 2_300, 530, 500, changes=("clean", "clean", "fork", "clean", "realign")),
    "spaced": Shape(_MID.turns, _MID.first, _MID.context, _MID.generated, dump={}),
    "spaced_big": Shape(_BIG.turns, _BIG.first, _BIG.context, _BIG.generated, dump={}),
    "indented": Shape(20, first=2_000, context=400, generated=200, dump={"indent": 2}),
}
"""The bodies, by name."""


def made_body(name: str, shape: Shape | None = None) -> bytes:
    """The body of that name, a key of `SHAPES`, or one in another shape: always the same bytes."""
    return b"".join(chunks(name, shape))


def chunks(name: str, shape: Shape | None = None) -> Iterator[bytes]:
    """The same piece by piece: no more than one item is held at a time."""
    shape = shape or SHAPES[name]
    pieces = answer(_items(name, shape))
    if shape.dump is None:
        return pieces
    return iter((json.dumps(json.loads(b"".join(pieces)), **shape.dump).encode(),))


def _items(seed: str, shape: Shape) -> Iterator[bytes]:
    conversation = Conversation(seed)
    for number, change in enumerate(islice(cycle(shape.changes), shape.turns)):
        context = shape.context if number else shape.first
        last = number == shape.turns - 1
        yield compact(conversation.reasoning(shape.generated // 2 if shape.turns > 1 else 50))
        said = conversation.message(30) if last else conversation.call(shape.generated // 4)
        yield conversation.turn(context, shape.generated, change if number else "clean", **said)
        if not last:
            yield conversation.tool_output(shape.context)
