"""`log_completions` prints whatever there is to print, and ends no run."""

import importlib.util
from typing import Any

import pytest
from trl.trainer.utils import print_prompt_completions_sample

import turnloom
from trl_workers import make_worker
from turnloom.integrations.nemo_gym._printing import printable
from turnloom.testing.cpu import cpu_training


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "price", "arguments": arguments}}


@pytest.mark.parametrize(
    ("messages", "texts"),
    [
        ("a string", ["a string"]),
        (None, ["None"]),
        ([], []),
        (["hi", None], []),
        (
            [{"role": "user", "content": None, "tool_calls": None, "reasoning_content": None}],
            ["USER"],
        ),  # as Arrow has it
        ([{"role": None}, {}, {"content": 4}], ["4"]),
        ([{"role": "user", "content": [{"type": "text"}, {"text": "in parts"}, "bare", None]}], ["in parts", "bare"]),
        ([{"role": "tool", "content": "[/bold] \ud800"}], ["[/bold]", "\\ud800"]),
        ([{"role": "assistant", "content": "", "reasoning_content": "I think"}], ["I think"]),
        ([{"role": "assistant", "tool_calls": [call({"of": "tea"})]}], ["price({'of': 'tea'})"]),
        ([{"role": "assistant", "tool_calls": [call('{"of": "te'), call("[1]"), None, {}]}], ['price({"of": "te)']),
    ],
)
def test_trl_prints_messages_of_any_shape(messages: Any, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = printable(messages)
    print_prompt_completions_sample([shown], [shown], {"reward": [1.0]}, [0.5], 7)
    printed = capsys.readouterr().out
    assert "Step 7" in printed
    assert all(text in printed for text in texts)


def test_rich_is_needed_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "rich" else find(name, *more))
    with cpu_training(), pytest.raises(turnloom.ConfigError, match="pip install rich"):
        make_worker(log_completions=True)
