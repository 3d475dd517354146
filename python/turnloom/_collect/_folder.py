"""The folder of a collection: whose it is, and what of it is there already."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from turnloom._exceptions import ConfigError

_STATE: Final = "collect.json"
_LOCK: Final = "collect.lock"


class Sample(NamedTuple):
    """One of the rollouts that a collection wants."""

    task_index: int
    """The row's position."""
    rollout_index: int
    """From 0 to n - 1."""


@dataclass(frozen=True, slots=True)
class State:
    """What a folder remembers of its collection."""

    id: str
    """8 hexadecimal digits; the ids of its requests begin with it."""
    rows: int
    digest: str
    """SHA-256 of these rows."""
    sampling: Mapping[str, Any]
    attempt: int
    """How often it has been begun before."""

    def fields(self, sample: Sample) -> dict[str, Any]:
        """The members of a request by which NeMo Gym, and we, know it again."""
        return {
            "_ng_task_index": sample.task_index,
            "_ng_rollout_index": sample.rollout_index,
            "_ng_attempt_index": self.attempt,
            "_ng_rollout_id": f"{self.id}-{sample.task_index}-{sample.rollout_index}-{self.attempt}",
        }

    def sample_of(self, request: Mapping[str, Any]) -> Sample | None:
        """Which sample a request was for; None where it is none of this collection."""
        if not str(request.get("_ng_rollout_id")).startswith(f"{self.id}-"):
            return None
        return Sample(request["_ng_task_index"], request["_ng_rollout_index"])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder is this process's alone within the block.

    Raises:
        ConfigError: another process collects into it.
    """
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another process collects into this folder") from None
        yield


def take_up(folder: Path, rows: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> State:
    """Take up the collection of this folder, or begin one. Rows may have been added at the end.

    Raises:
        ConfigError: the folder has a collection of other rows, or with another sampling.
    """
    path = folder / _STATE
    if path.exists():
        old = _read_state(path)
        if old.rows > len(rows) or old.digest != _digest(rows[: old.rows]):
            raise ConfigError(f"{folder} has the rollouts of other rows: collect these into another folder")
        if old.sampling != sampling:
            raise ConfigError(
                f"{folder} has rollouts that were sampled with {dict(old.sampling)}, not {dict(sampling)}"
            )
        state = State(old.id, len(rows), _digest(rows), sampling, old.attempt + 1)
    else:
        state = State(secrets.token_hex(4), len(rows), _digest(rows), sampling, 0)
    write_json(path, asdict(state))
    return state


def _read_state(path: Path) -> State:
    types = {"id": str, "rows": int, "digest": str, "sampling": dict, "attempt": int}
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or {name: type(value) for name, value in content.items()} != types:
            raise ValueError("it is not what was written there")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}, by which a collection is known again, is damaged ({error}): collect into another folder"
        ) from error
    return State(**content)


def write_json(path: Path, content: Any) -> None:
    """Replace the file in one go: whoever reads it, and whenever we or the machine die, it is whole."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, default=repr).encode() + b"\n")
    return digest.hexdigest()
