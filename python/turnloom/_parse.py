"""From bytes to a rollout: the parser, and how an answer of status 200 is judged."""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from turnloom import _native
from turnloom._exceptions import ConfigError
from turnloom._parsed import Members, Parsed, as_number, decode
from turnloom._rollout import Drift, Rollout, TrainingRow

DEFAULT_FORK_THRESHOLD_TOKENS: Final = 1024
Branches = Literal["linear", "best"]

_TYPES_WITHIN_BYTES: Final = 1 << 20
"""An output that is larger is not decoded only to say in a reason what it holds."""


class RunParser:
    """Parses one answer of `/run` while it arrives.

    `feed` does the work, and raises `MalformedBody` as soon as no continuation is JSON; `finish` gives the rollout,
    the same for every way of cutting the bytes.

    Args:
        fork_threshold_tokens: a drift of as many tokens, or more, forks; 1024 by default, as in TRL. 0 never discards a
            generated token.
        branches: which open rows a prompt may continue. "linear": the last one, as in TRL. "best": any of up to 64, so
            that sub-agents that take turns have a row each; it goes to the longest row that it repeats in full, else to
            the one that it repeats most of and may realign, else to a new one. Of equals the newest counts.
        honor_mask_sample: whether `mask_sample` makes a rollout `masked`.
        max_body_bytes: a larger body is malformed; None is no bound.

    Raises:
        ConfigError: a setting out of its range.
    """

    def __init__(
        self,
        *,
        fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD_TOKENS,
        branches: Branches = "linear",
        honor_mask_sample: bool = True,
        max_body_bytes: int | None = None,
    ) -> None:
        if branches not in get_args(Branches):
            raise ConfigError(f"branches={branches!r}: it is one of {', '.join(map(repr, get_args(Branches)))}")
        try:
            threshold = operator.index(fork_threshold_tokens)
        except TypeError:
            raise ConfigError(f"fork_threshold_tokens={fork_threshold_tokens!r}: it is an integer") from None
        # Beyond any length that a row can have, so that every integer does what it says.
        threshold = max(-1, min(threshold, 2**62))
        if max_body_bytes is not None and not 0 < max_body_bytes < 2**63:
            raise ConfigError(f"max_body_bytes={max_body_bytes!r}: it is at least 1, or None for no bound")
        self._parser = _native.Parser(
            fork_threshold_tokens=threshold, best_branch=branches == "best", max_body_bytes=max_body_bytes
        )
        self._honor_mask_sample = honor_mask_sample
        self._rollout_id: str | None = None  # of a rollout that is parsed once more

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Parse the next bytes.

        Raises:
            MalformedBody: no continuation of what was fed is JSON; also from every later call.
            TypeError: the chunk is not bytes-like.
        """
        self._parser.feed(chunk if type(chunk) is bytes else bytes(memoryview(chunk)))

    def finish(self) -> Rollout:
        """The rollout.

        Raises:
            MalformedBody: the document has not ended.
            ValueError: called a second time.
        """
        parsed = Parsed(*self._parser.finish(), rollout_id=self._rollout_id)
        return _judge(parsed, honor_mask_sample=self._honor_mask_sample)


def parse_run(
    body: bytes | bytearray | memoryview | str,
    *,
    fork_threshold_tokens: int = DEFAULT_FORK_THRESHOLD_TOKENS,
    branches: Branches = "linear",
    honor_mask_sample: bool = True,
    max_body_bytes: int | None = None,
) -> Rollout:
    """The rollout that an answer of `/run` tells, from the whole body. See `RunParser` for the arguments.

    Raises:
        MalformedBody: the body is not JSON, or larger than `max_body_bytes`. Offsets into a str count its UTF-8 bytes.
        ConfigError: a setting out of its range.
    """
    parser = RunParser(
        fork_threshold_tokens=fork_threshold_tokens,
        branches=branches,
        honor_mask_sample=honor_mask_sample,
        max_body_bytes=max_body_bytes,
    )
    parser.feed(_encode(body) if isinstance(body, str) else body)
    return parser.finish()


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def _judge(parsed: Parsed, *, honor_mask_sample: bool) -> Rollout:
    """A 200, judged in the order in which `Outcome` lists what it can be."""
    rows = [TrainingRow(*row, parsed.rollout_id, len(parsed.turns)) for row in parsed.rows]
    if failure := _agent_failure(parsed):
        return Rollout("agent_failure", reason=failure, parsed=parsed)
    if honor_mask_sample and (place := _mask_sample(parsed)):
        return Rollout(
            "masked", reason=f"the environment set {place}: do not train on it", unscored_rows=rows, parsed=parsed
        )
    if not rows:
        return Rollout("no_tokens", reason=_no_tokens(parsed), parsed=parsed)
    reward = parsed.members.get("reward")
    number = as_number(reward)
    if number is None or not math.isfinite(number):
        reason = _what_is(parsed.members, "reward", "reward")
        return Rollout("no_reward", reason=reason, unscored_rows=rows, parsed=parsed)
    return Rollout("ok", reward=number, rows=rows, parsed=parsed)


def _agent_failure(parsed: Parsed) -> str | None:
    members, response = parsed.members, parsed.response
    for flag in ("_ng_failure_class", "_ng_failure_terminal"):
        if members.get(flag):
            return f"the agent reports a failure: {flag} is {_short(members[flag])}{_server_error(members)}"
    if not members and not parsed.residual.lstrip().startswith(b"{"):
        return f"the answer is {_short(decode(parsed.residual))}, not an object"
    if not members.begins_with("response", b"{"):
        return f"{_what_is(members, 'response', '`response`')}, not an object{_server_error(members)}"
    if response.get("error") is not None:
        return f"response.error is {_short(response['error'])}"
    if response.get("status") in ("failed", "cancelled"):
        return f"response.status is {_short(response['status'])}"
    if not response.begins_with("output", b"["):
        return f"{_what_is(response, 'output', 'response.output')}, not a list"
    return None


def _what_is(members: Members, key: str, place: str) -> str:
    return f"{place} is {_short(members[key])}" if key in members else f"there is no {place}"


def _server_error(members: Members) -> str:
    return f"; error: {_short(members['error'])}" if members.get("error") is not None else ""


def _mask_sample(parsed: Parsed) -> str | None:
    """Where `mask_sample` is set, if it is."""
    config = parsed.members.get("instance_config") if parsed.members.begins_with("instance_config", b"{") else {}
    for place, flag in (
        ("mask_sample", parsed.members.get("mask_sample")),
        ("instance_config.mask_sample", config.get("mask_sample") if isinstance(config, dict) else None),
    ):
        if flag is True or flag == "true" or (isinstance(flag, (int, float)) and flag != 0):
            return place
    return None


def _no_tokens(parsed: Parsed) -> str:
    drift = Drift(**parsed.drift)
    if parsed.turns:
        generated = sum(turn[2] for turn in parsed.turns)
        if drift.discarded_tokens == 0:
            return f"none of the {generated} generated tokens has a usable logprob"
        return (
            f"all {generated} generated tokens are lost: realigns discarded {drift.discarded_tokens}, "
            f"{drift.unusable_tokens} have no usable logprob; fork_threshold_tokens=0 discards none"
        )
    if parsed.defects:
        return f"no item has sound token ids: {_defects_in_words(parsed.defects)}"
    response = parsed.response
    facts = (
        f"items: {_item_types(response)}; "
        f"status {_short(response.get('status'))}, incomplete_details {_short(response.get('incomplete_details'))}, "
        f"usage {_short(response.get('usage'))}"
    )
    if parsed.was_cut_at_once():
        return f"the response was cut before its first token: the context was too long for the first call ({facts})"
    return (
        "no item carries token ids: set return_token_id_information: true on NeMo Gym's model server, and let no proxy "
        f"strip the fields ({facts})"
    )


def _item_types(response: Members) -> str:
    if response.size("output") > _TYPES_WITHIN_BYTES:
        return f"{response.size('output')} bytes of them"
    types = Counter(
        str(item.get("type", "message")) if isinstance(item, dict) else type(item).__name__
        for item in response["output"]
    )
    return ", ".join(f"{count} {kind}" for kind, count in types.items()) or "none"


def _defects_in_words(defects: Iterable[tuple[int, str | None, str, str]]) -> str:
    told = [f"item {item}: {detail}" for item, _, _, detail in defects]
    return "; ".join(told[:3]) + (f"; and {len(told) - 3} more" if len(told) > 3 else "")


def _short(value: Any, limit: int = 200) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
