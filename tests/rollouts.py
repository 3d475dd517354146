"""Makes small answers, and takes what comes out of them apart for comparison."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import grammar
import reference
import turnloom
from turnloom import _native

# Making answers


class Raw(str):
    """JSON text that `write` takes as it is, such as `-0` or `1e2`."""


@dataclass(frozen=True)
class Style:
    """The white space of a document: at brackets, before and after a comma, before and after a colon."""

    bracket: str = ""
    before: str = ""
    after: str = ""
    colon: str = ""


COMPACT = Style()
SPACED = Style(after=" ", colon=" ")
ROOMY = Style(bracket="\r\n\t ", before=" ", after="\n", colon="\t ")
STYLES = (COMPACT, SPACED, ROOMY)


def write(value: Any, style: Style = COMPACT) -> str:
    """JSON text of the value. Objects may be given as lists of pairs in `Members`, so that a key can repeat."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        value = Members(value.items())
    if isinstance(value, Members):
        members = (write(key) + style.before + ":" + style.colon + write(member, style) for key, member in value)
        return _bracketed("{}", members, style)
    if isinstance(value, (list, tuple)):
        return _bracketed("[]", (write(element, style) for element in value), style)
    return json.dumps(value)


class Members(list[tuple[str, Any]]):
    """The members of an object, in order, keys perhaps repeated."""


def _bracketed(brackets: str, parts: Iterable[str], style: Style) -> str:
    inner = f"{style.before},{style.after}".join(parts)
    return brackets[0] + style.bracket + inner + (style.bracket if inner else "") + brackets[1]


def turn(prompt: Any, generation: Any, logprobs: Any = None, **rest: Any) -> dict[str, Any]:
    """An item that tells a model call; its logprobs are -0.5, -0.25, … where none are given."""
    if logprobs is None:
        logprobs = [-(0.5 ** (place + 1)) for place in range(len(generation))]
    fields = {"prompt_token_ids": prompt, "generation_token_ids": generation, "generation_log_probs": logprobs}
    return fields | {"type": "message"} | rest


def answer(*items: Any, response: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A body of `/run` with these items, rewarded with 1.0."""
    return write({"response": {"output": list(items)} | (response or {}), "reward": 1.0} | fields).encode()


# Taking results apart


def arrays_of(row: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three arrays of a row, or of a tuple that begins with them."""
    if isinstance(row, turnloom.TrainingRow):
        return row.input_ids, row.completion_mask, row.old_log_probs
    ids, mask, logprobs, *_ = row
    return ids, mask, logprobs


def rows_of(rows: Iterable[Any]) -> list[tuple[list[int], list[int], bytes, tuple[str, ...]]]:
    """Rows as plain values, logprobs as their bits."""
    return [
        (ids.tolist(), mask.tolist(), logprobs.tobytes(), (str(ids.dtype), str(mask.dtype), str(logprobs.dtype)))
        for ids, mask, logprobs in map(arrays_of, rows)
    ]


def spans_of(turns: Iterable[tuple[int | None, int, int]], row: int, mask: np.ndarray) -> list[list[int]]:
    """What a row's `turn_spans` must be, from (row, start, end) of all turns of its rollout."""
    return [
        [number, start, end]
        for number, (place, start, end) in enumerate(turns)
        if place == row and mask[start:end].any()
    ]


def everything(rollout: turnloom.Rollout) -> dict[str, Any]:
    """All that a rollout tells, as plain values that compare (NaN too)."""
    return {
        "outcome": rollout.outcome,
        "reason": rollout.reason,
        "reward": rollout.reward,
        "rows": rows_of(rollout.rows),
        "unscored_rows": rows_of(rollout.unscored_rows),
        "turn_spans": [row.turn_spans.tolist() for row in (*rollout.rows, *rollout.unscored_rows)],
        "turns": rollout.turns,
        "drift": rollout.drift,
        "defects": rollout.defects,
        "truncated": rollout.truncated,
        "output": json.dumps(rollout.output),
        "document": json.dumps(rollout.document),
        "metrics": repr(rollout.metrics),
        "messages": json.dumps(rollout.messages()),
        "error": rollout.error,
    }


def feed(body: bytes, cuts: Iterable[int] = (), **settings: Any) -> turnloom.Rollout:
    """The rollout of the body, fed in pieces that end at the cuts."""
    parser = turnloom.RunParser(**settings)
    start = 0
    for end in (*sorted(cuts), len(body)):
        parser.feed(body[start:end])
        start = end
    return parser.finish()


def assert_as_reference(body: bytes, fork_threshold_tokens: int = 1024, branches: str = "linear") -> None:
    """The compiled core gives what the reference gives, or refuses the body at the same byte."""
    offset = not_json_at(body)
    if offset is not None:
        assert_malformed(body, offset)
        return
    expected = reference.parse(body, fork_threshold_tokens=fork_threshold_tokens, branches=branches)
    parser = _native.Parser(fork_threshold_tokens=fork_threshold_tokens, best_branch=branches == "best")
    parser.feed(body)
    residual, members, response, rows, turns, defects, drift, lost = parser.finish()
    assert rows_of(rows) == rows_of(expected[3])
    assert turns == expected[4]
    for number, (_, mask, _, spans) in enumerate(rows):
        assert spans.tolist() == spans_of([turn[6:9] for turn in turns], number, mask)
        assert (spans.dtype, spans.shape[1]) == (np.int64, 3)
    assert [defect[:3] for defect in defects] == [defect[:3] for defect in expected[5]]
    assert drift == expected[6]
    assert [(number, ids.tolist()) for number, ids in lost] == [(number, ids.tolist()) for number, ids in expected[7]]
    document = reference.document(body)
    assert json.dumps(decode(residual)) == json.dumps(document)
    assert decoded_members(residual, members) == dumped_members(document)
    inner = document.get("response") if isinstance(document, dict) else None
    assert decoded_members(residual, response) == dumped_members(inner)


def assert_malformed(body: bytes, offset: int) -> None:
    """`parse_run` refuses the body at that byte, and names its line and column."""
    try:
        turnloom.parse_run(body)
    except turnloom.MalformedBody as error:
        line_start = body.rfind(b"\n", 0, offset) + 1
        place = (offset, body.count(b"\n", 0, offset) + 1, offset - line_start + 1)
        assert (error.offset, error.line, error.column) == place  # noqa: PT017
    else:
        raise AssertionError(f"not refused at byte {offset}")


def malformed_at(body: bytes) -> int | None:
    """Where `parse_run` says that the body is no JSON."""
    try:
        turnloom.parse_run(body)
    except turnloom.MalformedBody as error:
        return error.offset
    return None


def not_json_at(body: bytes) -> int | None:
    """Where the grammar says so."""
    try:
        grammar.check(body)
    except grammar.NotJson as error:
        return error.offset
    return None


def decode(residual: bytes) -> Any:
    return json.loads(residual.decode("utf-8", "replace"))


def decoded_members(residual: bytes, members: list[tuple[str, int, int]]) -> dict[str, str]:
    """The members that the core found, each dumped; of equal keys the last."""
    return {key: json.dumps(decode(residual[start:end])) for key, start, end in members}


def dumped_members(document: Any) -> dict[str, str]:
    members = document if isinstance(document, dict) else {}
    return {key: json.dumps(value) for key, value in members.items()}
