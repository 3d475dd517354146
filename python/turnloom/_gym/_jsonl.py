"""Rows of a JSONL file, each as the text that stands there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from turnloom._exceptions import ConfigError
from turnloom._gym._request import ROW_COLUMN, agent_request

_MISTAKES_TOLD: Final = 10


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The rows of a JSONL file of NeMo Gym's, one in each line, as `{"nemo_gym_row": <the line>}`.

    A line that has the column `nemo_gym_row` itself stands for the row in it. Blank lines are skipped.

    Raises:
        ConfigError: the file has no row, or lines that are no rows: up to ten of them by number, and why.
        OSError: the file cannot be read.
    """
    rows: list[dict[str, str]] = []
    mistakes: list[str] = []
    for number, line in enumerate(_lines(Path(path)), 1):
        try:
            if row := _row(line):
                rows.append(row)
        except ConfigError as error:
            mistakes.append(f"  line {number}: {error}")
    if mistakes:
        more = f"\n  and {len(mistakes) - _MISTAKES_TOLD} more" if len(mistakes) > _MISTAKES_TOLD else ""
        told = "\n".join(mistakes[:_MISTAKES_TOLD])
        raise ConfigError(f"{os.fspath(path)}: {len(mistakes)} lines are no rows of NeMo Gym:\n{told}{more}")
    if not rows:
        raise ConfigError(f"{os.fspath(path)}: there is no row in it")
    return rows


def _lines(path: Path) -> Iterator[bytes]:
    """Cut at line feeds alone: a JSON string may hold what else Python takes for the end of a line."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line


def _row(line: bytes) -> dict[str, str] | None:
    try:
        text = line.decode().strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8: {error}") from error
    if not text:
        return None
    row = {ROW_COLUMN: _own_row(text) or text}
    agent_request(row, max_tokens=1, temperature=1.0, top_p=1.0)  # raises for what is no row
    return row


def _own_row(text: str) -> str | None:
    """The row within a line that is one of a dataset with the column."""
    if f'"{ROW_COLUMN}"' not in text:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None  # told by who reads it as a row
    own = parsed.get(ROW_COLUMN) if isinstance(parsed, dict) else None
    return own if isinstance(own, str) else None
