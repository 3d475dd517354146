"""What the core has to give, in plain Python: the second oracle beside TRL's reconciler.

Written from the rules alone. It decodes everything at once, keeps every id as a Python int, and is slow.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring
from typing import Any

import numpy as np

import grammar

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
COUNTS = ("clean", "realign", "fork", "transitions", "drift_tokens", "drift_max", "discarded_tokens")
_STRING_ID = re.compile(r"(?:token_id:)?0*([0-9]+)", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_raw_decode = json.JSONDecoder().raw_decode


def parse(body: bytes, *, fork_threshold_tokens: int = 1024, branches: str = "linear") -> tuple[Any, ...]:
    """What `Parser.finish()` gives: (residual, members, members of `response`, rows, turns, defects, drift, lost).

    Raises `grammar.NotJson` where the core raises MalformedBody.
    """
    grammar.check(body)
    text = body.removeprefix(grammar.BOM).decode("utf-8", "replace")
    output = _output_items(text)
    turns, defects, unusable, positive = _take_turns(output)
    rows, drift = reconcile(turns, fork_threshold_tokens, branches)
    drift |= {"unusable_tokens": unusable, "positive_logprobs": positive}
    residual, members, response = _residual(text)
    numbers = {id(row): number for number, row in enumerate(row for row in rows if any(row.mask))}
    lost = [turn.lost(is_kept=id(turn.row) in numbers) for turn in turns]
    return (
        residual,
        members,
        response,
        [row.arrays() for row in rows if any(row.mask)],
        [turn.facts(numbers.get(id(turn.row))) for turn in turns],
        defects,
        drift,
        [(number, np.array(ids, np.int64)) for number, ids in enumerate(lost) if ids],
    )


# Turns


@dataclass
class Turn:
    """One model call; the second half is filled in by `reconcile`."""

    item_index: int
    prompt: list[int]
    output: list[int]
    mask: list[int]
    logprobs: list[np.float32]
    routed_experts_bytes: int = 0

    transition: str | None = None
    matched: int = 0
    drift: int = 0
    row: Any = None
    start: int = 0
    end: int = 0

    def told(self) -> tuple[Any, ...]:
        """What two tellings of one call have in common, bit for bit."""
        return self.prompt, self.output, self.mask, np.array(self.logprobs, np.float32).tobytes()

    def facts(self, row_number: int | None) -> tuple[Any, ...]:
        sizes = (self.item_index, len(self.prompt), len(self.output))
        joined = (self.transition, self.matched, self.drift)
        return (*sizes, *joined, row_number, self.start, self.end, self.routed_experts_bytes)

    def lost(self, *, is_kept: bool) -> list[int]:
        """The generated ids that are in no row."""
        return self.output[self.end - self.start :] if is_kept else self.output


class _Defective(Exception):
    """(field, code, detail)"""


def _take_turns(items: list[tuple[int, dict[str, Any], int]]) -> tuple[list[Turn], list[tuple[Any, ...]], int, int]:
    turns: list[Turn] = []
    defects = []
    unusable = positive = 0
    for index, item, experts_bytes in items:
        try:
            turn = _turn(index, item, experts_bytes)
            if turn is None:
                continue
            if turns and turn.told() == turns[-1].told():
                raise _Defective(None, "duplicate_turn", "the item tells the turn before it once more")
        except _Defective as defective:
            defects.append((index, *defective.args))
            continue
        turns.append(turn)
        unusable += turn.mask.count(0)
        positive += sum(bool(value > 0) for value in turn.logprobs)
    return turns, defects, unusable, positive


def _turn(index: int, item: dict[str, Any], experts_bytes: int) -> Turn | None:
    prompt, output, logprobs = (item.get(name) for name in TOKEN_FIELDS[:3])
    if output is None or output == []:
        if isinstance(prompt, list) and prompt:
            raise _Defective("generation_token_ids", "missing", "a prompt without generated ids")
        return None
    prompt_ids = _ids("prompt_token_ids", prompt)
    if not prompt_ids:
        raise _Defective("prompt_token_ids", "empty", "the prompt has no ids")
    output_ids = _ids("generation_token_ids", output)
    values = _list("generation_log_probs", logprobs)
    for place, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise _Defective("generation_log_probs", "not_a_logprob", f"[{place}] is a {type(value).__name__}")
    if len(values) != len(output_ids):
        detail = f"{len(output_ids)} generated ids, {len(values)} logprobs"
        raise _Defective("generation_log_probs", "length_mismatch", detail)
    usable = [_usable(value) for value in values]
    kept = [np.float32(float(value)) if good else np.float32(0) for value, good in zip(values, usable, strict=True)]
    return Turn(index, prompt_ids, output_ids, [int(good) for good in usable], kept, experts_bytes)


def _list(name: str, value: Any) -> list[Any]:
    if value is None:
        raise _Defective(name, "missing", "absent or null")
    if not isinstance(value, list):
        raise _Defective(name, "not_a_list", f"a {type(value).__name__}")
    return value


def _ids(name: str, value: Any) -> list[int]:
    return [_id(name, place, element) for place, element in enumerate(_list(name, value))]


def _id(name: str, place: int, element: Any) -> int:
    if isinstance(element, str) and (digits := _STRING_ID.fullmatch(element)) and len(digits[1]) <= 10:
        element = int(digits[1])
    if type(element) is int and 0 <= element < 2**31:
        return element
    raise _Defective(name, "not_an_id", f"[{place}] is {element!r:.50}")


def _usable(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    with np.errstate(over="ignore"):
        return math.isfinite(value) and value > -9999 and bool(np.isfinite(np.float32(float(value))))


# Rows


MAX_OPEN_ROWS = 64


@dataclass(eq=False)
class Row:
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    last_turn: int = 0

    def cut(self, length: int) -> None:
        self.turns[-1].end = min(self.turns[-1].end, length)
        del self.tokens[length:], self.mask[length:], self.logprobs[length:]

    def append(self, tokens: list[int], mask: list[int], logprobs: list[Any]) -> None:
        self.tokens += tokens
        self.mask += mask
        self.logprobs += logprobs

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            np.array(self.tokens, np.int64),
            np.array(self.mask, np.int64),
            np.array(self.logprobs, np.float32),
        )


def reconcile(
    turns: list[Turn], fork_threshold_tokens: int, branches: str = "linear"
) -> tuple[list[Row], dict[str, int]]:
    """All rows, also those with nothing to train, and the counts; says in each turn how it was joined."""
    drift = dict.fromkeys(COUNTS, 0)
    rows: list[Row] = []
    open_rows: list[Row] = []
    for number, turn in enumerate(turns):
        row = _continued(turn, open_rows, turns[number - 1].row, fork_threshold_tokens, drift) if number else None
        if row is None:
            row = Row()
            rows.append(row)
            open_rows = [row] if branches == "linear" else [*open_rows, row]
        row.last_turn = number
        _append(turn, row)
    return rows, drift


def _append(turn: Turn, row: Row) -> None:
    context = turn.prompt[len(row.tokens) :]
    row.append(context, [0] * len(context), [0.0] * len(context))
    turn.row = row
    turn.start = len(row.tokens)
    turn.end = turn.start + len(turn.output)
    row.append(turn.output, turn.mask, turn.logprobs)
    row.turns.append(turn)


def _continued(turn: Turn, open_rows: list[Row], last: Row, threshold: int, drift: dict[str, int]) -> Row | None:
    """The row that the turn continues, realigned if need be; None for a fork."""
    followed = _followed(turn.prompt, open_rows, last)
    row = _fitting(turn.prompt, open_rows, threshold) or followed
    turn.matched = _common_prefix(row.tokens, turn.prompt)
    turn.drift = len(row.tokens) - turn.matched
    turn.transition = _transition(turn.prompt, row, threshold)
    drift[turn.transition] += 1
    drift["transitions"] += 1
    drift["drift_tokens"] += turn.drift
    drift["drift_max"] = max(drift["drift_max"], turn.drift)
    if turn.transition == "realign":
        drift["discarded_tokens"] += sum(row.mask[turn.matched :])
        row.cut(turn.matched)
    if turn.transition != "fork":
        return row
    if len(open_rows) == MAX_OPEN_ROWS:
        others = [one for one in open_rows if one is not followed]
        open_rows.remove(min(others, key=lambda one: one.last_turn))
    return None


def _transition(prompt: list[int], row: Row, threshold: int) -> str:
    matched = _common_prefix(row.tokens, prompt)
    drift = len(row.tokens) - matched
    if drift == 0:
        return "clean"
    return "realign" if matched >= row.turns[-1].start and drift < threshold else "fork"


def _fitting(prompt: list[int], open_rows: list[Row], threshold: int) -> Row | None:
    """The longest row that the prompt repeats in full, else the one to realign of which it repeats most; the newest."""
    for kind in ("clean", "realign"):
        rows = [row for row in open_rows if _transition(prompt, row, threshold) == kind]
        if rows:
            most = max(_common_prefix(row.tokens, prompt) for row in rows)
            return [row for row in rows if _common_prefix(row.tokens, prompt) == most][-1]
    return None


def _followed(prompt: list[int], open_rows: list[Row], last: Row) -> Row:
    """The row of the turn before, or the first other that repeats more, and so on until none does."""
    longer = [row for row in open_rows if _common_prefix(row.tokens, prompt) > _common_prefix(last.tokens, prompt)]
    return _followed(prompt, open_rows, longer[0]) if longer else last


def _common_prefix(held: list[int], prompt: list[int]) -> int:
    for length, (ours, theirs) in enumerate(zip(held, prompt, strict=False)):
        if ours != theirs:
            return length
    return min(len(held), len(prompt))


# JSON


def _output_items(text: str) -> list[tuple[int, dict[str, Any], int]]:
    """(index, item, bytes of its `routed_experts`) of each object in `response.output`."""
    response = _member(text, _skip_space(text, 0), "response")
    output = _member(text, response, "output")
    items = []
    for index, start in enumerate(_elements(text, output)):
        if text[start] == "{":
            spans = {key: (begin, end) for key, begin, end in _members(text, start)}
            begin, end = spans.get("routed_experts", (0, 0))
            value = text[begin:end]
            items.append((index, _token_decode(text, start), 0 if value == "null" else len(value.encode())))
    return items


def _token_decode(text: str, start: int) -> dict[str, Any]:
    """The item at `start`; of its numbers `-0` stays apart from 0, and what no double holds is infinite."""
    decoder = json.JSONDecoder(parse_int=lambda digits: int(digits) if _is_plain(digits) else float(digits))
    item: dict[str, Any] = decoder.raw_decode(text, start)[0]
    return item


def _is_plain(digits: str) -> bool:
    return digits != "-0" and len(digits) < 300


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def _members(text: str, at: int | None) -> Iterator[tuple[str, int, int]]:
    """(key, start, end) of each member of the object at `at`; none if there is no object."""
    if at is None or text[at] != "{":
        return
    at = _skip_space(text, at + 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        start = _skip_space(text, _skip_space(text, at) + 1)
        end = _raw_decode(text, start)[1]
        yield key, start, end
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at] == "," else at


def _member(text: str, at: int | None, key: str) -> int | None:
    """Where the value of the last such member begins."""
    return {name: start for name, start, _ in _members(text, at)}.get(key)


def _elements(text: str, at: int | None) -> Iterator[int]:
    if at is None or text[at] != "[":
        return
    at = _skip_space(text, at + 1)
    while text[at] != "]":
        yield at
        at = _skip_space(text, _raw_decode(text, at)[1])
        at = _skip_space(text, at + 1) if text[at] == "," else at


def document(body: bytes) -> Any:
    """The body as `Rollout.document` has it: decoded, without the token fields of the items of `response.output`."""
    return _document(body.removeprefix(grammar.BOM).decode("utf-8", "replace"))


def _document(text: str) -> Any:
    document = json.loads(text)
    if isinstance(document, dict) and isinstance(document.get("response"), dict):
        output = document["response"].get("output")
        for item in output if isinstance(output, list) else ():
            for name in TOKEN_FIELDS if isinstance(item, dict) else ():
                item.pop(name, None)
    return json.loads(_SURROGATE.sub("\ufffd", json.dumps(document, ensure_ascii=False)))


def _residual(text: str) -> tuple[bytes, list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """The document dumped again, with the places of the members of it and of `response`."""
    document = _document(text)
    if not isinstance(document, dict):
        return json.dumps(document).encode(), [], []
    response = document.get("response")
    inner, inner_spans = _dump_members(response) if isinstance(response, dict) else (None, [])
    residual, spans = _dump_members(document, {} if inner is None else {"response": inner})
    shift = next((start for key, start, _ in spans if key == "response"), 0)
    return residual, spans, [(key, start + shift, end + shift) for key, start, end in inner_spans]


def _dump_members(
    values: dict[str, Any], dumped: dict[str, bytes] | None = None
) -> tuple[bytes, list[tuple[str, int, int]]]:
    residual, spans = b"{", []
    for key, value in values.items():
        residual += b"," if spans else b""
        residual += json.dumps(key).encode() + b":"
        start = len(residual)
        residual += (dumped or {}).get(key) or json.dumps(value).encode()
        spans.append((key, start, len(residual)))
    return residual + b"}", spans
