"""The documentation's code runs: every block, page by page, unless a comment before it says why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnloom.testing import FakeAgent, gym_answer

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:<!-- not run here: (?P<why>[^>]+) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```", re.S | re.M
)
SHOWN = {"text", "yaml"}
"""Languages that are read, not run."""


def blocks(path: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(path.read_text()))


PAGES = [path for path in sorted(DOCS.rglob("*.md")) if any(it["language"] == "python" for it in blocks(path))]


def name(path: Path) -> str:
    return str(path.relative_to(DOCS))


@pytest.mark.parametrize("path", [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_every_block_runs_or_says_why_not(path):
    for block in blocks(path):
        language, why = block["language"], block["why"]
        assert language in SHOWN | {"python", "bash"}, f"a block of {language!r}"
        assert language != "bash" or why or block["code"].startswith(("make ", "turnloom ")), block["code"]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_blocks(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "docs"}
    answer = gym_answer({}, turns=[([1, 2], [3], [-0.5]), ([1, 2, 3, 4], [5], [-0.25])], reward=1.0)
    with FakeAgent(answer) as agent:
        for block in blocks(path):
            if block["language"] != "python":
                continue
            code = with_files(block["code"]).replace("http://127.0.0.1:8001", agent.url)
            compiled = compile(code, name(path), "exec")
            if block["why"] is not None:
                continue
            exec(compiled, names)
            said = re.findall(r"^\s*(?:print\(.*\)  # |# prints: )(.*)$", block["code"], re.M)
            assert capsys.readouterr().out.splitlines() == said


def with_files(code: str) -> str:
    """The block with the files that it includes."""
    return re.sub(r'^--8<-- "(.*)"$', lambda match: (ROOT / match[1]).read_text(), code, flags=re.M)


def test_the_site_builds():
    """Strictly: no link that leads nowhere, no name that is not there. (With --quiet nothing is counted as wrong.)"""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(DOCS.parent / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.train
@pytest.mark.timeout(300)
def test_the_trainer_of_ones_own_learns():
    example = ROOT / "examples" / "own_trainer.py"
    done = subprocess.run([sys.executable, example, "--steps", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rewards = [float(reward) for reward in re.findall(r"reward (\S+)", done.stdout)]
    assert len(rewards) == 9
    assert rewards[-1] > 2 * rewards[0], done.stdout


@pytest.mark.train
@pytest.mark.timeout(300)
def test_training_on_a_cpu(tmp_path):
    *_, block = blocks(DOCS / "testing.md")
    script = tmp_path / "train.py"
    script.write_text(block["code"])
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps, success = done.stdout.split()[-2:]
    assert int(steps) == 3
    assert 0.5 < float(success) <= 1
