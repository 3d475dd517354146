"""The request: what a dataset row sends to `/run`, and to which agent."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from turnloom._exceptions import ConfigError
from turnloom._gym._items import as_string
from turnloom._gym._messages import messages_from_agent_output
from turnloom._gym._sampling import checked_sampling, own_token_limit

logger = logging.getLogger("turnloom")

ROW_COLUMN: Final = "nemo_gym_row"
"""The dataset column with the whole row as a JSON string."""


def agent_request(row: Mapping[str, Any], *, max_tokens: int, temperature: float, top_p: float) -> dict[str, Any]:
    """The JSON body that one dataset row sends to `/run`.

    The column `nemo_gym_row`, a JSON string, is sent as it is and wins. Without it all columns but `prompt` are sent,
    and null members, which Arrow adds where rows differ, are removed at any depth (never elements of a list); that is
    said once. In either case the sampling is the trainer's, and null members of `responses_create_params` are left
    out.

    Args:
        row: one row of the dataset; it is not changed.
        max_tokens: at least 1; bounds `max_output_tokens`, of which a smaller one of the row's own stays.
        temperature: at least 0; replaces the row's own, since training is on-policy.
        top_p: above 0 and at most 1; likewise.

    Raises:
        ConfigError: the row is not one that an agent could take, or the sampling is out of its range.

    Examples:
        >>> row = {"nemo_gym_row": '{"responses_create_params": {"input": "2 + 2?", "max_output_tokens": 9}, "id": 4}'}
        >>> agent_request(row, max_tokens=64, temperature=1.0, top_p=1.0)  # doctest: +NORMALIZE_WHITESPACE
        {'responses_create_params': {'input': '2 + 2?', 'max_output_tokens': 9, 'temperature': 1.0, 'top_p': 1.0},
         'id': 4}
    """
    limit, temperature, top_p = checked_sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
    request = gym_row(row)
    own_params = request.get("responses_create_params")
    if not isinstance(own_params, dict):
        what = "is not an object" if own_params is not None else "is missing"
        raise ConfigError(
            f"the row's responses_create_params {what}: a NeMo Gym row has it as an object, either as a column or "
            f"within the JSON string of the column {ROW_COLUMN!r} (columns: {', '.join(map(str, row)) or 'none'})"
        )
    params = {name: value for name, value in own_params.items() if value is not None}
    own_limit = own_token_limit(params)
    params["max_output_tokens"] = limit if own_limit is None else min(own_limit, limit)
    params["temperature"] = temperature
    params["top_p"] = top_p
    return {**request, "responses_create_params": params}


def check_row(row: Any) -> Mapping[str, Any]:
    """The row itself.

    Raises:
        ConfigError: it is no mapping.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(
            f"a row is a mapping, from the names of columns to their values, not {type(row).__name__}: it begins "
            f"{reprlib.repr(row)[:80]}"
        )
    return row


def gym_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as NeMo Gym knows it: a new object, before the trainer's sampling is put in.

    Raises:
        ConfigError: the row is no mapping, or nested without end; or `nemo_gym_row` is not a string, not JSON, or not
            an object.
    """
    text = check_row(row).get(ROW_COLUMN)
    if text is None:
        return _without_nulls_of_arrow(row)
    if not isinstance(text, str):
        raise ConfigError(
            f"the column {ROW_COLUMN!r} is a JSON string, not {type(text).__name__}: store json.dumps(row), since "
            "Arrow would unify the members of nested objects"
        )
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the column {ROW_COLUMN!r} is not JSON: {error} (it begins {text[:80]!r})") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"the column {ROW_COLUMN!r} is not a JSON object: it begins {text[:80]!r}")
    return parsed


def agent_of(request: Mapping[str, Any], agents: Iterable[str]) -> str:
    """The agent that a row goes to: `agent_ref.name`, or the first agent where the row names none.

    A row at the wrong agent can be answered 200 with a good reward, so nothing is guessed.

    Raises:
        ConfigError: the name is not a string, or no agent has it.

    Examples:
        >>> agent_of({"agent_ref": {"type": "responses_api_agents", "name": "math"}}, ["code", "math"])
        'math'
        >>> agent_of({"agent_ref": None}, ["code", "math"])
        'code'
    """
    known = list(agents)
    if not known:
        raise ConfigError("there are no agents: name at least one, such as {'math': 'http://127.0.0.1:8001'}")
    reference = request.get("agent_ref")
    if reference is None:
        return known[0]
    if not isinstance(reference, Mapping):
        raise ConfigError(f"agent_ref is {_excerpt(reference)}, not an object with a name; agents: {', '.join(known)}")
    name = reference.get("name")
    if name is None:
        return known[0]
    if not isinstance(name, str):
        raise ConfigError(f"agent_ref.name is {_excerpt(name)}, not a string; agents: {', '.join(known)}")
    if name not in known:
        raise ConfigError(f"agent_ref.name is {name!r}, and there is no such agent; agents: {', '.join(known)}")
    return name


def prompt_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row's `responses_create_params.input` as chat messages, for rows without a `prompt`; empty if there is none.

    Raises:
        ConfigError: the row is no mapping, or its `nemo_gym_row` cannot be read.

    Examples:
        >>> prompt_of({"responses_create_params": {"input": "2 + 2?"}})
        [{'role': 'user', 'content': '2 + 2?'}]
    """
    source = row if check_row(row).get(ROW_COLUMN) is None else gym_row(row)
    params = source.get("responses_create_params")
    given = params.get("input") if isinstance(params, Mapping) else None
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return messages_from_agent_output(given) if isinstance(given, (list, tuple)) else []


_warned: set[str] = set()
"""The warnings that this process has given."""


def _without_nulls_of_arrow(row: Mapping[str, Any]) -> dict[str, Any]:
    removed: set[str] = set()
    columns = {name: value for name, value in row.items() if name not in ("prompt", ROW_COLUMN)}
    removed.update(str(name) for name, value in columns.items() if value is None)
    try:
        kept = {name: _prune(value, name, removed) for name, value in columns.items() if value is not None}
    except RecursionError as error:
        raise ConfigError("the row is nested too deeply, or contains itself: no JSON can be made of it") from error
    if removed and "nulls" not in _warned:
        _warned.add("nulls")
        logger.warning(
            "null members are left out of the rows sent to NeMo Gym, first in %s: Arrow adds them where rows, or the "
            "objects of a nested column, differ. Keep each row as a JSON string in the column %r to send it exactly as "
            "it is.",
            ", ".join(sorted(removed)[:5]),
            ROW_COLUMN,
        )
    return kept


def _prune(value: Any, place: str, removed: set[str]) -> Any:
    if isinstance(value, Mapping):
        # Those directly in responses_create_params are dropped from every row: nobody needs to hear of them.
        if place != "responses_create_params":
            removed.update(f"{place}.{name}" for name, member in value.items() if member is None)
        return {
            name: _prune(member, f"{place}.{name}", removed) for name, member in value.items() if member is not None
        }
    if isinstance(value, (list, tuple)):
        return [_prune(element, f"{place}[]", removed) for element in value]
    return value


def _excerpt(value: Any) -> str:
    return as_string(value)[:80] if not isinstance(value, str) else repr(value[:80])
