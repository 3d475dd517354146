"""The dataset's rows: which come when, and whether an agent could take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnloom._exceptions import ConfigError
from turnloom._gym import agent_of, agent_request, check_row, gym_row, prompt_of


def check_rows(dataset: Any, agents: Iterable[str]) -> None:
    """Look at every row of a map-style dataset before any is sent. Others are looked at when their turn comes.

    Raises:
        ConfigError: the dataset is none, or empty, or there are rows that no agent could take: up to ten of them, and
            why.
    """
    if isinstance(dataset, Mapping):
        names = ", ".join(map(str, list(dataset)[:10])) or "nothing"
        raise ConfigError(
            f"the dataset is a {type(dataset).__name__} of {names}, not of rows: choose a split, as in "
            "dataset['train'] or load_dataset(..., split='train')"
        )
    if isinstance(dataset, (str, bytes)) or not (hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")):
        raise ConfigError(f"dataset={dataset!r}: something with rows is needed, such as a datasets.Dataset")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        return
    if len(dataset) == 0:
        raise ConfigError("the dataset has no rows")
    wrong = list(_wrong_rows(dataset, list(agents)))
    if wrong:
        told = "\n".join(f"  row {number}: {error}" for number, error in wrong[:10])
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise ConfigError(f"{len(wrong)} of {len(dataset)} rows cannot be sent to an agent:\n{told}{more}")


def _wrong_rows(dataset: Iterable[Mapping[str, Any]], agents: list[str]) -> Iterator[tuple[int, ConfigError]]:
    for number, row in enumerate(dataset):
        try:
            agent_of(agent_request(row, max_tokens=1, temperature=1.0, top_p=1.0), agents)
        except ConfigError as error:
            yield number, error


def with_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a `prompt` for trainers and reward functions: its own, or else what the agent is asked."""
    return dict(row) if check_row(row).get("prompt") is not None else {**row, "prompt": prompt_of(row)}


def agent_for(row: Mapping[str, Any], agents: Iterable[str]) -> str | None:
    """The agent that a row goes to; None for a row that cannot be sent."""
    try:
        return agent_of(gym_row(row), agents)
    except ConfigError:
        return None


def positions(
    first_epoch: Iterator[Mapping[str, Any]], dataset: Any, *, start: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each row with its position in the dataset, epoch after epoch without end.

    Args:
        first_epoch: the rows of the first epoch, which may begin in the middle.
        start: where it begins, counted on over the epochs before.

    Raises:
        ConfigError: an epoch has no rows.
    """
    epoch = enumerate(first_epoch, start % len(dataset) if start else 0)
    while True:
        is_empty = True
        for position, row in epoch:
            is_empty = False
            yield position, row
        if is_empty:
            raise ConfigError("the dataset gives no rows: it is empty, or can be read only once, as an iterator can")
        epoch = enumerate(dataset)
