"""Which TRL this integration has run with; any other is refused before its modules are imported."""

from __future__ import annotations

import importlib.metadata
from typing import Final

from turnloom._exceptions import ConfigError

TRL_RANGE: Final = ">=1.16,<1.17"
_MINOR: Final = ["1", "16"]

_HOOKS: Final = {
    "_AsyncRolloutLoop": (
        "_provides_rollout_reward",
        "_generate_loop",
        "_generate_one",
        "_push_rollout_metrics",
        "_repeat_iterator",
        "_run_loops",
        "_score_group",
        "_score_loop",
        "model_version",
    ),
    "AsyncRolloutWorker": ("_loop_cls", "check_health", "model_version", "start", "stop"),
    "RolloutGroup": ("completions", "group_id", "reward_kwargs", "rollout_rewards"),
    "RolloutSample": ("group_id",),
}
"""What is overridden or used, of each class."""


class UnsupportedTrl(ConfigError, ImportError):
    """TRL is missing, or is not one that this integration has run with."""


def check_trl_version() -> None:
    """Refuse a TRL that is missing or out of range.

    Raises:
        UnsupportedTrl: it names the version found, the range, and what to install.
    """
    try:
        found = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedTrl(f"TRL is missing (trl{TRL_RANGE}): pip install 'turnloom[trl]'") from error
    if found.split(".")[:2] != _MINOR:
        raise UnsupportedTrl(
            f"TRL {found} is installed, and turnloom has run with trl{TRL_RANGE} alone: pip install 'turnloom[trl]', "
            "or look for a newer turnloom; for another TRL ask in turnloom's issue tracker"
        )


def check_trl_hooks(*classes: type) -> None:
    """Refuse classes that lack something that is overridden or used.

    Raises:
        UnsupportedTrl: it names what is missing.
    """
    missing = [f"{cls.__name__}.{name}" for cls in classes for name in _HOOKS[cls.__name__] if not hasattr(cls, name)]
    if missing:
        raise UnsupportedTrl(
            f"TRL {importlib.metadata.version('trl')} lacks what turnloom builds on: {', '.join(missing)}. Install an "
            f"unchanged trl{TRL_RANGE}; for another TRL ask in turnloom's issue tracker"
        )
