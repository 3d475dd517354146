"""NeMo Gym rollouts into training rows, parsed natively while they download."""

from turnloom._batch import PackedBatch, PaddedBatch, PromptCompletionBatch, pack, pad, pad_prompt_completion, spread
from turnloom._client import GymClient
from turnloom._exceptions import (
    AgentDisconnected,
    AgentError,
    AgentHTTPError,
    AgentTimeout,
    AgentUnreachable,
    ConfigError,
    MalformedBody,
    TurnloomError,
    UnscorableRollout,
)
from turnloom._native import __version__
from turnloom._parse import RunParser, parse_run
from turnloom._rollout import (
    DEFECT_CODES,
    OUTCOMES,
    Defect,
    Drift,
    Rollout,
    Timing,
    TrainingRow,
    Turn,
)

__all__ = [
    "DEFECT_CODES",
    "OUTCOMES",
    "AgentDisconnected",
    "AgentError",
    "AgentHTTPError",
    "AgentTimeout",
    "AgentUnreachable",
    "ConfigError",
    "Defect",
    "Drift",
    "GymClient",
    "MalformedBody",
    "PackedBatch",
    "PaddedBatch",
    "PromptCompletionBatch",
    "Rollout",
    "RunParser",
    "Timing",
    "TrainingRow",
    "Turn",
    "TurnloomError",
    "UnscorableRollout",
    "__version__",
    "pack",
    "pad",
    "pad_prompt_completion",
    "parse_run",
    "spread",
]
