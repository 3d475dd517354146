"""The benchmark that a user runs: what is timed gave equal rows, and of what is not it says why."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import turnloom
from rollouts import answer, turn
from turnloom.bench import _decoders, made_body, measure
from turnloom.bench._decoders import json_turns
from turnloom.bench._table import cells
from turnloom.cli import _bench
from turnloom.cli._app import app

DATA = Path(__file__).parent / "data"
DECODERS = ("json", "orjson", "msgspec", "simdjson")
OURS = ("turnloom", "in_chunks", "memcmp")


def measured(body: bytes, **settings: Any) -> turnloom.bench.Measurement:
    return measure(body, seconds=0, **settings)


def test_a_sound_body_is_timed_on_every_way() -> None:
    body = (DATA / "forked.json").read_bytes()
    rollout = turnloom.parse_run(body)
    shares: list[float] = []
    it = measured(body, name="mine", on_progress=shares.append)
    assert (it.body, it.bytes, it.turns, it.rows) == ("mine", len(body), len(rollout.turns), 3)
    assert it.tokens == sum(len(row.input_ids) for row in rollout.rows)
    assert it.seconds.keys() == {*DECODERS, *OURS}
    assert all(seconds > 0 for seconds in it.seconds.values())
    assert not it.not_timed
    assert shares == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert it.rounds == 5


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("defects", "it fails with KeyError: 'generation_log_probs'; turnloom leaves items out (not_an_id 3, "),
        ("string_ids", "it fails with ValueError: invalid literal for int() with base 10: 'token_id:"),
        (
            "odd_logprobs",
            "it gives other rows: 1 with 35 tokens in all, turnloom 1 with 35 tokens in all; turnloom does ",
        ),
    ],
)
def test_a_way_that_stumbles_over_the_body_is_not_timed(name: str, told: str) -> None:
    it = measured((DATA / f"{name}.json").read_bytes())
    assert it.seconds.keys() == set(OURS)
    assert it.not_timed.keys() == set(DECODERS)
    assert it.not_timed["json"].startswith(told)


def test_a_turn_told_twice_makes_other_rows() -> None:
    one = turn([1, 2], list(range(1024)), [-1.0] * 1024)
    it = measured(answer(one, one))
    assert it.not_timed["orjson"] == (
        "it gives other rows: 2 with 2,052 tokens in all, turnloom 1 with 1,026 tokens in all; "
        "turnloom leaves items out (duplicate_turn 1; the first is item 1)"
    )


def test_a_way_of_other_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(body: bytes) -> list[turnloom._gym.TurnRecord]:
        turns = json_turns(body)
        turns[-1].output_log_probs[-1] -= 1e-6
        return turns

    monkeypatch.setitem(_decoders._MAKE, "orjson", lambda: nearly)
    it = measured((DATA / "clean.json").read_bytes())
    assert it.not_timed.keys() == {"orjson"}
    assert it.seconds.keys() == {*DECODERS, *OURS} - {"orjson"}


def test_a_masked_rollout_and_one_without_reward_are_timed_too() -> None:
    item = turn([1, 2], [3, 4])
    for body in (answer(item, mask_sample=True), answer(item, reward=None)):
        assert turnloom.parse_run(body).outcome != "ok"
        assert measured(body).seconds.keys() == {*DECODERS, *OURS}


def test_a_body_without_rows_is_refused_with_its_reason() -> None:
    with pytest.raises(turnloom.UnscorableRollout, match="token"):
        measured((DATA / "no_ids.json").read_bytes())
    with pytest.raises(turnloom.MalformedBody):
        measured(b"")


# The command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds, and not as many as fit into a second."""
    monkeypatch.setattr(_bench, "_FAST_SECONDS", 0.0)


def test_made_bodies_as_a_table_in_markdown() -> None:
    result = run("--fast")
    assert result.exit_code == 0, result.output
    head, _, *lines = [line.strip("| ").split(" | ") for line in result.stdout.splitlines() if line.startswith("|")]
    assert head[:3] == ["body", "MB", "json ms"]
    assert head[-2:] == ["GB/s", "memcmp GB/s"]
    assert [line[:2] for line in lines] == [["small", "0.0515"], ["mid", "9.4"]]
    for line in lines:
        told = dict(zip(head, line, strict=True))
        assert float(told["json ×"]) == pytest.approx(float(told["json ms"]) / float(told["turnloom ms"]), rel=0.02)
    assert f"turnloom {turnloom.__version__}" in result.stdout
    assert result.stderr == ""  # no bar where there is no terminal


def test_bodies_of_ones_own() -> None:
    clean, defects = DATA / "clean.json", DATA / "defects.json"
    result = run(clean, defects, "--fast", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [body["body"] for body in told["bodies"]] == [str(clean), str(defects)]
    assert told["bodies"][0]["seconds"].keys() == {*DECODERS, *OURS}
    assert told["versions"]["trl"].startswith("1.16")
    assert told["problems"] == result.stderr.splitlines()
    assert told["problems"][0].startswith(f"{defects}: json is not timed: it fails with KeyError")


def test_one_body_that_cannot_be_measured_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_bytes(b'{"response": {"output": [')
    result = run(tmp_path / "half.json", DATA / "no_ids.json", DATA / "clean.json", "--fast")
    assert result.exit_code == 1
    assert "half.json: the document ends early" in result.stderr
    assert "no_ids.json: " in result.stderr
    assert "clean.json | 0.00373 | " in result.stdout
    assert run(tmp_path / "none.json").exit_code == 2


def test_a_decoder_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec: Callable[[str], Any] = _decoders.importlib.util.find_spec
    monkeypatch.setattr(
        _decoders.importlib.util, "find_spec", lambda name: None if name == "orjson" else find_spec(name)
    )
    result = run(DATA / "clean.json", "--fast")
    assert result.exit_code == 0
    assert "orjson ms" not in result.stdout
    assert "not installed: orjson; they come with pip install 'turnloom[bench]'" in result.stderr


def test_without_trl_there_is_nothing_to_compare_with() -> None:
    code = (
        "import importlib.metadata as metadata; version = metadata.version\n"
        "def without_trl(name):\n"
        "    if name == 'trl': raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = without_trl\n"
        f"import sys; sys.argv = ['turnloom', 'bench', {str(DATA / 'clean.json')!r}]\n"
        "from turnloom.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'turnloom[trl]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_at_mid(body: bytes, *, name: str, **settings: Any) -> turnloom.bench.Measurement:
        if name == "mid":
            raise KeyboardInterrupt
        return measure(body, name=name, **settings)

    monkeypatch.setattr(_bench, "measure", interrupted_at_mid)
    result = run("--fast")
    assert result.exit_code == 130
    assert "| small | 0.0515 | " in result.stdout
    assert "interrupted: what was measured before is above" in result.stderr


def test_the_table_fits_a_terminal() -> None:
    it = measured((DATA / "clean.json").read_bytes(), name="runs/of/an/agent/[bold]/answer.json")
    others = [measured(made_body("small"), name=name) for name in ("small", "again", "more")]
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(_bench._table([it, *others]))
    said = console.file.getvalue()
    assert "[bold]" in said
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    head, line = cells([it])
    for label, cell in zip(head[1:], line[1:], strict=True):
        assert any(row.startswith(f"{label} ") and f" {cell} " in row for row in said.splitlines()), label


def test_importing_it_imports_no_trl() -> None:
    heavy = ("trl", "torch", "orjson", "rich")
    code = f"import sys, turnloom.bench; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
