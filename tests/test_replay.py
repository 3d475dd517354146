"""Replay: rollouts from their records, and what they come to with other settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import turnloom
from recording import CLEAN, INTERLEAVED, REALIGN, ROW, assert_same, record
from turnloom._records import totals_of
from turnloom.cli._app import app
from turnloom.testing import gym_answer

ANSWERS: dict[str, Any] = {
    "clean": gym_answer(ROW, turns=CLEAN),
    "realign": gym_answer(ROW, turns=REALIGN),
    "interleaved": gym_answer(ROW, turns=INTERLEAVED, reward=0.0),
    "masked": gym_answer(ROW, turns=CLEAN, mask_sample=True),
    "malformed": b"{",
}


@pytest.fixture
async def recorded(tmp_path: Path) -> tuple[Path, list[turnloom.Rollout]]:
    """One record of each kind of answer."""
    folder = tmp_path / "runs"
    return folder, [(await record(answer, folder))[0][0] for answer in ANSWERS.values()]


def turnloom_replay(*arguments: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)], terminal_width=120)
    return done.exit_code, done.stdout, done.stderr


async def test_the_settings_of_then_give_the_rows_of_then(recorded: Any) -> None:
    folder, live = recorded
    for again, then in zip(turnloom.replay(folder), live, strict=True):
        assert_same(again, then)
    assert [each.outcome for each in live] == ["ok", "ok", "ok", "masked", "malformed"]


@pytest.mark.parametrize("settings", [{"fork_threshold_tokens": 0}, {"branches": "best"}, {"honor_mask_sample": False}])
async def test_other_settings_give_what_a_client_with_them_gets(
    settings: dict[str, Any], recorded: Any, tmp_path: Path
) -> None:
    folder, live = recorded
    theirs = [(await record(answer, tmp_path / "other", **settings))[0][0] for answer in ANSWERS.values()]
    ours = list(turnloom.replay(turnloom.Records(folder), **settings))
    assert [each.outcome for each in ours] == [each.outcome for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert [row.input_ids.tolist() for row in one.rows] == [row.input_ids.tolist() for row in other.rows]
        assert [row.completion_mask.tolist() for row in one.rows] == [
            row.completion_mask.tolist() for row in other.rows
        ]
        assert one.turns == other.turns
    assert totals_of(ours) == totals_of(theirs) != totals_of(live)


def test_a_setting_out_of_its_range_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(turnloom.ConfigError, match="branches"):
        turnloom.replay(tmp_path, branches="tree")  # type: ignore[arg-type]
    with pytest.raises(turnloom.ConfigError, match="no records"):
        turnloom.replay(tmp_path / "nowhere")


async def test_an_answer_that_is_damaged_is_skipped_and_told(recorded: Any) -> None:
    folder, live = recorded
    path = turnloom.Records(folder).files()[0]
    content = path.read_bytes()
    path.write_bytes(content[:-6] + bytes([content[-6] ^ 0xFF]) + content[-5:])
    records = turnloom.Records(folder)
    assert [each.id for each in turnloom.replay(records)] == [each.id for each in live[1:]]
    assert len(records.problems) == 1
    code, _, said = turnloom_replay(folder)
    assert (code, said.count("skipped: ")) == (1, 1)


async def test_the_command_tabulates_what_another_setting_would_do(recorded: Any) -> None:
    folder, _ = recorded
    code, out, _ = turnloom_replay(folder, "--fork-threshold-tokens", 0, "--branches", "best", "--json")
    figures = json.loads(out)
    assert code == 0
    assert figures == {
        "as recorded": {
            "rollouts": 5,
            "ok": 3,
            "rows": 6,
            "trained_tokens": 3 + 2 + 4,
            "discarded_tokens": 1,
            "realigns": 1,
            "forks": 3,
            "longest_row": 6,
            "packed_tokens": 6 + 5 + 12,
            "padded_tokens": 36,
        },
        "fork_threshold_tokens=0, branches=best": {
            "rollouts": 5,
            "ok": 3,
            "rows": 5,
            "trained_tokens": 3 + 3 + 4,
            "discarded_tokens": 0,
            "realigns": 0,
            "forks": 2,
            "longest_row": 6,
            "packed_tokens": 6 + 9 + 8,
            "padded_tokens": 30,
        },
    }
    code, out, _ = turnloom_replay(folder, "--fork-threshold-tokens", 0)
    assert code == 0
    assert "as recorded" in out
    assert "fork_threshold_tokens=0" in out
    assert ["trained", "tokens", "9", "10"] in [line.split() for line in out.splitlines()]


async def test_the_command_tells_where_the_rows_are_no_longer_those_of_then(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = recorded
    assert turnloom_replay(folder)[0] == 0
    monkeypatch.setattr(turnloom.Record, "settings", {"fork_threshold_tokens": 0})
    code, _, said = turnloom_replay(folder)
    assert code == 1
    assert "not the rows of then: 6 rows of 23 tokens, 9 of them trained" in said


def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        code, _, said = turnloom_replay(path)
        assert (code, said.startswith("turnloom replay: there are no records")) == (2, True)
    assert "Example: turnloom replay runs/" in turnloom_replay("--help")[1]


async def test_real_answers_replay_as_they_were(bodies_folder: Path, tmp_path: Path) -> None:
    names = sorted((bodies_folder / "real").glob("*.response.json"))
    live = [(await record(name.read_bytes(), tmp_path, fork_threshold_tokens=8))[0][0] for name in names]
    for again, then in zip(turnloom.replay(tmp_path), live, strict=True):
        assert_same(again, then)
