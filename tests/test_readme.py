"""The README's code runs: each block, unless a comment before it says why not."""

import re
from pathlib import Path

import pytest

from turnloom.testing import FakeAgent, gym_answer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(<!-- not run here: (?P<why>[^>]+) -->\n)?```python\n(?P<code>.*?)```", re.S)
BLOCKS = list(BLOCK.finditer(README))


def test_there_are_blocks_of_both_kinds():
    assert {block["why"] is None for block in BLOCKS} == {True, False}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["code"].split("\n", 1)[0])
def test_python_blocks(block, capsys):
    code = compile(block["code"], "README.md", "exec")
    if block["why"] is not None:
        return
    answer = gym_answer({}, turns=[([1, 2], [3], [-0.5]), ([1, 2, 3, 4], [5], [-0.25])], reward=1.0)
    with FakeAgent(answer) as agent:
        code = compile(block["code"].replace("http://127.0.0.1:8001", agent.url), "README.md", "exec")
        exec(code, {"__name__": "readme"})
    said = re.findall(r"print\(.*\)  # (.*)", block["code"])
    printed = capsys.readouterr().out.splitlines()
    assert printed == (said or ["ok None 1.0 0"] * 4)


def test_what_the_example_for_trl_uses_is_there():
    pytest.importorskip("trl")
    import inspect

    from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker

    given = set(re.findall(r"^        (\w+)=", BLOCKS[0]["code"], re.M))
    known = set(inspect.signature(NemoGymRolloutWorker.from_config).parameters) | {"run_timeout"}
    assert given
    assert given <= known


def test_verbs_are_those_of_the_makefile():
    makefile = (Path(__file__).resolve().parents[1] / "Makefile").read_text()
    verbs = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M))
    assert verbs >= {"demo", "test", "bench"}
    assert verbs <= set(re.findall(r"^([a-z-]+):", makefile, re.M))
