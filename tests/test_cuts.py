"""However the bytes are cut, the same rollout comes out, and what is wrong is known at the byte that makes it so."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make_corpus
import turnloom
from grammar import Grammar
from rollouts import ROOMY, Raw, answer, everything, feed, not_json_at, rows_of, turn, write
from strategies import bodies, damaged
from turnloom import _native
from turnloom._parse import Branches

SMALL_BODIES = sorted((Path(__file__).parent / "data").glob("*.json"), key=lambda path: path.stat().st_size)

ODD = answer(
    turn([1, 22, "token_id:333"], ["4", 5], [-0.5, None], text="é\ud83d\ude00\ud800", routed_experts=[[1, 2], [3]]),
    turn([1, 22, 333, 4, 5, 66], [7], [Raw("-1.25e-05")]),
    turn([1, 22, 333, 4, 5, 66, 8], [9], more={"a": ["\\", {}]}),
    turn([1, Raw("-0")], [2]),
    turn([1, 22, 333], [4]),
    solved=True,
)


def pieces(body: bytes, size: int) -> list[int]:
    return list(range(size, len(body), size))


def core_tells(body: bytes, cuts: list[int], *, best_branch: bool = False) -> Any:
    """All that the core hands over, with details of defects, the residual and its places."""
    parser = _native.Parser(fork_threshold_tokens=2, best_branch=best_branch)
    start = 0
    for end in (*cuts, len(body)):
        parser.feed(body[start:end])
        start = end
    residual, members, response, rows, turns, defects, drift, lost = parser.finish()
    lost_ids = [(number, ids.tolist()) for number, ids in lost]
    return residual, members, response, rows_of(rows), turns, defects, drift, lost_ids


def failure(body: bytes, cuts: list[int]) -> tuple[int, int, int, str] | None:
    try:
        feed(body, cuts)
    except turnloom.MalformedBody as error:
        return error.offset, error.line, error.column, error.path
    return None


@pytest.mark.parametrize("path", SMALL_BODIES, ids=[path.stem for path in SMALL_BODIES])
def test_each_cut_in_two(path: Path) -> None:
    body = path.read_bytes()
    expected = core_tells(body, [])
    assert expected[3] or path.stem == "no_ids"
    for cut in range(len(body) + 1):
        assert core_tells(body, [cut]) == expected, f"cut at {cut}"


@pytest.mark.parametrize("branches", ["linear", "best"])
@pytest.mark.parametrize("path", SMALL_BODIES, ids=[path.stem for path in SMALL_BODIES])
def test_each_early_end(path: Path, branches: Branches) -> None:
    """A body that stops anywhere is malformed there and says so; one that lacks only its last line end is whole."""
    body = path.read_bytes()
    whole = everything(turnloom.parse_run(body, branches=branches))
    read = Grammar()
    for end in range(len(body)):
        if end < len(body.rstrip()):
            with pytest.raises(turnloom.MalformedBody, match="ends early") as caught:
                feed(body[:end], pieces(body[:end], 100), branches=branches)
            error = caught.value
            place = (end, body.count(b"\n", 0, end) + 1, end - body.rfind(b"\n", 0, end), read.path)
            assert (error.offset, error.line, error.column, error.path) == place
        else:
            assert everything(turnloom.parse_run(body[:end], branches=branches)) == whole
        read.feed(body[end : end + 1])


@pytest.mark.parametrize("body", [ODD, write({"response": {"output": []}, "é\ud800": "\ud83d\ude00"}, ROOMY).encode()])
def test_each_cut_of_odd_bodies_and_every_size(body: bytes) -> None:
    body = b"\xef\xbb\xbf" + body.replace(b"solved", b"sol\xe2\x82ved")
    expected = core_tells(body, [])
    told = everything(turnloom.parse_run(body))
    for cut in range(len(body) + 1):
        assert core_tells(body, [cut]) == expected, f"cut at {cut}"
    for size in (1, 2, 3, 5, 7, 8, 9, 16, 64):
        assert core_tells(body, pieces(body, size)) == expected, f"pieces of {size}"
        assert everything(feed(body, pieces(body, size))) == told


@given(bodies(max_turns=4), st.data())
def test_any_cuts(body: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    assert core_tells(body, cuts) == core_tells(body, [])
    assert core_tells(body, pieces(body, 1)) == core_tells(body, [])
    assert core_tells(body, cuts, best_branch=True) == core_tells(body, [], best_branch=True)
    assert everything(feed(body, cuts)) == everything(turnloom.parse_run(body))


@given(damaged(), st.data())
def test_any_cuts_of_damaged_bodies(body: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    assert failure(body, cuts) == failure(body, []) == failure(body, pieces(body, 1))


@pytest.mark.parametrize("name", ["mid", "forked", "indented"])
def test_cuts_of_long_bodies(name: str) -> None:
    body = make_corpus.body(name)
    expected = core_tells(body, [])
    at_random = sorted(random.Random(name).sample(range(len(body)), 3_000))
    for cuts in (pieces(body, 65_536), pieces(body, 4_093), at_random):
        assert core_tells(body, cuts) == expected


@pytest.mark.parametrize("size", [1, 3])
def test_feed_raises_at_the_very_byte(size: int) -> None:
    """What is wrong is said by the piece with the byte that makes it so: the work is done while bytes arrive."""
    prompt = "1,22,333"
    whole = f'{{"reward":1,"response":{{"output":[{{"prompt_token_ids":[{prompt}],"generation_token_ids":[4],'
    whole += f'"generation_log_probs":[-1.5e-05],"type":"x"}},{{"prompt_token_ids":[{prompt},4'
    for end in range(1, len(whole)):
        body = whole[:end].encode() + b"\x01"
        offset = not_json_at(body)
        assert offset == end
        parser = turnloom.RunParser()
        for start in range(0, offset - offset % size, size):
            parser.feed(body[start : start + size])
        with pytest.raises(turnloom.MalformedBody) as caught:
            parser.feed(body[offset - offset % size :])
        assert caught.value.offset == offset


def test_empty_pieces_change_nothing() -> None:
    assert core_tells(ODD, [0, 0, 50, 50, 50, len(ODD)]) == core_tells(ODD, [])


def test_pieces_may_be_any_bytes() -> None:
    parser = turnloom.RunParser()
    reused = bytearray(10)
    for start in range(0, len(ODD), 10):
        piece = ODD[start : start + 10]
        reused[: len(piece)] = piece
        parser.feed(memoryview(reused)[: len(piece)])
    assert everything(parser.finish()) == everything(turnloom.parse_run(ODD))


def test_parsers_do_not_share_anything() -> None:
    parsers = [turnloom.RunParser() for _ in range(5)]
    for start in range(0, len(ODD), 7):
        for parser in parsers:
            parser.feed(ODD[start : start + 7])
    told = [everything(parser.finish()) for parser in parsers]
    assert told == [everything(turnloom.parse_run(ODD))] * 5
