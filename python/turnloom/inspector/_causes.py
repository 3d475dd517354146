"""Why a prompt does not repeat what was held: the change that, undone in both texts, makes them agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NamedTuple

from turnloom.inspector._inspection import Inspection
from turnloom.inspector._same_text import Ends, with_plain_calls, without_thinking
from turnloom.inspector._second_pass import Part, Step, common_prefix
from turnloom.inspector._tokenizer import NO_CHARACTER, TokenText


class DriftCause(NamedTuple):
    """One reason why a prompt does not repeat what was held."""

    name: str
    meaning: str
    advice: str


DRIFT_CAUSES: Final[Mapping[str, DriftCause]] = {
    "thinking_dropped": DriftCause(
        "dropped thinking",
        "the history leaves out what the model thought in earlier answers",
        "Use a chat template that keeps the thinking of all turns, and an agent that sends it back; "
        "else each turn is a row.",
    ),
    "call_rewritten": DriftCause(
        "re-rendered tool call",
        "the history has the same tool call in another spelling: white space, order of keys, escapes",
        "Let the chat template write calls as the model writes them, and the agent keep `arguments` as they were "
        "generated.",
    ),
    "turn_boundary": DriftCause(
        "turn boundary",
        "only white space or special tokens differ, where an answer begins or ends",
        "Compare how the chat template ends an answer with the token that ends generation, and let it strip nothing.",
    ),
    "retokenized": DriftCause(
        "other tokens for the same text",
        "the history has the same text, split into other tokens",
        "The history was encoded anew: where the model server can, let it take the ids of earlier turns as they were "
        "generated.",
    ),
    "asked_again": DriftCause(
        "asked again",
        "an earlier prompt was sent once more: a retry, or several answers to one prompt",
        "fork_threshold_tokens=0 keeps every answer, each in a row; a realign keeps the last one alone.",
    ),
    "compaction": DriftCause(
        "compaction",
        "the prompt has the same task, and part of the history is gone from it",
        "Nothing is wrong: the model saw another context, which is a row of its own.",
    ),
    "sub_agent": DriftCause(
        "sub-agent",
        "the prompt belongs to another conversation: that of a sub-agent, or of an auxiliary call",
        'branches="best" gives each conversation one row.',
    ),
    "unknown": DriftCause(
        "unknown",
        "no change that is known explains it",
        "Compare the two texts where they part.",
    ),
}
"""Every cause that can be told."""

_UNDO: Final[Mapping[str, Callable[[str], str]]] = {
    "turn_boundary": lambda text: text,  # its ends are stripped where texts are compared
    "call_rewritten": with_plain_calls,
    "thinking_dropped": without_thinking,
}
_HEAD_TOKENS: Final = 64
"""A difference in as many tokens before an answer is one of how the answer is introduced."""
_WINDOW: Final = 4
"""How many times as long as the answer its other rendering may be, and some."""


class Causes:
    """Finds the causes of one rollout's drift.

    Args:
        text: the tokenizer.
        input: the chat messages that the conversation began with.
    """

    def __init__(self, text: TokenText, input: Sequence[Mapping[str, Any]]) -> None:
        self._text = text
        self._ends = Ends(text.special_tokens)
        said = [(message["role"], _words(message["content"])) for message in input]
        self._system = [words for role, words in said if words and role in ("system", "developer")]
        self._task = [words for role, words in said if words and role == "user"][-1:]

    def of(self, step: Step, matched: int) -> tuple[str, ...]:
        """Keys of `DRIFT_CAUSES`; several where only all of them together explain it.

        Args:
            step: the turn, and what was held before it.
            matched: how many of the held tokens its prompt repeats.
        """
        answers = list(_answers(step.held_parts))
        if len(step.prompt_ids) == matched and any(start == matched for start, _ in answers):
            return ("asked_again",)
        answer = next(((start, end) for start, end in answers if start - _HEAD_TOKENS <= matched < end), None)
        if answer is not None and (changes := self._changes(step, min(matched, answer[0]), answer[1])):
            return changes
        return (self._other_history(step, matched, answers, answer),)

    def _changes(self, step: Step, start: int, end: int) -> tuple[str, ...]:
        """The fewest changes that, undone in both, make the prompt repeat the answer."""
        held = step.held_ids[start:end]
        prompt = step.prompt_ids[start : start + _WINDOW * len(held) + 1024]
        ours, theirs = self._text.text(held.tolist()), self._text.text(prompt.tolist())
        if not ours or NO_CHARACTER in ours or self._text.unknown([*held.tolist(), *prompt.tolist()]):
            return ()  # texts with holes can agree where the tokens do not
        if theirs.startswith(ours):
            return ("retokenized",)
        for number in range(1, len(_UNDO) + 1):
            for changes in combinations(_UNDO, number):
                if self._agree(ours, theirs, changes):
                    return changes
        return ()

    def _agree(self, ours: str, theirs: str, changes: Iterable[str]) -> bool:
        for change in changes:
            ours, theirs = _UNDO[change](ours), _UNDO[change](theirs)
        if "turn_boundary" not in changes:
            return bool(ours) and theirs.startswith(ours)
        ours, theirs = self._ends.stripped(ours), self._ends.stripped_start(theirs)
        # Where the texts go on with more words, it is not the end of the answer that differs.
        return theirs.startswith(ours) and (not ours or self._ends.end_answer(theirs[len(ours) :]))

    def _other_history(
        self, step: Step, matched: int, answers: list[tuple[int, int]], answer: tuple[int, int] | None
    ) -> str:
        """What else a prompt can be that leaves a row: another conversation's, or one that lost some of its history."""
        if any(common_prefix(ids, step.prompt_ids) > max(matched, start) for ids, start in step.other_rows):
            return "sub_agent"
        if not self._task or self._text.unknown(step.prompt_ids.tolist()):
            return "unknown"
        text = self._text.text(step.prompt_ids.tolist())
        prompt = _words(text)
        asked = [words in prompt for words in self._task + self._system]
        if self._system and not any(asked):
            return "sub_agent"
        if not all(asked) or len(step.prompt_ids) >= len(step.held_ids):
            return "unknown"
        others = [self._text.text(step.held_ids[slice(*other)].tolist()) for other in answers if other != answer]
        essence = _essence(text)
        is_gone = any(_essence(self._ends.stripped(other)) not in essence for other in others)
        return "compaction" if answer is None or is_gone else "unknown"


def _essence(text: str) -> str:
    """What is left of a text, however a template writes it."""
    return _words(without_thinking(with_plain_calls(text)))


def _answers(parts: Iterable[Part]) -> Iterator[tuple[int, int]]:
    """Where the generations in a row begin and end."""
    start = 0
    for part in parts:
        if part.mask is not None:
            yield start, start + len(part.ids)
        start += len(part.ids)


def _words(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """How much of a collection's drift one cause explains."""

    cause: str
    """A key of `DRIFT_CAUSES`."""
    rollouts: int
    realigns: int
    forks: int
    drift_tokens: int
    """Held tokens that were not repeated."""


def drift_causes(inspections: Iterable[Inspection]) -> list[CauseTotal]:
    """The causes of all drift of these rollouts, those of most transitions first.

    A transition that several causes explain together counts for each. Rollouts that were inspected without a tokenizer
    have no causes.
    """
    totals: dict[str, list[int]] = {}
    for inspection in inspections:
        seen: set[str] = set()
        for turn in inspection.turns:
            for cause in turn.divergence.causes if turn.divergence else ():
                is_fork = turn.facts.transition == "fork"
                added = (cause not in seen, not is_fork, is_fork, turn.facts.drift_tokens)
                totals[cause] = [one + other for one, other in zip(totals.get(cause, [0] * 4), added, strict=True)]
                seen.add(cause)
    found = [CauseTotal(cause, *numbers) for cause, numbers in totals.items()]
    return sorted(found, key=lambda total: (-total.realigns - total.forks, total.cause))
