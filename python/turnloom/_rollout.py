"""The data dictionary: what one rollout is, how it ended, and the rows it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnloom._exceptions import TurnloomError, UnscorableRollout
from turnloom._gym import messages_from_agent_output
from turnloom._parsed import Parsed, as_number, decode, is_rollout_id, new_rollout_id, nothing

Outcome = Literal[
    "malformed",
    "agent_failure",
    "masked",
    "no_tokens",
    "no_reward",
    "ok",
    "http_error",
    "timeout",
    "unreachable",
    "disconnected",
    "cancelled",
]

OUTCOMES: Final[Mapping[Outcome, str]] = {
    # What a 200 can be, in the order in which it is judged.
    "malformed": "the whole body came and is not JSON",
    "agent_failure": "a 200 that carries a failure: a failure class of NeMo Gym's, a response that failed or is none",
    "masked": "the environment asks not to train on it: `mask_sample`",
    "no_tokens": "no token is left to train; the reason says why",
    "no_reward": "the reward is missing, no number, or not finite",
    "ok": "at least one trained token, and a finite reward",
    # What becomes of a request that gets no 200.
    "http_error": "a status other than 200",
    "timeout": "no data for `run_timeout` seconds, or the `deadline` passed",
    "unreachable": "surely never delivered: refused, no such host, no route, TLS, connect timeout",
    "disconnected": "perhaps delivered, then lost before the whole answer had come",
    "cancelled": "given up by the loop itself; counted, never returned",
}
"""How a rollout can end, and when it does."""

Transition = Literal["clean", "realign", "fork"]

DEFECT_CODES: Final[Mapping[str, str]] = {
    "missing": "the field is absent or null (or, for a generation, empty) although the item has token ids",
    "empty": "the prompt has no ids",
    "not_a_list": "the field is neither a list nor null",
    "not_an_id": "an element is no token id: a JSON integer, or a string such as 7 or token_id:7, with 0 <= id < 2**31",
    "not_a_logprob": "an element of the logprobs is a list or an object",
    "length_mismatch": "there are not as many logprobs as generated ids",
    "duplicate_turn": "the item tells the turn before it once more",
}
"""What can be wrong with one item, and what that means."""

_CONTROL_FIELDS = frozenset({"reward", "mask_sample"})


def _no_spans() -> NDArray[np.int64]:
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRow:
    """One training sequence of `L` tokens. The arrays own their memory and are writable.

    A row made by hand needs the three arrays alone.
    """

    input_ids: NDArray[np.int64]
    """[L], the prompt and everything after it."""
    completion_mask: NDArray[np.int64]
    """[L], 1 where the token is trained."""
    old_log_probs: NDArray[np.float32]
    """[L], the sampled logprob where the token is trained, else 0.0."""
    turn_spans: NDArray[np.int64] = field(default_factory=_no_spans)
    """[S, 3], a line for each turn that is trained in the row, in order: its index in `Rollout.turns`, its first token,
    and one past its last. Single tokens of it may be untrained, as the mask says."""
    rollout_id: str = ""
    """`Rollout.id` of the conversation that the row is of; no other has it, in whatever process."""
    turn_count: int | None = None
    """How many turns that conversation has, where it is known."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, and how it was joined to what came before, as TRL's reconciler would join it."""

    item_index: int
    """Its item in `response.output`; items that are not objects count."""
    prompt_tokens: int
    output_tokens: int
    transition: Transition | None
    """None for the first turn."""
    matched_tokens: int
    """Tokens of the held row that the prompt repeats; 0 for the first turn."""
    drift_tokens: int
    """Held tokens that the prompt does not repeat; 0 for the first turn."""
    row: int | None
    """Index into `rows`, or `unscored_rows`; None when its row had nothing to train, or the rollout has no rows."""
    start: int
    """Where its generated tokens begin in that row."""
    end: int
    """Where they end, as far as no realign removed them."""
    routed_experts_bytes: int
    """Size of its `routed_experts` as sent; they are counted and left out."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Counts over the transitions of one rollout."""

    clean: int = 0
    realign: int = 0
    fork: int = 0
    transitions: int = 0
    drift_tokens: int = 0
    """Held tokens not repeated, forks included."""
    drift_max: int = 0
    discarded_tokens: int = 0
    """Trained tokens that a realign removed."""
    unusable_tokens: int = 0
    """Generated tokens without a usable logprob."""
    positive_logprobs: int = 0
    """Logprobs above 0, used as sent."""


class Defect(NamedTuple):
    """One thing wrong with one item. The rollout goes on without the item's turn."""

    item_index: int
    field: str | None
    code: str
    """A key of `DEFECT_CODES`."""
    detail: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a rollout that a client ran went; zero for what did not happen."""

    queue_s: float = 0.0
    """Seconds of waiting for a slot of the agent."""
    first_byte_s: float = 0.0
    """Seconds from the beginning of the last try to the head of the answer; zero where none came."""
    download_s: float = 0.0
    """Seconds from there to the end of the answer; parsing goes on meanwhile."""
    parse_s: float = 0.0
    """Seconds in the parser."""
    total_s: float = 0.0
    """Seconds from `run` to its end."""
    body_bytes: int = 0
    """Bytes of the answer, decompressed."""


class Rollout:
    """One `/run`: how it ended, and what there is to train on.

    Whatever was not there is empty or zero, never None; `reward` alone is None when it cannot be scored, and
    `reason` is None exactly when the outcome is `ok`.
    """

    id: str
    """No other rollout has it, in whatever process. Its rows carry it."""
    outcome: Outcome
    """How it ended: `OUTCOMES` says when each is given."""
    reason: str | None
    """One sentence for a person."""
    reward: float | None
    """The environment's reward; None unless the outcome is `ok`."""
    rows: tuple[TrainingRow, ...]
    """What to train on; empty unless the outcome is `ok`."""
    unscored_rows: tuple[TrainingRow, ...]
    """What was rebuilt of a masked rollout, or of one without a reward."""
    error: TurnloomError | None
    """The typed exception behind an outcome without a sound answer."""
    agent: str | None
    """The agent's name, where a client made the request."""
    server: str | None
    """The URL of the server of that agent that the request was last sent to; None where it was sent to none."""
    timing: Timing
    """Where its time went, where a client made the request."""

    def __init__(
        self,
        outcome: Outcome,
        *,
        reason: str | None = None,
        reward: float | None = None,
        rows: Iterable[TrainingRow] = (),
        unscored_rows: Iterable[TrainingRow] = (),
        error: TurnloomError | None = None,
        agent: str | None = None,
        parsed: Parsed | None = None,
    ) -> None:
        self.outcome = outcome
        self.reason = reason
        self.reward = reward
        self.rows = tuple(rows)
        self.unscored_rows = tuple(unscored_rows)
        self.error = error
        self.agent = agent
        self.server: str | None = None
        self.timing = Timing()
        self._parsed = parsed if parsed is not None else nothing()
        self.id = new_rollout_id() if parsed is None else parsed.rollout_id
        self._request_fields: frozenset[str] = frozenset()

    def _take_id(self, rollout_id: Any) -> None:
        """Be known, with its rows, by the id that the request had, if it is one as ours are."""
        if not is_rollout_id(rollout_id):
            return
        self.id = rollout_id
        self.rows = tuple(replace(row, rollout_id=rollout_id) for row in self.rows)
        self.unscored_rows = tuple(replace(row, rollout_id=rollout_id) for row in self.unscored_rows)

    def __repr__(self) -> str:
        said = f"reward={self.reward}" if self.outcome == "ok" else f"reason={self.reason!r}"
        return f"<Rollout {self.outcome} {said} rows={len(self.rows)} turns={len(self._parsed.turns)}>"

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The model calls, in order, as they were joined."""
        turns = tuple(Turn(*turn) for turn in self._parsed.turns)
        return turns if self.rows or self.unscored_rows else tuple(replace(turn, row=None) for turn in turns)

    @cached_property
    def drift(self) -> Drift:
        """Counts over the transitions from one turn to the next."""
        return Drift(**self._parsed.drift)

    @cached_property
    def defects(self) -> tuple[Defect, ...]:
        """What was wrong with single items."""
        return tuple(Defect(*defect) for defect in self._parsed.defects)

    @cached_property
    def truncated(self) -> bool:
        """Whether the response says that it was cut: its status is `incomplete`, or it has `incomplete_details`."""
        response = self._parsed.response
        return response.get("status") == "incomplete" or response.get("incomplete_details") is not None

    @cached_property
    def output(self) -> list[Any]:
        """`response.output` without the token arrays."""
        output = self._parsed.response.get("output")
        return output if isinstance(output, list) else []

    @cached_property
    def document(self) -> Any:
        """The whole answer without the token arrays; None where no JSON came."""
        residual = self._parsed.residual
        return decode(residual) if residual else None

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Numeric and boolean fields of the environment, and `reward_components` as `reward_components/<name>`.

        Neither the fields that the request had, nor names with a leading underscore.
        """
        members = self._parsed.members
        found = {
            name: number
            for name in members
            if name not in self._request_fields
            and name not in _CONTROL_FIELDS
            and not name.startswith("_")
            and (number := members.number(name)) is not None
        }
        if members.begins_with("reward_components", b"{"):
            for name, value in members["reward_components"].items():
                if not name.startswith("_") and (number := as_number(value)) is not None:
                    found[f"reward_components/{name}"] = number
        return dict(sorted(found.items()))

    def generated_ids(self) -> list[int]:
        """The generated ids of all turns in order, also those that a realign removed."""
        parsed = self._parsed
        spans: list[NDArray[np.int64]] = []
        for number, (*_, row, start, end, _) in enumerate(parsed.turns):
            if row is not None:
                spans.append(parsed.rows[row][0][start:end])
            if number in parsed.lost:
                spans.append(parsed.lost[number])
        ids: list[int] = np.concatenate(spans).tolist() if spans else []
        return ids

    def messages(self) -> list[dict[str, Any]]:
        """The output as chat messages: `messages_from_agent_output(rollout.output)`."""
        return messages_from_agent_output(self.output)

    def raise_for_outcome(self) -> Rollout:
        """The rollout itself when it is `ok`.

        Raises:
            AgentError: no usable answer came (`AgentHTTPError`, `AgentTimeout`, `AgentUnreachable`,
                `AgentDisconnected`).
            MalformedBody: the answer was no JSON.
            UnscorableRollout: the answer gives nothing to train.
        """
        if self.outcome == "ok":
            return self
        if self.error is not None:
            raise self.error
        raise UnscorableRollout(self.reason or self.outcome, outcome=self.outcome)
