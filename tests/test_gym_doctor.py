"""The doctor at a real NeMo Gym, sound and broken."""

import json

import pytest
from typer.testing import CliRunner

from gyms import WEATHER, WITHOUT_IDS
from test_doctor import found, verdicts
from turnloom.cli._app import app
from turnloom.doctor import examine

pytestmark = [pytest.mark.gym, pytest.mark.timeout(400)]


async def test_a_sound_gym(gym):
    examination = await examine(head=gym.head, row=gym.row(WEATHER, "calls=2"), run_timeout=120)
    assert examination.healthy, examination.findings
    seen = verdicts(examination)
    for name in ("head server", f"agent {WEATHER}", "row", "answer", "token ids", "logprobs", "drift", "reward"):
        assert seen[name] == "good", found(examination, name)
    assert found(examination, "token ids").detail.startswith("3 turns")
    assert "never sent back" in found(examination, "cookies").detail  # NeMo Gym sets one with every answer


async def test_a_model_server_without_token_ids(gym):
    row = gym.row(WEATHER, "calls=1") | {"agent_ref": {"name": WITHOUT_IDS}}
    examination = await examine(gym.more_agents, row=row, run_timeout=120)
    finding = found(examination, "token ids")
    assert (finding.verdict, examination.healthy) == ("bad", False)
    assert "return_token_id_information: true" in finding.advice


async def test_a_template_that_drifts(gym):
    examination = await examine(gym.agents, row=gym.row(WEATHER, "calls=3 drift=space"), run_timeout=120)
    finding = found(examination, "drift")
    assert (finding.verdict, finding.detail[:36]) == ("doubtful", "of 3 transitions 3 realigned and 0 f")


async def test_a_row_that_the_agent_refuses(gym):
    row = gym.row(WEATHER, "calls=1")
    row["responses_create_params"]["input"] = 5
    finding = found(await examine(gym.agents, row=row, run_timeout=120), "answer")
    assert finding.verdict == "bad"
    assert "HTTP 422" in finding.detail


async def test_another_server_of_the_gym_is_no_agent(gym):
    finding = found(await examine({"head": gym.head}), "agent head")
    assert (finding.verdict, finding.advice) == ("bad", "This is another server: name the agent's own URL.")


def test_the_command(gym, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, gym.rows(WEATHER))))
    done = CliRunner().invoke(app, ["doctor", "--head", gym.head, "--row", str(rows), "--run-timeout", "120"])
    assert done.exit_code == 0, done.output
    assert "✓  token ids" in done.output


async def test_a_policy_that_hangs(gym_to_break):
    with gym_to_break.silent_policy():
        examination = await examine(gym_to_break.agents, row=gym_to_break.row(WEATHER, "calls=1"), run_timeout=2)
    finding = found(examination, "answer")
    assert (finding.verdict, "hang" in finding.advice) == ("bad", True)
    assert "NeMo Gym sends nothing until a run is over" in finding.detail
