"""NeMo Gym as the rollout worker of TRL's `AsyncGRPOTrainer`.

`NemoGymRolloutWorker` is what a trainer takes, `NemoGymRolloutLoop` what runs in its process. The three functions
need no TRL; asking for a class by its name imports it (`import *`, which has to work without TRL, leaves them out).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnloom._gym import TurnRecord, agent_request, messages_from_agent_output, turns_from_agent_output

if TYPE_CHECKING:
    from turnloom.integrations.nemo_gym._trl import NemoGymRolloutLoop as NemoGymRolloutLoop
    from turnloom.integrations.nemo_gym._trl import NemoGymRolloutWorker as NemoGymRolloutWorker

__all__ = [
    "TurnRecord",
    "agent_request",
    "messages_from_agent_output",
    "turns_from_agent_output",
]


def __getattr__(name: str) -> Any:
    if name in ("NemoGymRolloutLoop", "NemoGymRolloutWorker"):
        from turnloom.integrations.nemo_gym import _trl

        return getattr(_trl, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
