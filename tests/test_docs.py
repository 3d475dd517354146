"""The tables of the documentation are those of the code."""

import inspect
import re
from pathlib import Path
from typing import get_args

import turnloom
from turnloom._metrics import MAX_FIELDS, RECENT_ROLLOUTS, SHAPES
from turnloom._metrics._prometheus import FAMILIES
from turnloom._rollout import Outcome
from turnloom.integrations.nemo_gym._settings import known_settings

ROOT = Path(__file__).resolve().parents[1]


def tables(text: str) -> list[dict[str, str]]:
    """Each table whose first column is code: second column by first."""
    rows = [re.fullmatch(r"\| `(\w+)` \| (.*) \|", line) for line in text.splitlines()]
    found: list[dict[str, str]] = [{}]
    for row in rows:
        if row:
            found[-1][row[1]] = row[2]
        elif found[-1]:
            found.append({})
    return [table for table in found if table]


def test_outcomes_and_defects() -> None:
    outcomes, defects = tables((ROOT / "docs" / "outcomes.md").read_text())
    assert outcomes == turnloom.OUTCOMES
    assert list(outcomes) == list(get_args(Outcome))
    assert defects == turnloom.DEFECT_CODES


def test_the_readme_names_every_outcome_that_a_rollout_can_have() -> None:
    section = (ROOT / "README.md").read_text().split("## What a rollout can be")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) >= set(turnloom.OUTCOMES) - {"cancelled"}


def test_the_core_has_no_other_defect_codes() -> None:
    source = "".join((ROOT / "rust" / name).read_text() for name in ("weave.rs", "weave/bundle.rs"))
    used = re.findall(r'\("([a-z_]+)", format!|code: "([a-z_]+)"|\w+, "([a-z_]+)", (?:detail|format!)', source)
    assert {code for codes in used for code in codes if code} == set(turnloom.DEFECT_CODES)


def cells(text: str) -> list[list[str]]:
    """The cells of every line of a table, heads included."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_metrics() -> None:
    written = cells((ROOT / "docs" / "metrics.md").read_text())
    by_metric: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        by_metric.setdefault(family.metric, []).append(f"`{name}`" + (f" by `{family.label}`" if family.label else ""))
    rows = [
        [f"`{name}`", shape, meaning, ", ".join(by_metric.pop(name, []))]
        for name, (shape, meaning) in turnloom.METRICS.items()
    ]
    start = written.index(["metric", "shape", "meaning", "Prometheus"]) + 1
    assert written[start : start + len(rows)] == rows
    assert not by_metric
    shapes = written.index(["shape", "what is put into the queue"]) + 1
    assert written[shapes : shapes + len(SHAPES)] == [[name, told] for name, told in SHAPES.items()]


def test_the_numbers_that_the_page_on_metrics_names() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert f"{RECENT_ROLLOUTS:,}" in text
    assert f"{MAX_FIELDS} fields" in text
    answers = text.split("## Which number answers what")[1]
    named = set(re.findall(r"`([\w/<>]+)`", answers)) - {"run_timeout", "max_concurrency"}
    assert named <= turnloom.METRICS.keys()


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)", pages, re.M))
    in_tables = {"DEFECT_CODES", "METRICS", "OUTCOMES", "__version__"}
    assert {f"turnloom.{name}" for name in set(turnloom.__all__) - in_tables} <= documented


def test_settings() -> None:
    both, client, worker, *_ = tables((ROOT / "docs" / "how-to" / "rollouts.md").read_text())
    assert {*both, *client} == set(inspect.signature(turnloom.GymClient).parameters) - {"agent_servers"}
    assert {*both, *worker} - {"fork_threshold_tokens", "reward_funcs"} == known_settings()
