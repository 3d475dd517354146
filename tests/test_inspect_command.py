"""The command `inspect`: what a person sees in a terminal, and what a program reads."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from rollouts import answer, turn
from turnloom.cli._app import app
from turnloom.inspector import inspect_run
from turnloom.inspector._terminal import show

DATA = Path(__file__).parent / "data"
WORDS = ["<end>", "the", "cat", "sat", "<think>", "\x1b[31mred", "yes", "no"]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """One token per word of `WORDS`."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<end>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def body_file(tmp_path: Path) -> Path:
    """A body of two turns, of which the second repeats the first but for its last two tokens."""
    items = (turn([1, 2], [3, 5, 6]), turn([1, 2, 3, 7, 1], [2, 0], [-0.5, None]))
    (tmp_path / "body.json").write_bytes(answer(*items))
    return tmp_path / "body.json"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pipe_gets_plain_text(body_file: Path, tokenizer_file: Path) -> None:
    said = run(body_file, "--tokenizer", tokenizer_file)
    assert "ok · reward 1 · 2 turns · 1 row" in said
    assert "turn 1 · realign · item 1 · row 0 · +2 prompt · +2 generated" in said
    assert "The prompt repeats 3 tokens of row 0 and leaves 2 of it." in said
    words = " ".join(said.split())
    for told in ("prompt 2 thecat", "trained 1 sat", "discarded 2 ^[[31mredyes", "unusable 1 <end>"):
        assert told in words
    assert "\x1b" not in said


def test_without_a_tokenizer_there_are_ids(body_file: Path) -> None:
    assert "discarded 2 5 6 " in run(body_file)


def test_json_is_the_inspection(body_file: Path, tokenizer_file: Path) -> None:
    told = json.loads(run(body_file, "--json", "--tokenizer", tokenizer_file.parent, "--fork-threshold-tokens", 0))
    assert told == json.loads(
        json.dumps(
            inspect_run(
                body_file.read_bytes(),
                name="body.json",
                tokenizer=Tokenizer.from_file(str(tokenizer_file)),
                fork_threshold_tokens=0,
            ).to_json()
        )
    )
    assert [row["tokens"] for row in told["rows"]] == [5, 7]


def test_one_rollout_of_a_file_with_many(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(answer(turn([1], [2])) + b"\n\n" + answer(turn([1], [3, 4])) + b"\n")
    assert "+2 generated" in run(tmp_path / "rollouts.jsonl", "--rollout", 1)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "rollouts.jsonl"), "--rollout", "2"])
    assert result.exit_code == 1
    assert "it has 2 rollouts, and none of number 2" in result.stderr


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path, body_file: Path) -> None:
    (tmp_path / "half.json").write_bytes(b'{"response": {"output": [')
    for arguments, message in (
        ([tmp_path / "half.json"], "half.json: the document ends early"),
        ([body_file, "--tokenizer", tmp_path], "has no tokenizer.json"),
        ([body_file, "--tokenizer", body_file], "is no tokenizer"),
    ):
        result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
        assert result.exit_code == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_missing_package_is_named_with_its_extra(body_file: Path) -> None:
    code = (
        "import sys; sys.modules['tokenizers'] = None; sys.argv = ['turnloom', 'inspect', "
        f"{str(body_file)!r}, '--tokenizer', 'some-model']; from turnloom.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'turnloom[cli]'" in result.stderr


def test_a_tokenizer_of_another_model_is_noticed(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "body.json").write_bytes(answer(turn([1, 900], [901, 2])))
    said = run(tmp_path / "body.json", "--tokenizer", tokenizer_file)
    assert "its vocabulary lacks 2 tokens" in said
    assert "⟨901⟩cat" in said


@pytest.mark.parametrize("width", [60, 160])
@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.json")))
def test_every_body_can_be_shown(name: str, width: int) -> None:
    inspection = inspect_run((DATA / name).read_bytes(), name=name, fork_threshold_tokens=2)
    console = Console(width=width, file=io.StringIO())
    show(inspection, console)
    said = console.file.getvalue()
    for number in range(len(inspection.turns)):
        assert f"turn {number}" in said
    for defect in inspection.defects:
        assert defect.code in said


def test_what_is_long_is_elided_with_its_count() -> None:
    body = answer(turn(list(range(1000, 6000)), [1], content="word " * 1000))
    console = Console(width=80, file=io.StringIO())
    show(inspect_run(body), console)
    said = " ".join(console.file.getvalue().split())
    assert "1046 1047 … 4,904 tokens … 5952" in said
    assert "… 4,400 characters …" in said
