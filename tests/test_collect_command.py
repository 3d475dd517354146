"""`turnloom collect` as a process: killed, interrupted, taken up again, and what it says."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import turnloom
from recording import CLEAN
from test_client_discovery import head_server, server
from turnloom.cli._app import app
from turnloom.testing import FakeAgent, gym_answer

TURNLOOM = [sys.executable, "-c", "from turnloom.cli import main; main()"]


class Counting:
    """Answers, and after the first `answers` holds every row back until its client is gone. Counts what is asked."""

    def __init__(self, answers: int = 10**9) -> None:
        self.answers = answers
        self.answered: Counter[tuple[int, int]] = Counter()
        self.held = 0

    async def __call__(self, call: Any) -> None:
        row = await call.row()
        if self.answers == 0:
            self.held += 1
            await call.gone()
            return
        self.answers -= 1
        self.answered[row["_ng_task_index"], row["_ng_rollout_index"]] += 1
        await call.answer(gym_answer(row, turns=CLEAN, reward=float(row["id"] % 2)))


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"responses_create_params": {"input": "hi"}, "id": number} for number in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def command(agent: FakeAgent, rows_file: Path, *more: str) -> list[str]:
    out = rows_file.parent / "runs"
    given = ["--agents", f"math={agent.url}", "--rows", str(rows_file), "--out", str(out), "-n", "4"]
    return [*TURNLOOM, "collect", *given, "--concurrency", "5", *more]


def started(agent: FakeAgent, rows_file: Path) -> subprocess.Popen[str]:
    (rows_file.parent / "runs").mkdir()
    return subprocess.Popen(command(agent, rows_file), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def done(agent: FakeAgent, rows_file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(agent, rows_file, *more), capture_output=True, text=True, timeout=60)


def samples_in(folder: Path) -> Counter[tuple[int, int]]:
    requests = [record.request for record in turnloom.Records(folder)]
    return Counter((request["_ng_task_index"], request["_ng_rollout_index"]) for request in requests)


def wait_until(holds: Callable[[], bool]) -> None:
    """For what another process does."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_after_a_kill_each_sample_is_done_exactly_once(rows_file: Path) -> None:
    runs, first, second = rows_file.parent / "runs", Counting(answers=13), Counting()
    with FakeAgent(first) as agent, started(agent, rows_file) as process:
        wait_until(lambda: first.held == 5 and samples_in(runs).total() == 13)
        process.kill()
    assert samples_in(runs) == first.answered
    with FakeAgent(second) as agent:
        again = done(agent, rows_file, "--json")
    assert again.returncode == 0, again.stderr
    every = {(task, index): 1 for task in range(8) for index in range(4)}
    assert first.answered + second.answered == every
    assert samples_in(runs) == every
    total = json.loads(again.stdout)["total"]
    assert (total["wanted"], total["done"], total["mean_reward"]) == (32, 32, 0.5)
    assert turnloom.Records(runs).problems == []


def test_ctrl_c_leaves_what_is_done(rows_file: Path) -> None:
    runs, agent_behaviour = rows_file.parent / "runs", Counting(answers=7)
    with FakeAgent(agent_behaviour) as agent, started(agent, rows_file) as process:
        wait_until(lambda: agent_behaviour.held == 5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: " in said
    assert "Traceback" not in said
    assert json.loads((runs / "summary.json").read_text())["total"]["done"] == 7
    assert samples_in(runs) == agent_behaviour.answered
    with FakeAgent(rest := Counting()) as agent:
        again = done(agent, rows_file)
    assert again.returncode == 0
    assert rest.answered.total() == 32 - 7
    assert agent_behaviour.answered + rest.answered == samples_in(runs)


def test_the_table_and_what_is_left_to_do(rows_file: Path) -> None:
    async def failing(call: Any) -> None:
        row = await call.row()
        await (call.answer(gym_answer(row, turns=CLEAN)) if row["id"] else call.answer("it broke", status=500))

    with FakeAgent(failing) as agent:
        found = done(agent, rows_file)
    assert found.returncode == 1
    header, math, every = found.stdout.splitlines()
    assert header.split("  ")[0] == "agent"
    assert math.split() == ["math", "32", "28", "4", "1.000", "1.000", "1.000", "1.000", "84"]
    assert every.split()[1:] == math.split()[1:]
    assert "outcomes: ok 28, http_error 4" in found.stderr
    assert "4 of 32 rollouts failed: the same command tries them again" in found.stderr
    assert "━" not in found.stdout + found.stderr  # no bar where there is no terminal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the agents"),
        (["--agents", "math=http://127.0.0.1:1", "--head", "http://127.0.0.1:1"], "name the agents"),
        (["--agents", "http://127.0.0.1:1"], "NAME=URL is needed"),
        (["--agents", "math=ftp://127.0.0.1:1"], "is no URL of a server"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: list[str], said: str, rows_file: Path, tmp_path: Path) -> None:
    rest = ["--rows", str(rows_file), "--out", str(tmp_path / "runs")]
    found = subprocess.run([*TURNLOOM, "collect", *arguments, *rest], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_a_wrong_line_of_the_rows_is_named(rows_file: Path, tmp_path: Path) -> None:
    rows_file.write_text(rows_file.read_text() + "\n{}")
    arguments = ["--agents", "a=http://127.0.0.1:1", "--rows", str(rows_file), "--out", str(tmp_path / "runs")]
    found = subprocess.run([*TURNLOOM, "collect", *arguments], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert "line 9: " in found.stderr


def test_agents_are_found_by_the_head_server(rows_file: Path) -> None:
    out = rows_file.parent / "runs"
    behaviour = Counting()
    with FakeAgent(behaviour) as agent, head_server([server("math", agent.url)]) as head:
        arguments = ["collect", "--head", head, "--rows", str(rows_file), "--out", str(out), "--json"]
        found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.stderr
    assert list(json.loads(found.stdout)["agents"]) == ["math"]
    assert behaviour.answered.total() == 8
