"""The surface: what is exported, that exceptions pickle, and that importing is light."""

import inspect
import pickle
import subprocess
import sys

import pytest

import turnloom
from turnloom import _exceptions

EXCEPTIONS = [
    value for _, value in inspect.getmembers(_exceptions, inspect.isclass) if issubclass(value, turnloom.TurnloomError)
]


def test_all_is_complete():
    public = {
        name for name in vars(turnloom) if not name.startswith("_") and not inspect.ismodule(getattr(turnloom, name))
    }
    assert public | {"__version__"} == set(turnloom.__all__)


@pytest.mark.parametrize("cls", EXCEPTIONS)
def test_exceptions_pickle_with_their_fields(cls):
    error = cls("what happened", **dict.fromkeys(getattr(cls.__init__, "__kwdefaults__", None) or (), 7))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_every_exception_is_public():
    assert {cls.__name__ for cls in EXCEPTIONS} <= set(turnloom.__all__)


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (turnloom.ConfigError, ValueError),
        (turnloom.MalformedBody, ValueError),
        (turnloom.AgentTimeout, TimeoutError),
        (turnloom.AgentUnreachable, ConnectionError),
        (turnloom.AgentDisconnected, ConnectionError),
    ],
)
def test_exceptions_are_what_the_standard_library_calls_them(cls, base):
    assert issubclass(cls, base)


def test_importing_is_light():
    heavy = ("torch", "transformers", "trl", "datasets", "aiohttp", "httpx_aiohttp", "matplotlib", "rich", "typer")
    code = (
        f"import sys, turnloom, turnloom.integrations.nemo_gym.rollout; print([m for m in {heavy} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
