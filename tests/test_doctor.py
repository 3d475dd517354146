"""What the doctor finds at agents that are sound, and at agents that are not."""

import gzip
import importlib.metadata
import json
import socket
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from turnloom import ConfigError, Rollout, Timing
from turnloom.cli import _doctor
from turnloom.cli._app import app
from turnloom.doctor import Examination, examine
from turnloom.doctor._findings import answered
from turnloom.testing import AgentCall, FakeAgent, gym_answer

ROW = {"responses_create_params": {"input": "2 + 2?"}}
TWO_TURNS = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
TURNS_THAT_FORK = [([1, 2], [3, 4], [-0.5, -0.25]), ([7, 8], [9], [-1.0])]


def verdicts(examination: Examination) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in examination.findings}


def found(examination: Examination, name: str) -> Any:
    (finding,) = [finding for finding in examination.findings if finding.name == name]
    return finding


async def look_at(behaviour: Any, **settings: Any) -> Examination:
    async with FakeAgent(behaviour) as agent:
        return await examine({"math": agent.url}, row=ROW, **settings)


async def test_a_sound_agent():
    examination = await look_at(gym_answer(ROW, turns=TWO_TURNS, reward=0.5, steps=3))
    assert examination.healthy
    assert examination.rollout.outcome == "ok"
    seen = verdicts(examination)
    for name in ("agent math", "row", "answer", "compression", "cookies", "JSON", "token ids", "logprobs", "reward"):
        assert seen[name] == "good", found(examination, name)
    assert found(examination, "token ids").detail == "2 turns, 3 generated tokens, prompts to 5"
    assert found(examination, "drift").detail == "none in 1 transition: 1 row, 3 trained tokens, 0 discarded"
    assert found(examination, "reward").detail == "0.5; steps beside it"
    assert "never sent back" in found(examination, "cookies").detail
    assert all(finding.advice for finding in examination.findings if finding.verdict in ("bad", "doubtful"))


@pytest.mark.parametrize(
    ("answer", "name", "verdict", "detail", "advice"),
    [
        (gym_answer(ROW, turns=[]), "token ids", "bad", "no item", "return_token_id_information: true"),
        (
            gym_answer(ROW, turns=[([1], [2, 3], [-0.5])]),
            "token ids",
            "bad",
            "0 sound turns, 1 defects; the first: item 0, generation_log_probs: length_mismatch",
            "takes its turn",
        ),
        (gym_answer(ROW, turns=[([1], [2, 3], [-0.5, None])]), "logprobs", "doubtful", "1 of 2", "not trained"),
        (gym_answer(ROW, turns=[([1], [2], [0.5])]), "logprobs", "doubtful", "1 of 1 are above 0", "another kind"),
        (
            gym_answer(ROW, turns=TURNS_THAT_FORK),
            "drift",
            "doubtful",
            "of 1 transition 0 realigned and 1 forked: 2 rows, 3 trained tokens, 0 discarded",
            "turnloom inspect",
        ),
        (gym_answer(ROW, turns=TWO_TURNS, reward=None), "reward", "bad", "reward", "verifier"),
        (gym_answer(ROW, turns=TWO_TURNS, mask_sample=True), "reward", "doubtful", "mask_sample", "honor_mask_sample"),
        (b'{"reward": 1,}', "JSON", "bad", "math", "proxy"),
        (gym_answer(ROW, turns=TWO_TURNS, _ng_failure_class="oom"), "response", "bad", "oom", "log"),
    ],
)
async def test_an_answer_with_a_fault(answer, name, verdict, detail, advice):
    finding = found(await look_at(answer), name)
    assert finding.verdict == verdict
    assert detail in finding.detail
    assert advice in finding.advice


async def test_an_answer_that_was_cut():
    answer = gym_answer(ROW, turns=TWO_TURNS)
    answer["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    finding = found(await look_at(answer), "response")
    assert (finding.verdict, "max_tokens" in finding.advice) == ("doubtful", True)


async def test_an_answer_that_is_compressed():
    body = gzip.compress(json.dumps(gym_answer(ROW, turns=TWO_TURNS)).encode())

    async def compressed(call: AgentCall) -> None:
        await call.answer(body, headers={"content-encoding": "gzip"})

    finding = found(await look_at(compressed), "compression")
    assert (finding.verdict, finding.detail) == ("doubtful", "the answer is compressed (gzip)")


@pytest.mark.parametrize("status", [422, 500])
async def test_an_agent_that_refuses_the_row(status):
    async def refuse(call: AgentCall) -> None:
        await call.answer({"detail": "no such field"}, status=status)

    examination = await look_at(refuse)
    finding = found(examination, "answer")
    assert (finding.verdict, examination.healthy) == ("bad", False)
    assert f"HTTP {status}" in finding.detail
    assert "no such field" in finding.detail
    assert "token ids" not in verdicts(examination)


async def test_an_agent_that_says_nothing():
    async def silent(call: AgentCall) -> None:
        await call.gone()

    finding = found(await look_at(silent, run_timeout=0.2), "answer")
    assert finding.verdict == "bad"
    assert "0.2 s" in finding.detail
    assert "hang" in finding.advice


def test_an_answer_that_took_most_of_the_time():
    rollout = Rollout("no_reward", reason="no reward")
    rollout.timing = Timing(first_byte_s=200.0, download_s=0.5, body_bytes=2_000)
    finding = answered(rollout, run_timeout=300.0)
    assert (finding.verdict, finding.detail) == ("doubtful", "HTTP 200 after 200.0 s; 2,000 bytes in 0.50 s")
    assert "run_timeout=300" in finding.advice
    assert answered(rollout, run_timeout=600.0).verdict == answered(rollout, run_timeout=None).verdict == "good"


async def test_a_closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        examination = await examine({"math": url})
    finding = found(examination, "agent math")
    assert (finding.verdict, url in finding.detail) == ("bad", True)
    assert found(examination, "row").verdict == "not looked at"


async def test_a_password_in_a_url_is_sent_and_not_shown():
    async with FakeAgent(gym_answer(ROW, turns=TWO_TURNS)) as agent:
        examination = await examine({"math": agent.url.replace("//", "//me:secret@")}, row=ROW)
    assert verdicts(examination)["agent math"] == verdicts(examination)["answer"] == "good"
    assert "secret" not in str(examination.as_json())
    assert agent.calls[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize("given", [{"agent_servers": {"math": "10.0.0.5:8001"}}, {"head": "10.0.0.5:11000"}])
async def test_a_url_that_is_none(given):
    with pytest.raises(ConfigError, match="no URL of a server"):
        await examine(**given)


async def test_what_is_found_is_told_also_where_versions_cannot_be_looked_at(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    monkeypatch.delitem(sys.modules, "turnloom.doctor._versions", raising=False)
    examination = await look_at(gym_answer(ROW, turns=TWO_TURNS))
    assert verdicts(examination)["reward"] == "good"
    assert found(examination, "versions").advice == "pip install 'turnloom[cli]'"


async def test_a_package_that_is_missing(monkeypatch):
    def version(name, find=importlib.metadata.version):
        if name == "trl":
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = found(await look_at(gym_answer(ROW, turns=TWO_TURNS)), "trl")
    assert finding.detail == "missing; trl>=1.16,<1.17 is needed to train with TRL"
    assert finding.advice == "pip install 'turnloom[trl]'"


async def test_another_server():
    async with FakeAgent({}) as agent:
        examination = await examine({"math": f"{agent.url}/v1"})
    finding = found(examination, "agent math")
    assert (finding.verdict, finding.advice) == ("bad", "This is another server: name the agent's own URL.")


async def test_a_row_for_an_unknown_agent_is_not_sent():
    async with FakeAgent({}) as agent:
        examination = await examine({"math": agent.url}, row=ROW | {"agent_ref": {"name": "chess"}})
    assert found(examination, "row").verdict == "bad"
    assert "chess" in found(examination, "row").detail
    assert agent.calls == []


async def test_either_the_agents_or_the_head():
    with pytest.raises(ConfigError, match="either"):
        await examine()
    with pytest.raises(ConfigError, match="either"):
        await examine({"math": "http://127.0.0.1:1"}, head="http://127.0.0.1:2")


# The command


@pytest.fixture
def row_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | {"agent_ref": {"name": "math"}}) + '\n{"broken\n')
    return path


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_the_check_list(row_file):
    with FakeAgent(gym_answer(ROW, turns=TWO_TURNS)) as agent:
        done = command(agent.url, "--row", row_file)
    assert done.exit_code == 0, done.output
    assert "✓  agent math" in done.output
    assert "2 turns" in done.output


def test_the_check_list_says_what_to_do(row_file):
    with FakeAgent(gym_answer(ROW, turns=[])) as agent:
        done = command(agent.url, "--row", row_file)
    assert done.exit_code == 1
    assert "✗  token ids" in done.output
    assert "→ Set return_token_id_information: true" in " ".join(done.output.split())


def test_the_check_list_for_machines(row_file):
    with FakeAgent(gym_answer(ROW, turns=TWO_TURNS)) as agent:
        done = command(agent.url, "--row", row_file, "--json")
    told = json.loads(done.stdout)
    assert told["healthy"]
    assert {"name": "reward", "verdict": "good", "detail": "1", "advice": ""} in told["findings"]


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[1]")
    done = command("http://127.0.0.1:1", "--row", path)
    assert (done.exit_code, "no JSON object" in done.output) == (2, True)
    path.write_text("{")
    assert command("http://127.0.0.1:1", "--row", path).exit_code == 2


def test_agents_that_are_not_named_or_named_twice():
    for arguments in ([], ["http://127.0.0.1:1", "--head", "http://127.0.0.1:2"]):
        done = command(*arguments)
        assert (done.exit_code, "--head URL" in done.output) == (2, True)


def test_how_long_it_takes_is_shown_in_a_terminal_alone(row_file, monkeypatch):
    shown = StringIO()
    monkeypatch.setattr(_doctor, "progress_console", lambda: Console(file=shown, force_terminal=True, width=80))
    with FakeAgent(gym_answer(ROW, turns=TWO_TURNS)) as agent:
        assert command(agent.url, "--row", row_file).exit_code == 0
        assert "looking at the agents, for" in shown.getvalue()
        monkeypatch.undo()
        assert "looking" not in command(agent.url, "--row", row_file).output
