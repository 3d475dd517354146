"""docs/inspect.md: its tables are those of the code, and its commands and its example run."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recording import INTERLEAVED, ROW, record
from small_tokenizers import byte_level
from test_docs import ROOT, tables
from turnloom.cli._app import app
from turnloom.inspector import DRIFT_CAUSES, KINDS
from turnloom.testing import gym_answer

TEXT = (ROOT / "docs" / "inspect.md").read_text()
CONTROLS = (ROOT / "python" / "turnloom" / "inspector" / "page" / "controls.js").read_text()
ARROWS = {"ArrowRight": "→", "ArrowLeft": "←"}


def test_tables() -> None:
    kinds, *_, causes = tables(TEXT)
    assert kinds == KINDS
    assert causes == {code: cause.meaning for code, cause in DRIFT_CAUSES.items()}


def test_keys() -> None:
    told = dict(re.findall(r"^\| (`.`(?: `.`)?) \| (.*) \|$", TEXT, re.M))
    pairs = re.findall(r'^  \["([^"]+)", (?:"([^"]+)"|null), "([^"]+)"', CONTROLS, re.M)
    assert told == {" ".join(f"`{ARROWS.get(key, key)}`" for key in keys if key): meaning for *keys, meaning in pairs}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The files that the page speaks of, in the working folder; gives the id of the recorded rollout."""
    monkeypatch.chdir(tmp_path)
    Path("my-model").mkdir()
    byte_level().save("my-model/tokenizer.json")
    [rollout], _ = asyncio.run(record(gym_answer(ROW, turns=INTERLEAVED), Path("runs")))
    Path("body.json").write_bytes((ROOT / "tests" / "data" / "drift.json").read_bytes())
    return rollout.id


def test_commands(kept: str) -> None:
    lines = re.findall(r"^turnloom (inspect .*?)(?: +#.*)?$", TEXT, re.M)
    assert len(lines) == 4
    for line in lines:
        arguments = shlex.split(re.sub(r"[0-9a-f]{32}", kept, line))
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert Path("rollout.html").exists()


def test_the_example(kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(code, "docs/inspect.md", "exec"), {})
    advice = {cause: DRIFT_CAUSES[cause].advice for cause in ("sub_agent", "unknown")}
    assert capsys.readouterr().out == f"2 0 {advice['sub_agent']}\n1 0 {advice['unknown']}\n"
