"""One rollout as a person reads it: the tree that the terminal and the page are two views of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from turnloom._rollout import Defect, Drift, Outcome, Turn

Kind = Literal["prompt", "trained", "discarded", "unusable"]

KINDS: Final[dict[Kind, str]] = {
    "prompt": "context: what the model was given",
    "trained": "generated, and trained",
    "discarded": "generated, and removed by a realign, since the next prompt does not repeat it",
    "unusable": "generated, without a usable logprob, and so not trained",
}
"""What a token can be."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one row, one turn and one kind."""

    turn: int
    """Index into `Inspection.turns`."""
    kind: Kind
    start: int | None
    """Where it begins in the row; None for tokens that a realign removed."""
    ids: list[int]
    log_probs: list[float] | None
    """One per id as it was sent; None where there is none to use."""
    texts: list[str] | None
    """What each id adds to the text; None without a tokenizer."""


@dataclass(frozen=True, slots=True)
class InspectedRow:
    """One row, with what realigns removed from it in its place."""

    row: int | None
    """Index into `rows` of the rollout, or `unscored_rows`; None when it has nothing to train."""
    tokens: int
    """How many the row has; removed ones do not count."""
    repeats: tuple[int, int] | None
    """(index into `Inspection.rows`, tokens): it begins with as many tokens of that row, which are not told again; None
    where the row begins with nothing of the row that its prompt was compared with."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The tokens of one side of a divergence, from the first that differs."""

    before: list[int]
    """The last ids that both sides have."""
    before_texts: list[str] | None
    ids: list[int]
    """From the first different one, as many as are shown."""
    texts: list[str] | None
    changed: tuple[tuple[int, int], ...]
    """Stretches of `ids`, as (start, end), that the other side's excerpt lacks."""
    tokens: int
    """How many there are in all from the first different one."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt stops to repeat the row that was held, and both sides from there."""

    held_row: int
    """Index into `Inspection.rows`: the row that the prompt was compared with."""
    held: Excerpt
    prompt: Excerpt
    causes: tuple[str, ...]
    """Keys of `DRIFT_CAUSES`; more than one where several changes came together; empty without a tokenizer."""


@dataclass(frozen=True, slots=True)
class InspectedTurn:
    """One model call: what the parser says of it, and what was said."""

    facts: Turn
    row: int
    """Index into `Inspection.rows`."""
    messages: list[dict[str, Any]]
    """Chat messages since the turn before: what tools and users said, then what the model said."""
    divergence: Divergence | None
    """None for the first turn, and where the prompt repeats all that was held."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """One rollout as a person reads it."""

    name: str
    """Where it came from."""
    outcome: Outcome
    reason: str | None
    reward: float | None
    truncated: bool
    metrics: dict[str, float]
    """As `Rollout.metrics`."""
    drift: Drift
    defects: tuple[Defect, ...]
    fork_threshold_tokens: int
    branches: str
    input: list[dict[str, Any]]
    """What the conversation began with, as chat messages, where the answer repeats its request."""
    turns: tuple[InspectedTurn, ...]
    rows: tuple[InspectedRow, ...]
    messages_after: list[dict[str, Any]]
    """Chat messages after the last turn."""
    unknown_ids: int | None
    """How many tokens the tokenizer's vocabulary lacks: with many it is the wrong one. None without a tokenizer."""

    def count(self, kind: Kind) -> int:
        """Tokens of a kind, over all rows; what a row repeats of another is counted there."""
        return sum(len(segment.ids) for segment in self.segments() if segment.kind == kind)

    def segments(self) -> Iterator[Segment]:
        """The segments of all rows."""
        for row in self.rows:
            yield from row.segments

    def to_json(self) -> dict[str, Any]:
        """The tree as JSON values; numbers that JSON has no words for are strings, such as `"NaN"`."""
        tree = asdict(self) | {"defects": [defect._asdict() for defect in self.defects]}
        values: dict[str, Any] = json.loads(json.dumps(tree), parse_constant=str)
        return values
