"""Makes the bodies that benches and tests read: answers of `/run` as NeMo Gym sends them, from fixed seeds.

    python benches/make_corpus.py              # benches/bodies/*.json, each checked against benches/corpus.sha256
    python benches/make_corpus.py --small      # tests/data/*.json, which are committed
    python benches/make_corpus.py --update     # writes corpus.sha256 anew

Ids have the lengths of a vocabulary of 150,000 with many rare tokens; logprobs are float32 values as Python prints
them. Only exact arithmetic is used, so that every machine makes the same bytes.
"""

import argparse
import hashlib
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BODIES = HERE / "bodies"
SHA256 = HERE / "corpus.sha256"
TEST_DATA = HERE.parent / "tests" / "data"

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
        content = [{"annotations": [], "text": self.text(tokens), "type": "output_text", "logprobs": None}]
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
SHAPES = {
    "small": Shape(4, first=450, context=400, generated=120),
    "mid": _MID,
    "big": _BIG,
    "single": Shape(1, first=200, context=0, generated=260_000),
    "forked": Shape(50, 2_300, 530, 500, changes=("clean", "clean", "fork", "clean", "realign")),
    "spaced": Shape(_MID.turns, _MID.first, _MID.context, _MID.generated, dump={}),
    "spaced_big": Shape(_BIG.turns, _BIG.first, _BIG.context, _BIG.generated, dump={}),
    "indented": Shape(20, first=2_000, context=400, generated=200, dump={"indent": 2}),
}


def chunks(name: str, shape: Shape | None = None) -> Iterator[bytes]:
    """The body of that name, or one in another shape, piece by piece: no more than one item is held at a time."""
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


def body(name: str) -> bytes:
    """The body of that name, made when it isn't there. Raises ValueError when it is not what was committed."""
    path = BODIES / f"{name}.json"
    if not path.exists():
        BODIES.mkdir(exist_ok=True)
        path.write_bytes(b"".join(chunks(name)))
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != committed_sha256()[name]:
        raise ValueError(f"{path} is not the body that {SHA256.name} names: delete it, it is made again")
    return content


def committed_sha256() -> dict[str, str]:
    """The sha256 of each large body, by name."""
    lines = (line.split() for line in SHA256.read_text().splitlines())
    return {Path(file).stem: digest for digest, file in lines}


# Small bodies for the tests


def small_bodies() -> dict[str, bytes]:
    """The bodies of tests/data, by file name."""
    bodies = {f"{name}.json": b"".join(make(Conversation(name))) for name, make in _SMALL.items()}
    clean = json.loads(bodies["clean.json"])
    bodies["spaced.json"] = json.dumps(clean).encode()
    bodies["indented.json"] = json.dumps(clean, indent=2, ensure_ascii=False).replace("\n", "\r\n").encode("utf-8-sig")
    return bodies


def _conversation(changes: tuple[str, ...], talk: Conversation) -> Iterator[bytes]:
    """One model call for each change, with its tool's output, and a last one that answers."""
    items = [compact(talk.reasoning(8)), talk.turn(12, 8)]
    for change in changes:
        items += [talk.tool_output(8), talk.turn(6, 8, change)]
    items += [talk.tool_output(8), talk.turn(6, 5, **talk.message(6))]
    return answer(items)


def _parallel_calls(talk: Conversation) -> Iterator[bytes]:
    """Two tool calls in one answer: only the last of the items carries the ids."""
    first, outputs = compact(talk.call(4)), [talk.tool_output(4)]
    second = talk.turn(12, 16)
    outputs.append(talk.tool_output(4))
    return answer([first, second, *reversed(outputs), talk.turn(12, 5, **talk.message(6))])


def _reasoning_last(talk: Conversation) -> Iterator[bytes]:
    """The model thought and said nothing: a lone reasoning item carries the ids."""
    call = talk.turn(12, 8)
    return answer([call, talk.tool_output(8), talk.turn(6, 9, **talk.reasoning(8), arguments=None)])


def _defects(talk: Conversation) -> Iterator[bytes]:
    """Each kind of defect once, between sound turns; the chain goes on over all of them."""
    items = [talk.turn(12, 8)]
    prompt = [token for part in talk.history for token in part] + talk.ids(3)
    ids, logprobs = talk.ids(4), talk.logprobs(4)
    items += [
        items[0],
        talk.item([], ids, logprobs),
        talk.item(prompt, [], []),
        talk.item(prompt, [*ids[:3], "-1"], logprobs),
        talk.item([*prompt, "2147483648"], ids, logprobs),
        talk.item([*prompt, "1.0"], ids, logprobs),
        talk.item(prompt, ids, logprobs[:3]),
        talk.item(prompt, ids, [*logprobs[:3], "[]"]),
        compact({"prompt_token_ids": 7, "generation_token_ids": [8], "generation_log_probs": [0.0], "type": "other"}),
        compact({"prompt_token_ids": [7], "generation_token_ids": [8], "type": "message", "content": None}),
        b'"an item that is no object"',
        talk.item([], [], []),
    ]
    return answer([*items, talk.turn(5, 6)])


def _odd_logprobs(talk: Conversation) -> Iterator[bytes]:
    """Every kind of logprob that cannot be used, and some that can."""
    odd = ["null", "NaN", "-Infinity", "Infinity", "-9999.0", "true", '"-0.5"', "-1e39", "-0.0", "0.25", "-1e-46", "-1"]
    prompt, ids = talk.ids(12), talk.ids(len(odd))
    talk.history = [prompt, ids]
    return answer([talk.item(prompt, ids, odd), talk.tool_output(8), talk.turn(6, 5)])


def _string_ids(talk: Conversation) -> Iterator[bytes]:
    """Ids as strings, as one harness sends them, and as numbers in the next turn."""
    prompt, ids = talk.ids(12), talk.ids(4)
    talk.history = [prompt, ids]
    quoted = [f'"token_id:{token}"' for token in prompt], [f'"{token}"' for token in ids]
    return answer([talk.item(*quoted, talk.logprobs(4)), talk.tool_output(8), talk.turn(6, 5)])


def _overflow(talk: Conversation) -> Iterator[bytes]:
    """The context was too long for the third call: an empty message, and a reward all the same."""
    items = [talk.turn(12, 8), talk.tool_output(8), talk.turn(6, 8), talk.tool_output(8)]
    response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return answer([*items, compact(talk.message(0))], response=response, reward=0.0)


def _no_ids(talk: Conversation) -> Iterator[bytes]:
    """A model server that was not told to return ids."""
    return answer([compact(talk.call(4)), talk.tool_output(8), compact(talk.message(6))])


def _sub_agents(talk: Conversation) -> Iterator[bytes]:
    """Two agents of one rollout, call by call."""
    other = Conversation("other agent")
    return answer([talk.turn(9, 4), other.turn(9, 4), talk.turn(3, 4), other.turn(3, 4)])


_SMALL = {
    "clean": partial(_conversation, ("clean", "clean")),
    "drift": partial(_conversation, ("realign", "clean", "realign")),
    "forked": partial(_conversation, ("clean", "fork", "realign", "fresh")),
    "parallel_calls": _parallel_calls,
    "reasoning_last": _reasoning_last,
    "defects": _defects,
    "odd_logprobs": _odd_logprobs,
    "string_ids": _string_ids,
    "overflow": _overflow,
    "no_ids": _no_ids,
    "sub_agents": _sub_agents,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SHAPES], help="large bodies to make; all by default")
    parser.add_argument("--small", action="store_true", help="make tests/data instead")
    parser.add_argument("--update", action="store_true", help="write corpus.sha256 anew")
    arguments = parser.parse_args()
    if arguments.small:
        for file, content in small_bodies().items():
            (TEST_DATA / file).write_bytes(content)
        return
    if arguments.update:
        BODIES.mkdir(exist_ok=True)
        for name in SHAPES:
            (BODIES / f"{name}.json").write_bytes(b"".join(chunks(name)))
        digests = {name: hashlib.sha256((BODIES / f"{name}.json").read_bytes()).hexdigest() for name in SHAPES}
        SHA256.write_text("".join(f"{digest}  {name}.json\n" for name, digest in digests.items()))
    for name in arguments.names or SHAPES:
        print(f"{name:10}{len(body(name)) / 1e6:10.2f} MB")


if __name__ == "__main__":
    main()
