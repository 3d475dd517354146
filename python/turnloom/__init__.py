"""NeMo Gym rollouts into training rows, parsed natively while they download."""

from turnloom._batch import PackedBatch, PaddedBatch, PromptCompletionBatch, pack, pad, pad_prompt_completion, spread
from turnloom._client import AgentState, GymClient, ReplicaState
from turnloom._collect import CollectionSummary, collect
from turnloom._exceptions import (
    AgentDisconnected,
    AgentError,
    AgentHTTPError,
    AgentTimeout,
    AgentUnreachable,
    ConfigError,
    MalformedBody,
    MalformedRecord,
    TurnloomError,
    UnscorableRollout,
)
from turnloom._metrics import METRICS, AgentSnapshot, Distribution, Ledger, Snapshot
from turnloom._native import __version__
from turnloom._parse import RunParser, parse_run
from turnloom._records import Record, RecordCounts, Records, replay
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
    "METRICS",
    "OUTCOMES",
    "AgentDisconnected",
    "AgentError",
    "AgentHTTPError",
    "AgentSnapshot",
    "AgentState",
    "AgentTimeout",
    "AgentUnreachable",
    "CollectionSummary",
    "ConfigError",
    "Defect",
    "Distribution",
    "Drift",
    "GymClient",
    "Ledger",
    "MalformedBody",
    "MalformedRecord",
    "PackedBatch",
    "PaddedBatch",
    "PromptCompletionBatch",
    "Record",
    "RecordCounts",
    "Records",
    "ReplicaState",
    "Rollout",
    "RunParser",
    "Snapshot",
    "Timing",
    "TrainingRow",
    "Turn",
    "TurnloomError",
    "UnscorableRollout",
    "__version__",
    "collect",
    "pack",
    "pad",
    "pad_prompt_completion",
    "parse_run",
    "replay",
    "spread",
]
