"""What all tests share: recorded bodies, and the rules of the environment variables.

TURNLOOM_BODIES         the folder of recorded NeMo Gym answers, with `real/` and `gym_repo/`
TURNLOOM_GYM_LAUNCHER   the script that starts a real NeMo Gym

Tests that need one of them skip where it is unset, and say so. With the launcher set a skip is a failure.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gyms import Gym, Gyms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

settings.register_profile(
    "turnloom",
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("turnloom")


@dataclass(frozen=True)
class RealBody:
    """One recorded answer, and what its index says of it."""

    name: str
    content: bytes
    facts: dict[str, Any]


@pytest.fixture(scope="session")
def bodies_folder() -> Path:
    """The folder of recorded NeMo Gym answers."""
    return _path_of("TURNLOOM_BODIES", "to the folder of recorded NeMo Gym answers (with real/ and gym_repo/)")


@pytest.fixture(scope="session")
def gym_launcher() -> Path:
    """The script that starts a real NeMo Gym."""
    return _path_of("TURNLOOM_GYM_LAUNCHER", "to the script that starts a NeMo Gym")


@pytest.fixture(scope="session")
def gyms(gym_launcher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gyms]:
    """The NeMo Gym that runs, if any."""
    with contextlib.closing(Gyms(gym_launcher, lambda: tmp_path_factory.mktemp("gym"))) as gyms:
        yield gyms


@pytest.fixture
def gym(gyms: Gyms) -> Gym:
    """A real NeMo Gym that no test has broken."""
    return gyms.whole()


@pytest.fixture
def gym_to_break(gyms: Gyms) -> Gym:
    """A real NeMo Gym whose servers may be killed."""
    return gyms.running()


def _path_of(variable: str, to_what: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"set {variable} {to_what}")
    path = Path(os.environ[variable]).resolve()
    assert path.exists(), f"{variable} is {path}, which does not exist"
    return path


@pytest.fixture
def real_body(bodies_folder: Path, request: pytest.FixtureRequest) -> RealBody:
    """Each recorded answer in turn."""
    body: RealBody = request.param
    return body


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "real_body" in metafunc.fixturenames:
        bodies = list(_real_bodies(os.environ.get("TURNLOOM_BODIES")))
        metafunc.parametrize(
            "real_body", bodies or [None], ids=[body.name for body in bodies] or ["none"], indirect=True
        )


def _real_bodies(folder: str | None) -> Iterator[RealBody]:
    if folder is None:
        return
    for name, facts in json.loads((Path(folder) / "real" / "index.json").read_text()).items():
        yield RealBody(name, (Path(folder) / "real" / f"{name}.response.json").read_bytes(), facts)
    for name, records in json.loads((Path(folder) / "gym_repo" / "index.json").read_text()).items():
        content = (Path(folder) / "gym_repo" / name).read_bytes()
        lines = content.splitlines() if name.endswith(".jsonl") else _responses(json.loads(content))
        for number, (line, facts) in enumerate(zip(lines, records, strict=False)):
            yield RealBody(f"{Path(name).stem}-{number}", line, facts)


def _responses(recorded: Any) -> list[bytes]:
    """The response in a recording that isn't an answer of `/run`, with what an answer has around it; or none."""
    response = recorded.get("input") if isinstance(recorded, dict) else None
    return [json.dumps({"response": response}).encode()] if isinstance(response, dict) else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    report = yield
    return _no_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Any:
    report = yield
    return _no_skip(report)


def _no_skip(report: Any) -> Any:
    """With the launcher set everything is there, so what skips is broken."""
    if "TURNLOOM_GYM_LAUNCHER" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{why}\nWith TURNLOOM_GYM_LAUNCHER set, a skip is a failure."
    return report
