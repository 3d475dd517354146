"""Keeps the bodies that benches and tests read: those of `turnloom.bench`, and small ones with all that can be odd.

python benches/make_corpus.py              # benches/bodies/*.json, each checked against benches/corpus.sha256
python benches/make_corpus.py --small      # tests/data/*.json, which are committed
python benches/make_corpus.py --update     # writes corpus.sha256 anew
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from turnloom.bench._corpus import SHAPES, Conversation, answer, compact, made_body

HERE = Path(__file__).resolve().parent
BODIES = HERE / "bodies"
SHA256 = HERE / "corpus.sha256"
TEST_DATA = HERE.parent / "tests" / "data"


def body(name: str) -> bytes:
    """The body of that name, made when it isn't there. Raises ValueError when it is not what was committed."""
    path = BODIES / f"{name}.json"
    if not path.exists():
        BODIES.mkdir(exist_ok=True)
        path.write_bytes(made_body(name))
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
            (BODIES / f"{name}.json").write_bytes(made_body(name))
        digests = {name: hashlib.sha256((BODIES / f"{name}.json").read_bytes()).hexdigest() for name in SHAPES}
        SHA256.write_text("".join(f"{digest}  {name}.json\n" for name, digest in digests.items()))
    for name in arguments.names or SHAPES:
        print(f"{name:10}{len(body(name)) / 1e6:10.2f} MB")


if __name__ == "__main__":
    main()
