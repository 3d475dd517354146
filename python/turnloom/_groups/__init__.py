"""From dataset rows to groups and their members: what is known of them, whoever the trainer is."""

from turnloom._groups._policy import GroupPolicy
from turnloom._groups._rows import check_rows, positions
from turnloom._groups._runner import GroupRunner
from turnloom._groups._scoring import DenseIds, check_advantages, only_members

__all__ = [
    "DenseIds",
    "GroupPolicy",
    "GroupRunner",
    "check_advantages",
    "check_rows",
    "only_members",
    "positions",
]
