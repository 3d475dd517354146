"""From dataset rows to groups and their members: what is known of them, whoever the trainer is."""

from turnloom._groups._rows import OpenRows, agent_for, check_rows, with_prompt
from turnloom._groups._scoring import DenseIds, WantedTurns, only_members, train_only

__all__ = [
    "DenseIds",
    "OpenRows",
    "WantedTurns",
    "agent_for",
    "check_rows",
    "only_members",
    "train_only",
    "with_prompt",
]
