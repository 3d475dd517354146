"""Why prompts leave what was held: each cause from a conversation that has it, and no cause where none is known."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken

from rollouts import answer, turn
from small_tokenizers import byte_level
from turnloom.inspector import DRIFT_CAUSES, CauseTotal, drift_causes, inspect_run

TOKENIZER = byte_level()
TOKENIZER.add_tokens(
    [AddedToken(token, special=False) for token in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
)

SYSTEM, TASK = "You are of use.", "How warm is the sea?"
INPUT = {"input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]}


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def says(role: str, text: str) -> list[int]:
    return ids(f"<|im_start|>{role}\n{text}<|im_end|>\n")


ASKED = says("system", SYSTEM) + says("user", TASK)
HEAD = ids("<|im_start|>assistant\n")


def told(*turns: tuple[list[int], list[int]], request: object = INPUT) -> bytes:
    """A body of these prompts and generations."""
    return answer(*(turn(*one) for one in turns), responses_create_params=request)


def causes(body: bytes, tokenizer: object = TOKENIZER, **settings: int) -> list[tuple[str, ...]]:
    """The causes of each transition with drift."""
    inspection = inspect_run(body, tokenizer=tokenizer, **settings)
    return [one.divergence.causes for one in inspection.turns if one.divergence]


def history(
    generated: str, as_repeated: str, *, encode: Callable[[str], list[int]] = ids, head: list[int] = HEAD
) -> bytes:
    """Two calls: what the first generates, and what the prompt of the second has of it."""
    repeated = ASKED + HEAD + encode(f"{as_repeated}<|im_end|>\n") + says("tool", "17 degrees") + HEAD
    return told((ASKED + head, ids(f"{generated}<|im_end|>")), (repeated, ids("It is 17 degrees.<|im_end|>")))


CALL = '<tool_call>\n{"name": "sea", "arguments": {"unit": "C", "at": "naïve 東京"}}\n</tool_call>'
THOUGHT = "<think>\nI look it up.\n</think>\n\n"

REWRITTEN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "the thinking is gone": (THOUGHT + "I look.", "I look.", ("thinking_dropped",)),
    "the thinking is empty": (THOUGHT + "I look.", "<think>\n\n</think>\n\nI look.", ("thinking_dropped",)),
    "white space in a call": (CALL, CALL.replace(": ", ":"), ("call_rewritten",)),
    "the keys of a call in another order": (
        CALL,
        '<tool_call>\n{"arguments": {"at": "naïve 東京", "unit": "C"}, "name": "sea"}\n</tool_call>',
        ("call_rewritten",),
    ),
    "escapes in a call": (CALL, CALL.replace("東京", "\\u6771\\u4eac"), ("call_rewritten",)),
    "arguments as a string": (
        CALL,
        CALL.replace('{"unit": "C", "at": "naïve 東京"}', json.dumps('{"unit": "C", "at": "naïve 東京"}')),
        ("call_rewritten",),
    ),
    "a call in tags": (
        "<tool_call>\n<function=sea>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=sea><parameter=unit>C</parameter></function></tool_call>",
        ("call_rewritten",),
    ),
    "white space at the end": ("I look. \n", "I look.", ("turn_boundary",)),
    "white space at the beginning": ("\n\nI look.", "I look.", ("turn_boundary",)),
    "another end": ("I look.<|im_end|>", "I look.", ("turn_boundary",)),
    "two changes": (
        THOUGHT + CALL,
        CALL.replace(": ", ":"),
        ("call_rewritten", "thinking_dropped"),
    ),
    "three changes": (
        THOUGHT + CALL + "\n \n",
        CALL.replace(": ", ":"),
        ("turn_boundary", "call_rewritten", "thinking_dropped"),
    ),
    "other words": ("I look it up.", "I looked it up.", ("unknown",)),
    "another call": (CALL, CALL.replace('"C"', '"F"'), ("unknown",)),
    "a call that is gone": ("Well. " + CALL, "Well.", ("unknown",)),
    "more words at the end": ("I look. ", "I look. And see.", ("unknown",)),
    "white space within": ("I look it up.", "I  look it up.", ("unknown",)),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_a_template_does_to_an_answer(name: str) -> None:
    generated, repeated, expected = REWRITTEN[name]
    assert causes(history(generated, repeated)) == [expected]
    assert causes(history(generated, repeated), fork_threshold_tokens=0) == [expected]


def test_thinking_that_the_prompt_began() -> None:
    body = history("I look it up.\n</think>\n\nI look.", "I look.", head=HEAD + ids("<think>\n"))
    assert causes(body) == [("thinking_dropped",)]


def test_thinking_of_an_earlier_answer() -> None:
    """As Qwen3's template has it: the next question drops the thinking of all answers before."""
    first, second = ids(THOUGHT + "I look.<|im_end|>"), ids(THOUGHT + "It is 17 degrees.<|im_end|>")
    held = ASKED + HEAD + first + ids("\n") + says("tool", "17 degrees") + HEAD
    plain = says("assistant", "I look.") + says("tool", "17 degrees") + says("assistant", "It is 17 degrees.")
    asked_on = ASKED + plain + says("user", "And now?") + HEAD
    assert causes(told((ASKED + HEAD, first), (held, second), (asked_on, ids("18")))) == [("thinking_dropped",)]


def test_the_same_text_in_other_tokens() -> None:
    def by_character(text: str) -> list[int]:
        return [one for char in text.removesuffix("<|im_end|>\n") for one in ids(char)] + ids("<|im_end|>\n")

    body = history("the cat sat on the mat", "the cat sat on the mat", encode=by_character)
    assert causes(body) == [("retokenized",)]


def test_a_prompt_that_is_sent_again() -> None:
    first = ids("I look.<|im_end|>")
    held = ASKED + HEAD + first + ids("\n") + says("tool", "17 degrees") + HEAD
    retried = told((ASKED + HEAD, first), (ASKED + HEAD, ids("I see.<|im_end|>")))
    assert causes(retried) == [("asked_again",)]
    went_back = told((ASKED + HEAD, first), (held, ids("It is 17.")), (ASKED + HEAD, ids("I see.<|im_end|>")))
    assert causes(went_back) == [("asked_again",)]


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def long_history() -> tuple[list[int], list[int], list[list[int]]]:
    """The last prompt and generation of three calls, and their rounds: an answer and what the tool said."""
    rounds = [
        says("assistant", f"I look at place {n}.") + says("tool", f"Place {n} is {n} degrees. " * 20) for n in range(3)
    ]
    return ASKED + joined(rounds) + HEAD, ids("It is warm.<|im_end|>"), rounds


def calls(rounds: Sequence[list[int]]) -> list[tuple[list[int], list[int]]]:
    """The calls that led to these rounds."""
    found = []
    held = ASKED
    for one in rounds:
        end = one.index(ids("<|im_end|>")[0]) + 1
        found.append((held + HEAD, one[len(HEAD) : end]))
        held = held + one
    return found


@pytest.mark.parametrize("kept", ["a summary", "the last round", "no tool output"])
def test_compaction(kept: str) -> None:
    last_prompt, last, rounds = long_history()
    compacted = (
        ASKED
        + {
            "a summary": says("user", "So far: places 0 to 2 are cold."),
            "the last round": rounds[-1],
            "no tool output": joined(says("assistant", f"I look at place {n}.") + says("tool", "…") for n in range(3)),
        }[kept]
    )
    body = told(*calls(rounds), (last_prompt, last), (compacted + HEAD, ids("On I go.<|im_end|>")))
    assert causes(body) == [("compaction",)]


def test_sub_agents_that_take_turns() -> None:
    other = says("system", SYSTEM) + says("user", "A part of the task.")
    main_1, other_1 = (ASKED + HEAD, ids("I ask.<|im_end|>")), (other + HEAD, ids("Yes.<|im_end|>"))
    main_2 = (main_1[0] + main_1[1] + ids("\n") + says("tool", "yes") + HEAD, ids("Good.<|im_end|>"))
    other_2 = (other_1[0] + other_1[1] + ids("\n") + says("user", "And?") + HEAD, ids("No.<|im_end|>"))
    # Nothing tells what the first change is: a task that is gone, under the same system message.
    assert causes(told(main_1, other_1, main_2, other_2)) == [("unknown",), ("sub_agent",), ("sub_agent",)]


def test_a_call_with_instructions_of_its_own() -> None:
    title = says("system", "You name conversations.") + says("user", "Name this one.") + HEAD
    body = told((ASKED + HEAD, ids("I look.<|im_end|>")), (title, ids("The sea<|im_end|>")))
    assert causes(body) == [("sub_agent",)]
    for request in ({}, {"input": TASK}):  # a summary, too, can be without the words of the task
        body = told((ASKED + HEAD, ids("I look.<|im_end|>")), (title, ids("The sea<|im_end|>")), request=request)
        assert causes(body) == [("unknown",)]


def test_a_tokenizer_of_another_model_explains_nothing() -> None:
    """It has no text for these ids, and texts without words are equal."""
    word, away = ids("cat"), [one + 100_000 for one in ASKED]
    assert causes(told((ASKED, [*word, 100_001]), ([*ASKED, *word, 100_003], word))) == [("unknown",)]
    assert causes(told((away, [100_001, 100_002]), (away + [100_003] * 3, [100_004]))) == [("unknown",)]
    assert causes(told((away, [100_001, 100_002]), (away[:5] + [100_003] * 3, [100_004]))) == [("unknown",)]


def test_bytes_that_are_no_text_explain_nothing() -> None:
    first, second = (TOKENIZER.token_to_id(letter) for letter in "ĠÃÄ"[1:])
    body = told((ASKED + HEAD, [first]), (ASKED + HEAD + [second, second], ids("I see.")))
    assert causes(body) == [("unknown",)]


# What the stub of a model server does, one id per character


class CodePoints:
    """Ids are code points; from 60,000 on they are those of the same characters once more."""

    all_special_tokens = tuple(map(chr, (1, 2, 3, 4, 5, 6, 7, 8, 14)))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(code - 60_000 if 60_000 <= code < 61_000 else code) for code in ids)


@pytest.mark.parametrize(
    ("name", "cause", "count"),
    [("drift_space", "call_rewritten", 3), ("drift_tail", "turn_boundary", 3), ("drift_once", "call_rewritten", 1)],
)
def test_real_bodies(bodies_folder: Path, name: str, cause: str, count: int) -> None:
    body = (bodies_folder / "real" / f"{name}.response.json").read_bytes()
    for threshold in (0, 1024):
        assert causes(body, CodePoints(), fork_threshold_tokens=threshold) == [(cause,)] * count


@pytest.mark.parametrize(("drift", "cause"), [("swap", "retokenized"), ("think", "thinking_dropped")])
def test_real_bodies_changed_as_the_stub_can(bodies_folder: Path, drift: str, cause: str) -> None:
    """The clean rollout with thinking, its generations or its history changed as the stub's other drifts do."""
    document = json.loads((bodies_folder / "real" / "reasoning_clean.response.json").read_bytes())
    for item in document["response"]["output"]:
        if "generation_token_ids" not in item:
            continue
        if drift == "swap":
            generated = item["generation_token_ids"]
            item["generation_token_ids"] = [60_000 + code if code == ord("{") else code for code in generated]
        else:
            prompt = "".join(map(chr, item["prompt_token_ids"]))
            while "<think>" in prompt:
                begin, end = prompt.index("<think>"), prompt.index("</think>")
                prompt = prompt[:begin] + prompt[end + len("</think>") :]
            item["prompt_token_ids"] = list(map(ord, prompt))
    found = causes(json.dumps(document).encode(), CodePoints(), fork_threshold_tokens=0)
    assert len(found) >= 2
    assert set(found) == {(cause,)}


# Over a collection


def test_totals() -> None:
    tail, unknown = history("I look. \n", "I look."), history("I look.", "I see.")
    inspections = [
        inspect_run(tail, tokenizer=TOKENIZER),
        inspect_run(tail, tokenizer=TOKENIZER, fork_threshold_tokens=0),
        inspect_run(unknown, tokenizer=TOKENIZER),
        inspect_run(told((ASKED + HEAD, ids("I look."))), tokenizer=TOKENIZER),
        inspect_run(tail),
    ]
    first, second = drift_causes(inspections)
    assert (first.cause, first.rollouts, first.realigns, first.forks) == ("turn_boundary", 2, 1, 1)
    assert first.drift_tokens == 2 * inspections[0].drift.drift_tokens
    assert dataclasses.replace(second, drift_tokens=0) == CauseTotal("unknown", 1, 1, 0, 0)


def test_every_cause_has_words() -> None:
    for cause in DRIFT_CAUSES.values():
        assert cause.meaning[0].islower()
        assert cause.advice.endswith(".")
