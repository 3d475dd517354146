"""Answers of agents, as Hypothesis draws them: few ids, so that prompts often agree and texts begin alike."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from rollouts import COMPACT, STYLES, Members, Raw, write

THRESHOLDS = st.sampled_from([0, 1, 2, 1024, 1024, 1024, -1])
BRANCHES = st.sampled_from(["linear", "best"])

_IDS = st.sampled_from([0, 1, 2, 3, 12, 23, 123, 1234, 12345, 1234567, 99999999, 100000000, 2147483647])
_SOME_IDS = st.lists(_IDS, max_size=5)
_USABLE = st.one_of(
    st.sampled_from(["0.0", "-0.0", "-1", "0", "0.25", "-1e-46", "-9998.999999999999", "-1.1920928955078125e-07"]),
    st.floats(-20, 0, width=32).map(repr),
    st.floats(-9998, 3e38, allow_nan=False).map(repr),
)
_UNUSABLE = st.sampled_from(["null", "NaN", "Infinity", "-Infinity", "-9999", "-1e4", "1e39", "-1e400", "true", '"-1"'])
LOGPROBS = st.one_of(_USABLE, _USABLE, _USABLE, _UNUSABLE).map(Raw)


@dataclass(frozen=True)
class Told:
    """One model call; logprobs are JSON text."""

    prompt: list[int]
    output: list[int]
    logprobs: list[Raw]


@st.composite
def conversations(draw: st.DrawFn, max_turns: int = 7) -> list[Told]:
    """Calls of one rollout: clean ones, drift, truncation, compaction, sub-agents, retries, calls told twice."""
    agents: list[tuple[list[int], int]] = []  # what each has said so far, and where its last answer began
    told: list[Told] = []
    for _ in range(draw(st.integers(1, max_turns))):
        move = draw(st.sampled_from(["clean"] * 4 + ["realign"] * 3 + ["rewrite", "compact", "retry", "again", "new"]))
        if move == "again" and told:
            told.append(told[-1])
            continue
        if move == "new" or not agents:
            agents.append(([], 0))
        agent = len(agents) - 1 if move == "new" else draw(st.integers(0, len(agents) - 1))
        prompt = _prompt(draw, move, *agents[agent]) or [draw(_IDS)]
        output = draw(st.lists(_IDS, min_size=1, max_size=5))
        told.append(Told(prompt, output, draw(st.lists(LOGPROBS, min_size=len(output), max_size=len(output)))))
        agents[agent] = (prompt + output, len(prompt))
    return told


def _prompt(draw: st.DrawFn, move: str, held: list[int], last_start: int) -> list[int]:
    new = draw(_SOME_IDS)
    if move == "realign":
        return held[: draw(st.integers(last_start, len(held)))] + new
    if move == "rewrite":
        return held[: draw(st.integers(0, len(held)))] + new
    if move == "compact":
        start, end = sorted((draw(st.integers(0, len(held))), draw(st.integers(0, len(held)))))
        return held[:start] + held[end:] + new
    return held[:last_start] if move == "retry" else held + new


# Items


def _id_text(value: int) -> st.SearchStrategy[Any]:
    """One id as some server sends it."""
    plain = st.just(value)
    return st.one_of(plain, plain, plain, st.sampled_from([str(value), f"token_id:{value}", f"00{value}"]))


_DEFECTIVE_VALUES = st.sampled_from(
    [[Raw("-0")], [1.5], [True], [None], [2**31], ["x"], [[1]], [-1], {}, {"a": [1]}, "12", 7, False, [], None]
)
_OTHER_ITEMS = st.sampled_from(
    [
        7,
        None,
        "an item",
        [{"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [0]}],
        {},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"prompt_token_ids": [], "generation_token_ids": [], "generation_log_probs": [], "type": "message"},
        {"prompt_token_ids": None, "generation_token_ids": None, "generation_log_probs": None, "content": "é\ud800"},
        {"type": "reasoning", "summary": [{"generation_token_ids": [1, 2]}], "routed_experts": [[1]]},
    ]
)
_KEYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


@st.composite
def items(draw: st.DrawFn, turn: Told) -> Members:
    """One item that tells the turn: ids in any form, keys in any order, perhaps repeated, perhaps with a defect."""
    ids = [[draw(_id_text(value)) for value in values] for values in (turn.prompt, turn.output)]
    members = Members(zip(_KEYS, [*ids, turn.logprobs], strict=True))
    members.append(("type", "message"))
    extra = draw(st.sampled_from(["", "", "", "defect", "repeat", "experts", "length"]))
    if extra == "defect":
        place = draw(st.integers(0, 2))
        members[place] = (_KEYS[place], draw(_DEFECTIVE_VALUES))
    elif extra == "repeat":  # the true value comes last
        members.insert(0, (draw(st.sampled_from(_KEYS)), draw(_DEFECTIVE_VALUES)))
        return members
    elif extra == "experts":
        members.append(
            ("routed_experts", draw(st.sampled_from([None, [[[1, 2], [3, 4]]], "x", {"prompt_token_ids": [7]}])))
        )
    elif extra == "length":
        members[2] = (_KEYS[2], turn.logprobs[1:])
    return Members(draw(st.permutations(members)))


_ITEM_STYLES = st.sampled_from([COMPACT, COMPACT, COMPACT, *STYLES])


@st.composite
def bodies(draw: st.DrawFn, max_turns: int = 5) -> bytes:
    """Whole answers in any order; each item may have a style of its own, as if the next prompt came from elsewhere."""
    output: list[Any] = []
    for turn in draw(conversations(max_turns)):
        output += draw(st.lists(_OTHER_ITEMS, max_size=1))
        output.append(Raw(write(draw(items(turn)), draw(_ITEM_STYLES))))
    response = Members([("id", 'é "\\'), ("output", output), ("status", "completed"), ("usage", {"output": [1]})])
    members = [
        ("response", Members(draw(st.permutations(response)))),
        ("reward", draw(st.sampled_from([1, 0.5, None]))),
    ]
    members += draw(st.lists(st.sampled_from([("score", 1e-7), ("x", [{"y": []}, "\udfff"]), ("z", {})]), max_size=2))
    if draw(st.integers(0, 9)) == 0:  # a repeated key discards what came before
        members.insert(0, ("response", {"output": output[::-1]}))
        return write(Members(members)).encode()
    document = Members(draw(st.permutations(members)))
    return write(document, draw(st.sampled_from(STYLES))).encode()


# JSON


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-16", categories=None), max_size=8)
    | st.sampled_from(["\ud800", "\udc00x", "\ud83d\ude00", "\ud800\ud800\udc00"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["response", "output", "prompt_token_ids"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An answer in which some bytes were removed, put in or changed: mostly no JSON any more."""
    body = bytearray(draw(bodies(max_turns=2)))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(_DAMAGE))
    return bytes(body)


_JSON_PIECES = rb', : " ] } [ { - 0 . e \ \u12 \ud800 nul NaN tru 1.5 1e5 -Infinity'
_DAMAGE = [b"", b" ", b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xef\xbb\xbf", *_JSON_PIECES.split()]
