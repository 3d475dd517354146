"""How commands end that cannot go on: with one line and their exit code, whatever went wrong."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollouts import answer, turn
from turnloom.cli import _inspect
from turnloom.cli._app import app
from turnloom.testing import FakeAgent, gym_answer

TURNLOOM = [sys.executable, "-c", "from turnloom.cli import main; main()"]
ROW = {"responses_create_params": {"input": "hi"}}
BODY = answer(turn([1, 2], [3, 5, 6]), turn([1, 2, 3, 7, 1], [2, 0]))
COLLECT = ["collect", "--agents", "math=http://127.0.0.1:1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which has an answer and a row."""
    monkeypatch.chdir(tmp_path)
    Path("body.json").write_bytes(BODY)
    Path("row.json").write_text(json.dumps(ROW))
    return tmp_path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ended(*arguments: object, code: int) -> str:
    """The one line that a command ends with."""
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (code, "")
    (line,) = found.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "none.json"], "none.json: there is no such file"),
        (["inspect", "empty.jsonl"], "there is no rollout in it"),
        (["inspect", "."], "there is no rollout in it"),
        (["inspect", "body.json", "--rollout", "7"], "none of the number or id 7"),
        (["inspect", "body.json", "--html", "./body.json"], "would take the place of what is inspected"),
        (["inspect", "body.json", "--tokenizer", "body.json"], "is no tokenizer"),
        (["replay", "none"], "there are no records"),
        (["replay", "."], "there are no records"),
        (["doctor"], "name an agent's server"),
        (["doctor", "math"], "is no URL of a server"),
        (["doctor", "http://"], "is no URL of a server"),
        (["doctor", "--head", "math"], "is no URL of a server"),
        (["doctor", "http://127.0.0.1:1", "--row", "deep.json"], "the first row is not JSON"),
        ([*COLLECT, "--rows", "row.json", "--out", "body.json/out"], "cannot be made"),
        ([*COLLECT, "--rows", "deep.json", "--out", "out"], "is not JSON"),
    ],
)
def test_a_wrong_argument_ends_with_2(arguments: list[str], said: str, folder: Path) -> None:
    (folder / "empty.jsonl").touch()
    (folder / "deep.json").write_text("[" * 100_000)
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert said in found.stderr
    assert (folder / "body.json").read_bytes() == BODY


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "half.json"], "the document ends early"),
        (["inspect", "body.json", "--html", "none/page.html"], "No such file or directory"),
        (["inspect", "body.json", "--html", "/dev/full"], "No space left on device"),
        (["demo", "--out", "body.json/out"], "Not a directory"),
        (["demo", "--out", "/dev/null/out"], "Not a directory"),
        ([*COLLECT, "--rows", "row.json", "--out", "taken"], "Is a directory: 'taken/collect.json'"),
    ],
)
def test_what_a_file_or_a_disk_does_ends_with_1(arguments: list[str], said: str, folder: Path) -> None:
    (folder / "half.json").write_bytes(BODY[:50])
    (folder / "taken" / "collect.json").mkdir(parents=True)
    assert said in ended(*arguments, code=1)


def test_where_no_rollout_can_be_inspected_it_ends_with_1(folder: Path) -> None:
    (folder / "halves.jsonl").write_bytes(BODY[:50] + b"\n" + BODY[:60])
    found = run("inspect", "halves.jsonl", "--json")
    assert found.exit_code == 1
    assert len(json.loads(found.stdout)["failures"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "body.json"], ["inspect", "body.json", "--json"]])
def test_who_reads_no_further_gets_no_traceback(arguments: list[str], folder: Path) -> None:
    process = subprocess.Popen([*TURNLOOM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    process.wait()


@pytest.mark.parametrize("arguments", [["body.json"], ["body.json", "--json"]])
def test_an_output_that_takes_nothing_is_told(arguments: list[str], folder: Path) -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run([*TURNLOOM, "inspect", *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.returncode != 0
    assert "body.json: [Errno 28] No space left on device" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
def test_a_terminal_that_lacks_characters_gets_the_rest(encoding: str, folder: Path) -> None:
    odd = folder / os.fsdecode(b"b\xff.json")
    odd.write_bytes(BODY)
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for arguments in (["inspect", odd], ["doctor", "http://127.0.0.1:1"], ["--help"]):
        found = subprocess.run([*TURNLOOM, *arguments], capture_output=True, env=environment)
        assert b"Traceback" not in found.stderr
        assert len(found.stdout) > 100


def test_ctrl_c_ends_with_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_inspect, "inspect_run", interrupted)
    found = run("inspect", "body.json")
    assert (found.exit_code, found.stdout, found.stderr) == (130, "", "")


def test_ctrl_c_while_an_agent_is_looked_at(folder: Path) -> None:
    async def silent(call: Any) -> None:
        await call.gone()

    with FakeAgent(silent) as agent:
        process = subprocess.Popen(
            [*TURNLOOM, "doctor", agent.url, "--row", "row.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 60
        while not agent.calls:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")


# What others have written goes to a terminal as text

STEERING = "\x1b]0;title\x07\x1b[31m[/b][red]"


def test_what_an_agent_writes_steers_no_terminal(folder: Path) -> None:
    async def steering(call: Any) -> None:
        body = gym_answer(await call.row(), turns=[([1], [2], [-0.5])], **{STEERING: 1.0})
        await call.answer(body, headers={"content-encoding": STEERING.replace("\x07", "")})

    with FakeAgent(steering) as agent:
        found = run("doctor", agent.url, "--row", "row.json")
        collected = run("collect", "--agents", f"[/b][red]={agent.url}", "--rows", "row.json", "--out", "runs")
    assert "\x1b" not in found.stdout
    assert "^[[31m[/b][red] beside it" in " ".join(found.stdout.split())
    assert collected.exit_code == 0, collected.output
    assert "[/b][red]" in collected.stdout
    inspected = run("inspect", "runs")
    assert "\x1b" not in inspected.stdout
    assert "^[[31m[/b][red] 1" in " ".join(inspected.stdout.split())


def test_a_bar_shows_the_name_of_an_agent_as_it_is(folder: Path) -> None:
    with FakeAgent(gym_answer(ROW, turns=[([1], [2], [-0.5])])) as agent:
        arguments = ["collect", "--agents", f"[/b]={agent.url}", "--rows", "row.json", "--out", "runs"]
        ours, theirs = pty.openpty()
        done = subprocess.run([*TURNLOOM, *arguments], stdout=subprocess.PIPE, stderr=theirs, timeout=60)
        os.close(theirs)
        said = os.read(ours, 65536)
        os.close(ours)
    assert done.returncode == 0, said
    assert b"[/b]" in said


def test_figures_are_numbers_that_every_reader_of_json_knows(folder: Path) -> None:
    with FakeAgent(gym_answer(ROW, turns=[([1], [2], [-0.5])], reward=1e308)) as agent:
        found = run(
            "collect", "--agents", f"math={agent.url}", "--rows", "row.json", "--out", "runs", "-n", 4, "--json"
        )
    assert json.loads(found.stdout, parse_constant=pytest.fail)["total"]["mean_reward"] == 1e308


@pytest.mark.parametrize("command", ["bench", "collect", "demo", "doctor", "inspect", "replay"])
def test_the_help_of_a_command_has_an_example(command: str) -> None:
    assert f"Example: turnloom {command} " in " ".join(run(command, "--help").stdout.split())
