"""The command `inspect`: what a person sees in a terminal, and what a program reads."""

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from recording import CLEAN, INTERLEAVED, ROW, record
from rollouts import answer, turn
from turnloom.cli._app import app
from turnloom.inspector import inspect_run
from turnloom.inspector._terminal import show
from turnloom.testing import gym_answer

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


def test_what_nobody_would_see_is_shown(tmp_path: Path) -> None:
    body = answer({"type": "message", "role": "user", "content": "a\u202eb\u200bc\ufeff"}, turn([1], [2]))
    (tmp_path / "body.json").write_bytes(body)
    assert "a<U+202E>b<U+200B>c<U+FEFF>" in run(tmp_path / "body.json")


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


def run_wrongly(*arguments: object, code: int = 2) -> str:
    """The one line on stderr."""
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def many_file(tmp_path: Path, body_file: Path) -> Path:
    """A drifting rollout, one without tokens, half of one, and once more the first."""
    spaced = body_file.read_bytes().replace(b", ", b",\r")  # which JSON takes for a space, and ends no line
    lines = [spaced, answer(), answer()[:20], b"", body_file.read_bytes(), b""]
    (tmp_path / "rollouts.jsonl").write_bytes(b"\n".join(lines))
    return tmp_path / "rollouts.jsonl"


def test_one_rollout_of_a_file_with_many(many_file: Path) -> None:
    assert "rollouts.jsonl, rollout 3" in run(many_file, "--rollout", 3)
    assert "none of the number or id 4" in run_wrongly(many_file, "--rollout", 4)
    assert "the document ends early" in run_wrongly(many_file, "--rollout", 2, code=1)
    assert "choose it with --rollout" in run_wrongly(many_file, "--html", many_file.with_suffix(".html"))


def test_many_rollouts_give_the_causes_of_their_drift(many_file: Path, tokenizer_file: Path) -> None:
    said = run(many_file, "--tokenizer", tokenizer_file)
    for told in (
        "4 rollouts: 2 ok, 1 no_tokens",
        "2 with drift, to be seen with --rollout: 0, 3",
        "unknown: 2 realigns, 0 forks in 2 rollouts, 4 tokens not repeated",
        "not inspected: rollout 2: the document ends early",
    ):
        assert told in said
    assert "Why they drift can be told with --tokenizer." in run(many_file)
    told = json.loads(run(many_file, "--json", "--tokenizer", tokenizer_file, "--fork-threshold-tokens", 0))
    assert told["outcomes"] == {"ok": 2, "no_tokens": 1}
    assert [(cause["cause"], cause["forks"]) for cause in told["causes"]] == [("unknown", 2)]
    assert len(told["failures"]) == 1


async def test_records(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    recorded = [
        (await record(body, folder, branches="best"))[0][0]
        for body in (gym_answer(ROW, turns=CLEAN), gym_answer(ROW, turns=INTERLEAVED), b"{")
    ]
    said = await asyncio.to_thread(run, folder)
    assert "3 rollouts: 2 ok" in said
    assert "not inspected: rollout 2: the rollout ended as malformed: " in said
    told = json.loads(await asyncio.to_thread(run, folder, "--rollout", recorded[1].id, "--json"))
    assert (told["name"], told["branches"], len(told["rows"])) == (recorded[1].id, "best", 2)
    linear = json.loads(await asyncio.to_thread(run, folder, "--rollout", 1, "--json", "--branches", "linear"))
    assert (linear["branches"], len(linear["rows"])) == ("linear", 4)


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path, body_file: Path) -> None:
    (tmp_path / "half.json").write_bytes(b'{"response": {"output": [')
    assert "half.json: the document ends early" in run_wrongly(tmp_path / "half.json", code=1)
    for arguments, message in (
        ([tmp_path / "none.json"], "there is no such file"),
        ([body_file, "--tokenizer", tmp_path], "has no tokenizer.json"),
        ([body_file, "--tokenizer", body_file], "is no tokenizer"),
    ):
        assert message in run_wrongly(*arguments)


def test_a_missing_package_is_named_with_its_extra(body_file: Path) -> None:
    code = (
        "import sys; sys.modules['tokenizers'] = None; sys.argv = ['turnloom', 'inspect', "
        f"{str(body_file)!r}, '--tokenizer', 'some-model']; from turnloom.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
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
