"""From an answer to an `Inspection`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from turnloom._gym import items_of, messages_from_agent_output
from turnloom._parse import DEFAULT_FORK_THRESHOLD_TOKENS, Branches, parse_run
from turnloom._parsed import decode
from turnloom._rollout import Rollout, Turn
from turnloom.inspector._causes import Causes
from turnloom.inspector._inspection import Divergence, Excerpt, InspectedRow, InspectedTurn, Inspection, Kind, Segment
from turnloom.inspector._second_pass import HeldRow, Part, Step, common_prefix, second_pass
from turnloom.inspector._tokenizer import TokenText

_SHOWN_BEFORE: Final = 16
_SHOWN_AFTER: Final = 192
"""Tokens of either side of a divergence that are shown: before the first different one, and from it."""
_SAME_FROM: Final = 3
"""As many neighbouring tokens that both sides of a divergence have are the same words and no chance."""


def inspect_run(
    body: bytes | bytearray | memoryview | str,
    *,
    name: str = "",
    tokenizer: Any = None,
    fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD_TOKENS,
    branches: Branches = "linear",
    honor_mask_sample: bool = True,
) -> Inspection:
    """One answer of `/run` as a person reads it.

    Parses the body as `parse_run` does, then once more in plain Python, so that nothing is thrown away: seconds for the
    largest bodies.

    Args:
        body: the whole answer.
        name: what to call it.
        tokenizer: of `tokenizers` or `transformers`, or anything with `decode(ids, skip_special_tokens=False)`; without
            one there are ids and no texts, and no cause of a drift.
        fork_threshold_tokens: as in `parse_run`, and so the two others.

    Raises:
        MalformedBody: the body is not JSON.
        ConfigError: a setting out of its range.
    """
    rollout = parse_run(
        body,
        fork_threshold_tokens=fork_threshold_tokens,
        branches=branches,
        honor_mask_sample=honor_mask_sample,
    )
    document = decode(body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body).removeprefix(_BOM))
    items = items_of(document) if rollout.turns or rollout.output else []
    rows, steps = second_pass(rollout, items, every_row_is_open=branches == "best")
    text = TokenText(tokenizer) if tokenizer is not None else None
    asked = _input_messages(document)
    causes = Causes(text, asked) if text is not None else None
    inspected_rows = tuple(_inspected_rows(rows, steps, text))
    return Inspection(
        name=name,
        outcome=rollout.outcome,
        reason=rollout.reason,
        reward=rollout.reward,
        truncated=rollout.truncated,
        metrics=rollout.metrics,
        drift=rollout.drift,
        defects=rollout.defects,
        fork_threshold_tokens=fork_threshold_tokens,
        branches=branches,
        input=asked,
        turns=tuple(_inspected_turns(rollout, items, steps, text, causes)),
        rows=inspected_rows,
        messages_after=messages_from_agent_output(items[rollout.turns[-1].item_index + 1 if rollout.turns else 0 :]),
        unknown_ids=None if text is None else sum(text.unknown(row.ids.tolist()) for row in rows),
    )


_BOM: Final = b"\xef\xbb\xbf"


def _input_messages(document: Any) -> list[dict[str, Any]]:
    """What the request asked, as answers of NeMo Gym repeat it."""
    params = document.get("responses_create_params") if isinstance(document, Mapping) else None
    given = params.get("input") if isinstance(params, Mapping) else None
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return messages_from_agent_output(given) if isinstance(given, list) else []


# Rows


def _inspected_rows(rows: Sequence[HeldRow], steps: Sequence[Step], text: TokenText | None) -> Iterator[InspectedRow]:
    trained = 0
    for number, row in enumerate(rows):
        repeats = _repeats(rows, next(step for step in steps if step.row == number))
        is_trained = bool(row.arrays()[1].any())
        yield InspectedRow(
            row=trained if is_trained else None,
            tokens=len(row.ids),
            repeats=repeats,
            segments=tuple(_segments(row.parts, repeats[1] if repeats else 0, text)),
        )
        trained += is_trained


def _repeats(rows: Sequence[HeldRow], first: Step) -> tuple[int, int] | None:
    """What the row's first prompt has in common with the row that it was compared with, as that one is now."""
    if first.held_row is None:
        return None
    repeated = common_prefix(rows[first.held_row].ids, first.prompt_ids)
    return (first.held_row, repeated) if repeated else None


def _segments(parts: Sequence[Part], repeated: int, text: TokenText | None) -> Iterator[Segment]:
    """The segments after as many repeated tokens, all of them of the first part."""
    start = repeated
    for part in (parts[0].cut(repeated), *parts[1:]):
        ids: list[int] = part.ids.tolist()
        texts = text.pieces(ids) if text else None
        for kind, first, end in _stretches(part):
            yield Segment(
                turn=part.turn,
                kind=kind,
                start=None if part.is_removed else start + first,
                ids=ids[first:end],
                log_probs=_log_probs(part, kind, first, end),
                texts=texts[first:end] if texts is not None else None,
            )
        start += 0 if part.is_removed else len(ids)


def _stretches(part: Part) -> Iterator[tuple[Kind, int, int]]:
    """(kind, start, end) of neighbouring tokens of one kind."""
    if part.mask is None:
        if len(part.ids):
            yield "prompt", 0, len(part.ids)
        return
    edges = [0, *(np.flatnonzero(np.diff(part.mask)) + 1).tolist(), len(part.ids)]
    for start, end in pairwise(edges):
        if part.mask[start]:
            yield "discarded" if part.is_removed else "trained", start, end
        else:
            yield "unusable", start, end


def _log_probs(part: Part, kind: Kind, start: int, end: int) -> list[float] | None:
    if part.log_probs is None or kind == "unusable":
        return None
    return [float(str(value)) for value in part.log_probs[start:end]]  # as few digits as tell the float32 apart


# Turns


def _inspected_turns(
    rollout: Rollout,
    items: Sequence[Any],
    steps: Sequence[Step],
    text: TokenText | None,
    causes: Causes | None,
) -> Iterator[InspectedTurn]:
    first_item = 0
    for turn, step in zip(rollout.turns, steps, strict=True):
        yield InspectedTurn(
            facts=turn,
            row=step.row,
            messages=messages_from_agent_output(items[first_item : turn.item_index + 1]),
            divergence=_divergence(turn, step, text, causes) if turn.drift_tokens else None,
        )
        first_item = turn.item_index + 1


def _divergence(turn: Turn, step: Step, text: TokenText | None, causes: Causes | None) -> Divergence:
    matched, shown = turn.matched_tokens, turn.matched_tokens + _SHOWN_AFTER
    sides: tuple[NDArray[np.int64], ...] = (step.held_ids, step.prompt_ids)
    excerpts = [side[matched:shown].tolist() for side in sides]
    changed = _changed(*excerpts)
    found = causes.of(step, matched) if causes is not None else ()
    held, prompt = (_excerpt(side, matched, stretches, text) for side, stretches in zip(sides, changed, strict=True))
    return Divergence(held_row=step.held_row or 0, held=held, prompt=prompt, causes=found)


def _excerpt(
    side: NDArray[np.int64], matched: int, changed: tuple[tuple[int, int], ...], text: TokenText | None
) -> Excerpt:
    before = max(0, matched - _SHOWN_BEFORE)
    ids: list[int] = side[before : matched + _SHOWN_AFTER].tolist()
    texts = text.pieces(ids) if text else None
    return Excerpt(
        before=ids[: matched - before],
        before_texts=texts[: matched - before] if texts is not None else None,
        ids=ids[matched - before :],
        texts=texts[matched - before :] if texts is not None else None,
        changed=changed,
        tokens=len(side) - matched,
    )


def _changed(held: list[int], prompt: list[int]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The stretches that the other side lacks; a few tokens that both happen to have do not count."""
    blocks = SequenceMatcher(None, held, prompt, autojunk=False).get_matching_blocks()
    same = [block for block in blocks if block.size >= _SAME_FROM]
    ours = [(block.a, block.a + block.size) for block in same]
    theirs = [(block.b, block.b + block.size) for block in same]
    if ours and ours[-1][1] == len(held) < _SHOWN_AFTER:
        prompt = prompt[: theirs[-1][1]]  # all that was held is there: what follows is new, and no change
    return _between(ours, len(held)), _between(theirs, len(prompt))


def _between(stretches: list[tuple[int, int]], length: int) -> tuple[tuple[int, int], ...]:
    ends = [0, *(end for _, end in stretches)]
    starts = [*(start for start, _ in stretches), length]
    return tuple((end, start) for end, start in zip(ends, starts, strict=True) if end < start)
