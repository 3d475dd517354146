"""What is a turn and what is a defect, and which logprobs are used: each rule by an item that needs it."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import turnloom
from rollouts import Raw, answer, assert_as_reference, feed, rows_of, turn

TURN = turn([1, 2], [3, 4])


def parse(*items: Any) -> turnloom.Rollout:
    return turnloom.parse_run(answer(*items))


def codes(rollout: turnloom.Rollout) -> list[tuple[int, str | None, str]]:
    return [(defect.item_index, defect.field, defect.code) for defect in rollout.defects]


@pytest.mark.parametrize("generation", [None, [], "absent"])
def test_an_item_without_generation_is_no_turn(generation: Any) -> None:
    nothing = {"prompt_token_ids": [], "generation_token_ids": generation, "generation_log_probs": []}
    if generation == "absent":
        del nothing["generation_token_ids"]
    for prompt in ([], None, "x", 7, {}):
        rollout = parse(TURN, nothing | {"prompt_token_ids": prompt}, turn([1, 2, 3, 4], [5]))
        assert rollout.defects == ()
        assert [one.item_index for one in rollout.turns] == [0, 2]
        assert rollout.drift.clean == 1
    rollout = parse(TURN, nothing | {"prompt_token_ids": [1, 2, 3]})
    assert codes(rollout) == [(1, "generation_token_ids", "missing")]
    assert rollout.outcome == "ok"


PROMPT, GENERATION, LOGPROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({PROMPT: None}, PROMPT, "missing"),
        ({PROMPT: []}, PROMPT, "empty"),
        ({PROMPT: "1"}, PROMPT, "not_a_list"),
        ({PROMPT: {"a": [1]}}, PROMPT, "not_a_list"),
        ({PROMPT: [1, None]}, PROMPT, "not_an_id"),
        ({GENERATION: 7}, GENERATION, "not_a_list"),
        ({GENERATION: {}}, GENERATION, "not_a_list"),
        ({GENERATION: ""}, GENERATION, "not_a_list"),
        ({GENERATION: False}, GENERATION, "not_a_list"),
        ({GENERATION: [3, [4]]}, GENERATION, "not_an_id"),
        ({LOGPROBS: None}, LOGPROBS, "missing"),
        ({LOGPROBS: []}, LOGPROBS, "length_mismatch"),
        ({LOGPROBS: [-1]}, LOGPROBS, "length_mismatch"),
        ({LOGPROBS: [-1, -1, -1]}, LOGPROBS, "length_mismatch"),
        ({LOGPROBS: -1}, LOGPROBS, "not_a_list"),
        ({LOGPROBS: [-1, [-1]]}, LOGPROBS, "not_a_logprob"),
        ({LOGPROBS: [{"token": "a"}, -1]}, LOGPROBS, "not_a_logprob"),
        # One defect per item, of the first field that has one.
        ({PROMPT: [], GENERATION: [-1], LOGPROBS: None}, PROMPT, "empty"),
        ({GENERATION: [-1], LOGPROBS: None}, GENERATION, "not_an_id"),
        ({LOGPROBS: [[]]}, LOGPROBS, "not_a_logprob"),
    ],
)
def test_a_defective_item_is_left_out_whole(change: dict[str, Any], field: str, code: str) -> None:
    defective = turn([1, 2, 3, 4, 9], [3, 4], [-1, -1]) | change
    for item in (defective, dict(reversed(defective.items()))):
        rollout = parse(TURN, "no object", item, turn([1, 2, 3, 4, 5], [6]))
        assert codes(rollout) == [(2, field, code)]
        assert code in turnloom.DEFECT_CODES
        assert rollout.defects[0].detail
        assert [row.input_ids.tolist() for row in rollout.rows] == [[1, 2, 3, 4, 5, 6]]
        assert rollout.drift == turnloom.Drift(clean=1, transitions=1)
    assert_as_reference(answer(TURN, defective, turn([1, 2, 3, 4, 5], [6])))


@pytest.mark.parametrize("field", [PROMPT, GENERATION, LOGPROBS])
def test_a_missing_field(field: str) -> None:
    item = {name: value for name, value in turn([1, 2, 3, 4], [5]).items() if name != field}
    assert codes(parse(TURN, item)) == [(1, field, "missing")]


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (0, 0),
        (2**31 - 1, 2**31 - 1),
        ("0", 0),
        ("101", 101),
        ("token_id:101", 101),
        ("007", 7),
        ("0" * 5_000 + "12", 12),
        (str(2**31 - 1), 2**31 - 1),
        (Raw('"\\u0031\\u0032"'), 12),
        (Raw('"token_id\\u003a5"'), 5),
    ],
)
def test_ids(sent: Any, value: int) -> None:
    rollout = parse(turn([sent, 9], [9, sent]), turn([value, 9, 9, sent, 1], [2]))
    assert [row.input_ids.tolist() for row in rollout.rows] == [[value, 9, 9, value, 1, 2]]
    assert rollout.defects == ()


@pytest.mark.parametrize(
    "sent",
    [
        *(-1, 2**31, 2**32, 2**63, 2**64, 2**64 + 5, 10**30, True, False, None, [], [1], {}, {"a": 1}),
        *(Raw(text) for text in ("-0", "1.0", "1e2", "0.0", "1E0", "NaN", "Infinity", "-Infinity", "9" * 4096)),
        *(
            "",
            " 1",
            "1 ",
            "+1",
            "-1",
            "-0",
            "1.0",
            "0x1",
            "1_0",
            "token_id:",
            "token_id:-1",
            "token_id: 1",
            "TOKEN_ID:1",
        ),
        *("token_id:token_id:1", "1\n", "\0001", "١٢", "１２", "²", str(2**31), "9" * 5_000, "4294967297"),
    ],
)
def test_what_is_no_id(sent: Any) -> None:
    for place in (0, 1, 2):
        prompt, generation = [1, 2, 3, 4, 5], [6, 7, 8]
        prompt[place * 2] = sent
        assert codes(parse(TURN, turn(prompt, generation))) == [(1, PROMPT, "not_an_id")]
        prompt[place * 2] = 1
        generation[place] = sent
        assert codes(parse(TURN, turn(prompt, generation))) == [(1, GENERATION, "not_an_id")]


def test_equal_ids_match_however_they_are_written() -> None:
    first = turn([1, "2", "token_id:33"], ["4", 55])
    rollout = parse(first, turn(["01", 2, 33, Raw(" 4 "), "token_id:55", "6"], [7]))
    assert rollout.turns[1].transition == "clean"
    assert rollout.turns[1].matched_tokens == 5
    assert rollout.rows[0].input_ids.tolist() == [1, 2, 33, 4, 55, 6, 7]


@pytest.mark.parametrize(
    "again",
    [
        turn([1, 2], [3, 4]),
        turn(["1", "2"], ["token_id:3", "04"], [Raw("-0.50"), Raw("-2.5e-1")]),
        turn([1, 2], [3, 4], [Raw("-0.5"), Raw("-0.25000000000000001")], type="reasoning"),
    ],
)
def test_a_call_told_twice_is_one_turn(again: dict[str, Any]) -> None:
    defective = turn([1], [-1])
    for between in ([], [defective], [{"type": "message"}, 7], [again]):
        rollout = parse(TURN, *between, again, turn([1, 2, 3, 4, 5], [6]))
        assert (len(between) + 1, None, "duplicate_turn") in codes(rollout)
        assert [one.item_index for one in rollout.turns] == [0, len(between) + 2]
        assert rollout.drift.transitions == rollout.drift.clean == 1
        assert rollout.rows[0].input_ids.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "other",
    [
        turn([1, 2], [3, 4], [-0.5, -0.5]),
        turn([1, 2], [3, 4], [-0.5, None]),
        turn([1, 2], [3], [-0.5]),
        turn([1], [2, 3, 4], [-0.5, -0.5, -0.25]),
        turn([1, 2, 3], [4], [-0.25]),
        turn([1, 2], [3, 4, 5]),
    ],
)
def test_a_call_that_differs_is_another_turn(other: dict[str, Any]) -> None:
    rollout = parse(TURN, other)
    assert rollout.defects == ()
    assert len(rollout.turns) == 2
    assert_as_reference(answer(TURN, other))


def test_duplicates_are_compared_as_stored() -> None:
    zero = turn([1], [2, 3], [0.0, None])
    assert codes(parse(zero, turn([1], [2, 3], [Raw("0e-5"), Raw("NaN")]))) == [(1, None, "duplicate_turn")]
    assert codes(parse(zero, turn([1], [2, 3], [Raw("-0.0"), None]))) == []
    assert codes(parse(zero, turn([1], [2, 3], [0.0, 0.0]))) == []
    assert codes(parse(TURN, turn([9], [8]), TURN)) == []


# Logprobs


@pytest.mark.parametrize(
    "sent",
    [
        *(None, True, False, "-0.5", "", -9999, -10_000, Raw("-9999.0"), Raw("-9999.0000000001"), Raw("-1e300")),
        *(
            Raw("NaN"),
            Raw("Infinity"),
            Raw("-Infinity"),
            Raw("1e39"),
            Raw("-1e999"),
            Raw("3.4028235677973366e+38"),
            10**400,
        ),
        Raw("-9998.99999999999999999"),  # as a double it is -9999
    ],
)
def test_a_logprob_that_cannot_be_used(sent: Any) -> None:
    for place in (0, 1, 2):
        logprobs = [-0.5, -0.5, -0.5]
        logprobs[place] = sent
        rollout = parse(turn([9], [1, 2, 3], logprobs))
        mask = [0, 1, 1, 1]
        mask[place + 1] = 0
        assert rollout.defects == ()
        assert rollout.rows[0].completion_mask.tolist() == mask
        assert rollout.rows[0].old_log_probs.tolist() == [-0.5 * kept for kept in mask]
        assert not np.signbit(rollout.rows[0].old_log_probs[place + 1])
        assert rollout.drift.unusable_tokens == 1


@pytest.mark.parametrize("sent", ["0.0", "-0.0", "0", "-1", "-9998.9999", "1e-400", "-1e-46", "3.4028235677973362e+38"])
def test_a_logprob_that_is_used_as_sent(sent: str) -> None:
    rollout = parse(turn([9], [1], [Raw(sent)]))
    assert rollout.rows[0].completion_mask.tolist() == [0, 1]
    assert rollout.rows[0].old_log_probs[1:].tobytes() == np.float32(float(sent)).tobytes()
    assert rollout.drift.unusable_tokens == 0


def test_positive_logprobs_are_counted() -> None:
    rollout = parse(turn([9], [1, 2, 3, 4], [0.25, 0, -1, 1e-3]))
    assert rollout.drift.positive_logprobs == 2
    assert rollout.rows[0].completion_mask.tolist() == [0, 1, 1, 1, 1]


_DIGITS = st.text("0123456789", min_size=1, max_size=40)
_DECIMALS = st.builds(
    "{}{}.{}{}".format,
    st.sampled_from(["", "-"]),
    st.one_of(st.just("0"), _DIGITS.map(lambda digits: digits.lstrip("0") or "0")),
    _DIGITS,
    st.one_of(st.just(""), st.integers(-400, 60).map("e{}".format), st.integers(0, 60).map("E+{}".format)),
)
_HALFWAY = st.integers(0, 0x7F7FFFFE).map(lambda bits: _between(bits, bits + 1))


def _between(bits: int, next_bits: int) -> str:
    """The decimal exactly between two neighbouring floats of single precision: the hardest to round."""
    low, high = np.array([bits, next_bits], np.uint32).view(np.float32).astype(float)
    return f"-{(low + high) / 2:.1200f}".rstrip("0") + "0"


@given(st.lists(st.one_of(_DECIMALS, st.floats(width=32).map(repr), st.floats().map(repr), _HALFWAY), min_size=1))
@example(["-1.000000059604644775390625", "-1.000000059604644775390625000000000000000000001"])  # rounded twice, as numpy
@example(["-1.00000005960464477539062499999999999999999999", "-1.1754943157898259e-38", "-7.006492321624085e-46"])
@example(["5e-324", "-2.4703282292062327e-324", "-1.7976931348623157e308", "-0.1", "-8388609.5", "-16777217", "-0e5"])
def test_logprobs_are_bit_identical_to_numpy(texts: list[str]) -> None:
    texts = [text.replace("inf", "Infinity").replace("nan", "NaN") for text in texts]
    rollout = parse(turn([9], list(range(len(texts))), [Raw(text) for text in texts]), turn([7], [7]))
    with np.errstate(over="ignore"):
        values = np.array([float(text) for text in texts])
        singles = np.array([np.float32(value) for value in values])
    usable = np.isfinite(singles) & (values > -9999)
    if usable.any():
        assert rollout.rows[0].completion_mask[1:].tolist() == usable.astype(int).tolist()
        assert rollout.rows[0].old_log_probs[1:].tobytes() == np.where(usable, singles, np.float32(0)).tobytes()
    assert rollout.drift.unusable_tokens == len(texts) - int(usable.sum())


@pytest.mark.parametrize("seed", range(4))
def test_odd_elements_in_long_lists(seed: int) -> None:
    """Here and there an element out of the ordinary, between thousands that are plain."""
    choose = random.Random(seed)

    def sprinkled(plain: list[Any], odd: list[Any]) -> list[Any]:
        for place in choose.sample(range(len(plain)), choose.randrange(1, 40)):
            plain[place] = choose.choice(odd)
        return plain

    odd_ids = ["7", "token_id:12", "000123", Raw(" 5"), Raw("6\n"), 2**31 - 1, 0]
    odd_logprobs = [
        None,
        Raw("NaN"),
        True,
        "x",
        Raw("-1e-7"),
        Raw("-0.0"),
        Raw(" -2 "),
        -12,
        Raw("-0." + "1" * 60),
        -9999,
    ]
    prompt = sprinkled(list(range(3_000)), odd_ids)
    generation = sprinkled(list(range(5_000, 10_000)), odd_ids)
    logprobs = sprinkled([-choose.random() for _ in generation], odd_logprobs)
    body = answer(turn(prompt, generation, logprobs), turn([*prompt, *generation, "1"], [3]))
    assert_as_reference(body)
    expected = rows_of(turnloom.parse_run(body).rows)
    for size in (1_021, 64, 7):
        assert rows_of(feed(body, range(size, len(body), size)).rows) == expected


# What is counted


@pytest.mark.parametrize(
    ("sent", "size"),
    [
        (Raw("null"), 0),
        (Raw("[]"), 2),
        (Raw("[[[1, 2],[3,4]]]"), 16),
        (Raw("[ 1 ]"), 5),
        (Raw('"é"'), 4),
        (Raw("12"), 2),
        (Raw("{}"), 2),
    ],
)
def test_routed_experts_are_counted_and_left_out(sent: Raw, size: int) -> None:
    for item in (turn([1], [2], routed_experts=sent), {"routed_experts": sent} | turn([1], [2])):
        rollout = parse(item, turn([1, 2], [3]))
        assert [one.routed_experts_bytes for one in rollout.turns] == [size, 0]
        assert "routed_experts" not in rollout.output[0]


def test_turns_say_how_they_were_joined() -> None:
    rollout = parse(
        turn([1, 2], [3, 4]),
        {"type": "message"},
        turn([1, 2, 3, 9], [5, 6], routed_experts=[1]),
        turn([1, 2], [7], [None]),
        turn([8], [9]),
    )
    assert rollout.turns == (
        turnloom.Turn(0, 2, 2, None, 0, 0, 0, 2, 3, 0),
        turnloom.Turn(2, 4, 2, "realign", 3, 1, 0, 4, 6, 3),
        turnloom.Turn(3, 2, 1, "fork", 2, 4, None, 2, 3, 0),
        turnloom.Turn(4, 1, 1, "fork", 0, 3, 1, 1, 2, 0),
    )
    assert rollout.drift == turnloom.Drift(
        realign=1, fork=2, transitions=3, drift_tokens=8, drift_max=4, discarded_tokens=1, unusable_tokens=1
    )
