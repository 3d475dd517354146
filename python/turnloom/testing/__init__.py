"""For tests, users' own too: a fake agent server, and what it takes to train on a CPU.

Each name is imported when it is asked for, so that the fake agent needs neither torch nor TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from turnloom.testing.agent import AgentCall, FakeAgent, gym_answer
    from turnloom.testing.cpu import (
        CPU_CONFIG,
        WeightTransfer,
        accept_any_chat_template,
        cpu_training,
        sdpa_tree_attention,
    )
    from turnloom.testing.faults import FAULTS, Fault, Mix, sound

_MODULE_OF: Final = {
    "AgentCall": "agent",
    "CPU_CONFIG": "cpu",
    "FAULTS": "faults",
    "FakeAgent": "agent",
    "Fault": "faults",
    "Mix": "faults",
    "WeightTransfer": "cpu",
    "accept_any_chat_template": "cpu",
    "cpu_training": "cpu",
    "gym_answer": "agent",
    "sdpa_tree_attention": "cpu",
    "sound": "faults",
}

__all__ = [
    "CPU_CONFIG",
    "FAULTS",
    "AgentCall",
    "FakeAgent",
    "Fault",
    "Mix",
    "WeightTransfer",
    "accept_any_chat_template",
    "cpu_training",
    "gym_answer",
    "sdpa_tree_attention",
    "sound",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
