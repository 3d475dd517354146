"""What a rollout tells of the agent that it came from, finding by finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from turnloom._rollout import Outcome, Rollout

Verdict = Literal["good", "doubtful", "bad", "not looked at"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the list."""

    name: str
    verdict: Verdict
    detail: str
    """What was seen."""
    advice: str = ""
    """What to do; empty for what is good."""


_UNANSWERED: Final[Mapping[Outcome, str]] = {
    "unreachable": "Is the server up, and this its host and port as seen from here?",
    "timeout": "Does a server behind the agent hang (policy server, resources server)? Else give it more time.",
    "disconnected": "Look at the agent's own log: it, or a proxy before it, ended the connection.",
    "http_error": "Look at the agent's own log. 422 is about the row, 404 about the URL, 500 about what is behind.",
}
_NO_IDS: Final = (
    "Set return_token_id_information: true on NeMo Gym's model server, and let no proxy strip prompt_token_ids, "
    "generation_token_ids and generation_log_probs from the items."
)


def findings_of(rollout: Rollout, headers: Mapping[str, str], *, run_timeout: float | None) -> Iterator[Finding]:
    """All that one rollout tells, in the order in which it matters.

    Args:
        headers: of the answer; empty where none came.
        run_timeout: what the rollout was given.
    """
    yield answered(rollout, run_timeout)
    if rollout.outcome in _UNANSWERED:
        return
    yield _framing(headers)
    yield _cookies(headers)
    yield _json(rollout)
    if rollout.outcome == "malformed":
        return
    yield _response(rollout)
    yield _token_ids(rollout)
    if rollout.turns:
        yield _log_probs(rollout)
        yield _drift(rollout)
    yield _reward(rollout)


def answered(rollout: Rollout, run_timeout: float | None) -> Finding:
    """Whether an answer of status 200 came, and in time."""
    name, timing = "answer", rollout.timing
    if rollout.outcome in _UNANSWERED:
        return Finding(name, "bad", rollout.reason or rollout.outcome, _UNANSWERED[rollout.outcome])
    took = f"HTTP 200 after {timing.first_byte_s:.1f} s; {timing.body_bytes:,} bytes in {timing.download_s:.2f} s"
    if run_timeout is not None and timing.first_byte_s > run_timeout / 2:
        return Finding(name, "doubtful", took, f"This is more than half of run_timeout={run_timeout:g}: raise it.")
    return Finding(name, "good", took)


def _framing(headers: Mapping[str, str]) -> Finding:
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        advice = "Switch it off at the agent or the proxy: within a cluster it costs more time than it saves."
        return Finding("compression", "doubtful", f"the answer is compressed ({encoding})", advice)
    return Finding("compression", "good", "none")


def _cookies(headers: Mapping[str, str]) -> Finding:
    sent = "set-cookie" in headers
    return Finding(
        "cookies", "good", "one was set, and is never sent back: a session is one rollout's" if sent else "none"
    )


def _json(rollout: Rollout) -> Finding:
    if rollout.outcome == "malformed":
        advice = "Look at what stands at that place: an agent's error page, or a proxy that cuts or rewrites answers?"
        return Finding("JSON", "bad", rollout.reason or "", advice)
    return Finding("JSON", "good", "sound")


def _response(rollout: Rollout) -> Finding:
    name = "response"
    if rollout.outcome == "agent_failure":
        return Finding(name, "bad", rollout.reason or "", "The agent itself reports a failure: look at its log.")
    items = len(rollout.output)
    if rollout.truncated:
        advice = "Raise max_tokens, or the context length of the policy server, if the task needs more."
        return Finding(name, "doubtful", f"{items} items, and the response says that it was cut", advice)
    return Finding(name, "good", f"{items} items")


def _token_ids(rollout: Rollout) -> Finding:
    name, turns = "token ids", rollout.turns
    if rollout.defects:
        first = rollout.defects[0]
        seen = (
            f"{len(turns)} sound turns, {len(rollout.defects)} defects; the first: item {first.item_index}, "
            f"{first.field or 'the whole item'}: {first.code} ({first.detail})"
        )
        advice = (
            "Something between the policy server and the agent changes the ids; a defect takes its turn from training."
        )
        return Finding(name, "doubtful" if turns else "bad", seen, advice)
    if not turns:
        return Finding(name, "bad", rollout.reason or "no item has token ids", _NO_IDS)
    generated = sum(turn.output_tokens for turn in turns)
    return Finding(
        name, "good", f"{len(turns)} turns, {generated:,} generated tokens, prompts to {turns[-1].prompt_tokens:,}"
    )


def _log_probs(rollout: Rollout) -> Finding:
    name, drift = "logprobs", rollout.drift
    generated = sum(turn.output_tokens for turn in rollout.turns)
    if drift.unusable_tokens:
        seen = f"{drift.unusable_tokens:,} of {generated:,} cannot be used (null, not finite, or −9999)"
        advice = "Those tokens are not trained. Does the policy server sample with logprobs, and return them unrounded?"
        return Finding(name, "bad" if drift.unusable_tokens == generated else "doubtful", seen, advice)
    if drift.positive_logprobs:
        advice = "A logprob above 0 is no logprob: does the policy server return scores of another kind?"
        return Finding(name, "doubtful", f"{drift.positive_logprobs:,} of {generated:,} are above 0", advice)
    return Finding(name, "good", f"all {generated:,} finite")


def _drift(rollout: Rollout) -> Finding:
    name, drift = "drift", rollout.drift
    rows = rollout.rows or rollout.unscored_rows
    trained = sum(int(row.completion_mask.sum()) for row in rows)
    costs = f"{_number(len(rows), 'row')}, {trained:,} trained tokens, {drift.discarded_tokens:,} discarded"
    if not drift.realign and not drift.fork:
        return Finding(name, "good", f"none in {_number(drift.transitions, 'transition')}: {costs}")
    seen = f"of {_number(drift.transitions, 'transition')} {drift.realign} realigned and {drift.fork} forked: {costs}"
    advice = (
        "The prompts do not repeat what was generated: look at why with `turnloom inspect`. fork_threshold_tokens=0 "
        "discards nothing, at the price of more rows; sub-agents that take turns want branches='best'."
    )
    return Finding(name, "doubtful", seen, advice)


def _reward(rollout: Rollout) -> Finding:
    name = "reward"
    if rollout.outcome == "no_reward":
        return Finding(
            name, "bad", rollout.reason or "", "Without a number no rollout is scored: look at the verifier."
        )
    if rollout.outcome == "masked":
        advice = "The environment asks not to train on this rollout; honor_mask_sample=False trains on it all the same."
        return Finding(name, "doubtful", rollout.reason or "", advice)
    if rollout.reward is None:
        return Finding(name, "not looked at", "without tokens to train no reward counts")
    more = f"; {', '.join(rollout.metrics)} beside it" if rollout.metrics else ""
    return Finding(name, "good", f"{rollout.reward:g}{more}")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
