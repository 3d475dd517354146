"""Bytes into a rollout: JSON as Python's `json` reads it, and errors that say where it is not."""

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import grammar
import reference
import turnloom
from rollouts import ROOMY, SPACED, Raw, answer, assert_as_reference, everything, malformed_at, not_json_at, turn, write
from strategies import BRANCHES, JSON_VALUES, THRESHOLDS, bodies, damaged
from turnloom import _native

BODY = answer(turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6]))


def documents_equal(body: bytes) -> bool:
    return json.dumps(turnloom.parse_run(body).document) == json.dumps(reference.document(body))


# Whatever the body, what the reference says


@given(bodies(), THRESHOLDS, BRANCHES)
def test_answers_in_any_order_and_style(body: bytes, threshold: int, branches: str) -> None:
    assert_as_reference(body, threshold, branches)


@given(damaged())
@example(b"")
@example(b"\xef\xbb")
@example(b"\xef\xbb\xbf")
@example(b'{"response":{"output":[{"prompt_token_ids":[1,2')
def test_damaged_answers(body: bytes) -> None:
    assert_as_reference(body)


@given(JSON_VALUES, st.booleans())
def test_any_document(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert_as_reference(text.encode(errors="surrogatepass"))


@given(JSON_VALUES, JSON_VALUES, JSON_VALUES)
def test_any_values_where_an_answer_has_its_own(item: Any, output: Any, response: Any) -> None:
    fields = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
    for body in (
        answer(turn([1], [2]), dict.fromkeys(fields, item), turn([1, 2], [3])),
        write({"response": {"output": output}, "reward": item}).encode(),
        write({"response": response, "mask_sample": item}).encode(),
    ):
        assert_as_reference(body)
        turnloom.parse_run(body)


# How Python's `json` reads


@pytest.mark.parametrize("style", [SPACED, ROOMY], ids=["spaced", "roomy"])
def test_white_space_does_not_matter(style: Any) -> None:
    roomy = write(json.loads(BODY), style).encode()
    assert roomy != BODY
    assert everything(turnloom.parse_run(roomy)) == everything(turnloom.parse_run(BODY))


def test_fields_come_in_any_order() -> None:
    items = [dict(reversed(turn([1, 2], [3, 4]).items())), turn([1, 2, 3, 4, 5], [6])]
    body = write({"reward": 1.0, "response": {"status": "completed", "output": items}}).encode()
    assert [row.input_ids.tolist() for row in turnloom.parse_run(body).rows] == [[1, 2, 3, 4, 5, 6]]


def test_the_body_may_be_any_bytes_or_a_str() -> None:
    expected = everything(turnloom.parse_run(BODY))
    for body in (bytearray(BODY), memoryview(BODY), memoryview(BODY * 2)[: len(BODY)], BODY.decode()):
        assert everything(turnloom.parse_run(body)) == expected
    every_other = memoryview(bytes(byte for pair in zip(BODY, BODY, strict=True) for byte in pair))[::2]
    assert everything(turnloom.parse_run(every_other)) == expected


def test_a_byte_order_mark_is_skipped() -> None:
    expected = everything(turnloom.parse_run(BODY))
    assert everything(turnloom.parse_run(grammar.BOM + BODY)) == expected
    assert everything(turnloom.parse_run("\ufeff" + BODY.decode())) == expected
    assert malformed_at(grammar.BOM * 2 + BODY) == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_other_encodings_are_no_json(encoding: str) -> None:
    assert malformed_at(BODY.decode().encode(encoding)) is not None


def test_the_last_of_equal_keys_counts() -> None:
    first, last = turn([1], [2]), turn([7], [8])
    repeated = write(first)[:-1] + "," + write(last)[1:]
    rollout = turnloom.parse_run(answer(Raw(repeated)))
    assert [row.input_ids.tolist() for row in rollout.rows] == [[7, 8]]
    nothing = write(first)[:-1] + ',"generation_token_ids":null,"prompt_token_ids":[]}'
    assert turnloom.parse_run(answer(Raw(nothing))).outcome == "no_tokens"
    rollout = turnloom.parse_run(BODY[:-1] + b',"reward":0.25,"reward":0.5}')
    assert rollout.reward == 0.5


@pytest.mark.parametrize(
    ("last", "rows"),
    [
        ('"response":{"output":[%s]}', [[7, 8]]),
        ('"response":{}', []),
        ('"response":null', []),
        ('"response":{"output":[%s],"output":[]}', []),
        ('"response":{"output":[],"output":[%s]}', [[7, 8]]),
        ('"response":{"output":[%s],"output":7}', []),
    ],
)
def test_a_repeated_response_or_output_starts_again(last: str, rows: list[list[int]]) -> None:
    said_before = turn([1], [2]), turn([1, 3], [4]), turn([1], [2, 3])
    body = answer(*said_before)[:-1] + b"," + last.replace("%s", write(turn([7], [8]))).encode() + b"}"
    rollout = turnloom.parse_run(body)
    assert [row.input_ids.tolist() for row in rollout.rows] == rows
    assert rollout.drift == turnloom.Drift()
    assert rollout.defects == ()
    assert len(rollout.turns) == len(rows)
    assert_as_reference(body)


def test_keys_may_be_escaped() -> None:
    body = BODY.replace(b'"prompt_token_ids"', b'"prompt\\u005ftoken_ids"').replace(b'"output"', b'"\\u006futput"')
    assert everything(turnloom.parse_run(body)) == everything(turnloom.parse_run(BODY))


def test_only_the_items_of_the_output_have_token_fields() -> None:
    fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [0]}
    nested = answer(
        {"type": "x", "inner": fields, "list": [fields]}, response={"other": [fields]}, more=[fields], **fields
    )
    rollout = turnloom.parse_run(nested)
    assert rollout.turns == ()
    assert rollout.document == json.loads(nested)


def test_the_token_fields_are_absent_from_the_document() -> None:
    body = answer(turn([1], [2], routed_experts=[[1]], text="é"), {"prompt_token_ids": None, "routed_experts": "x"}, 7)
    rollout = turnloom.parse_run(body)
    assert rollout.output == [{"type": "message", "text": "é"}, {}, 7]
    assert rollout.document == {"response": {"output": rollout.output}, "reward": 1.0}
    assert turnloom.parse_run(b'"text"').document == "text"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_literals_that_are_no_json_elsewhere(literal: str) -> None:
    body = f'{{"a":[{literal}],"b":{literal}}}'.encode()
    assert documents_equal(body)
    assert documents_equal(literal.encode())


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"caf\xe9!", "caf\ufffd!"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\xaf\xf5", "\ufffd\ufffd\ufffd"),
        (b"\\ud800", "\ufffd"),
        (b"\\udc00", "\ufffd"),
        (b"\\ud800\\ud800\\udc00", "\ufffd\U00010000"),
        (b"\\ud83d\\ude00", "\U0001f600"),
        (b"\\uD83D\\uDE00", "\U0001f600"),
        (b"\\ud83dx\\ude00", "\ufffdx\ufffd"),
        (b"\\ud800\\n", "\ufffd\n"),
        (b"\\ud800\\\\udc00", "\ufffd\\udc00"),
        (b"\\u0000\\/\\b\\u00e9", "\0/\bé"),
    ],
)
def test_text_that_no_encoder_should_send(sent: bytes, text: str) -> None:
    body = BODY[:-1] + b',"' + sent + b'":["' + sent + b'"]}'
    rollout = turnloom.parse_run(body)
    assert rollout.document[text] == [text]
    assert rollout.outcome == "ok"
    inside = BODY.replace(b'"type"', b'"text":"' + sent + b'","type"')
    assert turnloom.parse_run(inside).output[0]["text"] == text


def test_surrogates_in_a_str() -> None:
    assert turnloom.parse_run('{"a":"\ud800x"}').document == {"a": "\ufffdx"}


# Limits


@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_depth(opens: str, closes: str) -> None:
    brackets = len(closes)
    deep = opens * (512 // brackets) + "1" + closes * (512 // brackets)
    assert documents_equal(deep.encode())
    assert malformed_at(f"[{deep}]".encode()) == 1 + deep.rindex(opens[-1] if brackets == 1 and opens == "[" else "{")
    assert malformed_at(("[" * 100_000).encode()) == 512
    assert _native.MAX_DEPTH == 512


def test_depth_counts_inside_token_fields_too() -> None:
    for levels, accepted in ((508, True), (509, False)):
        body = answer(turn([1], [2], routed_experts=Raw("[" * levels + "]" * levels)))
        assert (malformed_at(body) is None) == accepted == (not_json_at(body) is None)


@pytest.mark.parametrize(
    "number", ["1" * 4096, "-" + "1" * 4095, "0." + "1" * 4094, "1e" + "1" * 4094, "1E-" + "0" * 4093]
)
def test_length_of_numbers(number: str) -> None:
    body = f'{{"a":{number}}}'.encode()
    assert documents_equal(body)
    assert malformed_at(body.replace(b"}", b"1}")) == 5 + 4096
    assert _native.MAX_NUMBER_CHARS == 4096
    for field in ("prompt_token_ids", "generation_log_probs", "routed_experts"):
        beside = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [0]}
        assert malformed_at(answer(beside | {field: [Raw(number)]})) is None
        assert malformed_at(answer(beside | {field: [Raw(number + "1")]})) is not None


# Errors


@pytest.mark.parametrize(
    ("body", "offset", "line", "column", "path"),
    [
        (b"", 0, 1, 1, ""),
        (b" \n\n ", 4, 3, 2, ""),
        (b"{", 1, 1, 2, ""),
        (b"<html>", 0, 1, 1, ""),
        (b'{"a" 1}', 5, 1, 6, "a"),
        (b'{"a":tru}', 8, 1, 9, "a"),
        (b'{"a":[1,x]}', 8, 1, 9, "a[1]"),
        (b'{\n"a":\n [1,\r\n  +2]}', 15, 4, 3, "a[1]"),
        (b"01", 1, 1, 2, ""),
        (b"-", 1, 1, 2, ""),
        (b"1.e5", 2, 1, 3, ""),
        (b"[.5]", 1, 1, 2, "[0]"),
        (b'["\\x"]', 3, 1, 4, "[0]"),
        (b'["\\u12G4"]', 6, 1, 7, "[0]"),
        (b'["a\tb"]', 3, 1, 4, "[0]"),
        (b'["a', 3, 1, 4, "[0]"),
        (b"nul", 3, 1, 4, ""),
        (b"Nan", 2, 1, 3, ""),
        (b"-Inx", 3, 1, 4, ""),
        (b"{} x", 3, 1, 4, ""),
        (b"[1][", 3, 1, 4, ""),
        (b"\xef\xbbx", 2, 1, 3, ""),
        (b"\xef\xbb\xbf[x]", 4, 1, 5, "[0]"),
        (b'{"response":{"output":[1,{"prompt_token_ids":[1,2,', 50, 1, 51, "response.output[1].prompt_token_ids[2]"),
        (
            b'{"response":{"output":[{"generation_log_probs":[-1,-]',
            52,
            1,
            53,
            "response.output[0].generation_log_probs[1]",
        ),
    ],
)
def test_where_it_is_no_json(body: bytes, offset: int, line: int, column: int, path: str) -> None:
    with pytest.raises(turnloom.MalformedBody) as caught:
        turnloom.parse_run(body)
    error = caught.value
    assert (error.offset, error.line, error.column, error.path) == (offset, line, column, path)
    assert not_json_at(body) == offset
    assert str(offset) in str(error)
    assert path in str(error)
    assert body[:offset].decode(errors="ignore")[-3:] in error.excerpt


def test_the_place_is_right_in_a_long_body() -> None:
    prompt = list(range(100_000))
    body = answer(turn(prompt, [1]), turn([*prompt, 1, Raw("7x")], [2]))
    with pytest.raises(turnloom.MalformedBody) as caught:
        turnloom.parse_run(body)
    assert caught.value.offset == body.index(b"7x") + 1
    assert caught.value.path == "response.output[1].prompt_token_ids[100001]"
    assert "7x" in caught.value.excerpt
    assert len(str(caught.value)) < 1_000


def test_offsets_into_a_str_count_its_bytes() -> None:
    with pytest.raises(turnloom.MalformedBody) as caught:
        turnloom.parse_run('["é",x]')
    assert caught.value.offset == len('["é",'.encode())


def test_errors_pickle_and_copy() -> None:
    with pytest.raises(turnloom.MalformedBody) as caught:
        turnloom.parse_run(b'{"a":[1,x]}')
    for again in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(again) is turnloom.MalformedBody
        assert str(again) == str(caught.value)
        assert vars(again) == vars(caught.value)
        assert isinstance(again, ValueError)
        assert isinstance(again, turnloom.TurnloomError)


def test_feed_raises_at_once_and_ever_after() -> None:
    parser = turnloom.RunParser()
    parser.feed(b'{"a":[1,')
    with pytest.raises(turnloom.MalformedBody) as first:
        parser.feed(b"x")
    for call in (lambda: parser.feed(b"2]}"), lambda: parser.feed(b""), parser.finish):
        with pytest.raises(turnloom.MalformedBody) as later:
            call()
        assert (str(later.value), vars(later.value)) == (str(first.value), vars(first.value))


def test_a_document_that_has_not_ended_is_said_by_finish() -> None:
    parser = turnloom.RunParser()
    parser.feed(BODY[:-1])
    with pytest.raises(turnloom.MalformedBody) as first:
        parser.finish()
    assert first.value.offset == len(BODY) - 1
    for call in (lambda: parser.feed(b"}"), parser.finish):
        with pytest.raises(turnloom.MalformedBody) as later:
            call()
        assert str(later.value) == str(first.value)


def test_a_parser_gives_one_rollout() -> None:
    parser = turnloom.RunParser()
    parser.feed(BODY)
    assert parser.finish().outcome == "ok"
    with pytest.raises(ValueError, match="finish") as caught:
        parser.finish()
    assert not isinstance(caught.value, turnloom.MalformedBody)
    with pytest.raises(ValueError, match="finish"):
        parser.feed(b" ")


def test_numbers_at_the_end_of_the_body() -> None:
    for body in (b"0", b"-12", b"1.5", b"1e5", b"1e-5 "):
        assert documents_equal(body)
    for body in (b"-", b"1.", b"1e", b"1e+"):
        assert malformed_at(body) == len(body)


@pytest.mark.parametrize("settings", [{"branches": "tree"}, {"branches": None}])
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(turnloom.ConfigError, match="branches"):
        turnloom.RunParser(**settings)
    with pytest.raises(turnloom.ConfigError, match="branches"):
        turnloom.parse_run(BODY, **settings)


def test_any_threshold() -> None:
    for threshold in (-(10**30), 10**30):
        assert turnloom.parse_run(BODY, fork_threshold_tokens=threshold).outcome == "ok"


@pytest.mark.parametrize("size", [1, 7, len(BODY)])
def test_a_body_larger_than_allowed_is_malformed(size: int) -> None:
    def fed(body: bytes, limit: int | None) -> turnloom.Rollout:
        parser = turnloom.RunParser(max_body_bytes=limit)
        for start in range(0, len(body), size):
            parser.feed(body[start : start + size])
        return parser.finish()

    assert everything(fed(BODY, len(BODY))) == everything(fed(BODY, None))
    with pytest.raises(turnloom.MalformedBody, match="max_body_bytes=40 ") as error:
        fed(BODY, 40)
    assert error.value.offset == 40
    broken = BODY[:20] + b"\x00" + BODY[21:]
    with pytest.raises(turnloom.MalformedBody) as error:
        fed(broken, 40)
    assert error.value.offset == 20
    for limit in (0, -1):
        with pytest.raises(turnloom.ConfigError, match="max_body_bytes"):
            turnloom.parse_run(BODY, max_body_bytes=limit)
