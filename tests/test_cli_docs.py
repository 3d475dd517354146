"""docs/reference/cli.md: its tables are the commands' options, its examples those of `--help`."""

import inspect
import re
from typing import Any

import pytest
import typer

from test_docs import ROOT, cells
from turnloom.cli._app import app

SECTIONS = dict(
    re.findall(r"^## `turnloom (\w+)`\n(.*?)(?=^## |\Z)", (ROOT / "docs/reference/cli.md").read_text(), re.M | re.S)
)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def shown(parameter: Any) -> list[str]:
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
    default = "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"
    return [", ".join(f"`{name}`" for name in names), parameter.help, "required" if parameter.required else default]


def test_every_command_has_its_section() -> None:
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_example(name: str) -> None:
    command = COMMANDS[name]
    head, *rows = cells(SECTIONS[name])
    assert head == ["option", "what it does", "default"]
    assert rows == [shown(parameter) for parameter in command.params if not parameter.hidden]
    (example,) = re.findall(r"^Example: (.*)$", inspect.cleandoc(command.help), re.M)
    assert f"```bash\n{example}\n```" in SECTIONS[name]
