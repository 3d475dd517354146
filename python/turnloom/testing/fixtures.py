"""A pytest plugin with an agent server for tests: `pytest_plugins = ["turnloom.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turnloom.testing.agent import FakeAgent
from turnloom.testing.faults import sound


@pytest.fixture
def fake_agent() -> Iterator[FakeAgent]:
    """An agent server that is up while the test runs, in a thread of its own.

    It gives every row a sound answer of two turns with the reward 1.0, until the test sets `fake_agent.behaviour`.
    """
    with FakeAgent(sound) as agent:
        yield agent
