"""Ends a run that can only fail."""

from __future__ import annotations

from collections import Counter
from typing import Final

from turnloom._exceptions import AgentHTTPError, ConfigError
from turnloom._rollout import Outcome, Rollout

GROUPS_WITHOUT_SCORE: Final = 8
"""After so many groups in a row, and no scored rollout among them, there is no use in going on."""

_ADVICE: Final[dict[Outcome, str]] = {
    "malformed": "its URL in agent_servers, and what stands between: the answer is not NeMo Gym's JSON",
    "agent_failure": "the agent's own log, and that of its model server",
    "masked": "the environment, which asks not to train on its rollouts; honor_mask_sample=False trains them anyway",
    "no_tokens": "return_token_id_information: true on NeMo Gym's model server, and the context length",
    "no_reward": "the environment's verifier: the answer needs a finite number as `reward`",
    "http_error": "the agent's own log",
    "timeout": "run_timeout and deadline, which have to bound a whole run, and the load of the agent's model server",
    "unreachable": "its URL in agent_servers, and whether it is up",
    "disconnected": "the agent's own log and its memory, and the idle time of any proxy between",
}

_ADVICE_BY_STATUS: Final = {
    401: "the user and password in its URL in agent_servers",
    403: "the user and password in its URL in agent_servers",
    404: "its URL in agent_servers: there is no agent",
    405: "its URL in agent_servers: there is no agent",
    422: "the rows of the dataset, in which it misses or mistakes a field; the message says which",
}


class Breaker:
    """Counts groups in a row without a scored rollout, and what became of their rollouts.

    Groups that fail together have one cause, such as an agent that was started anew. So of those that were open when
    the first of the row failed no other counts: the row grows by groups that began after it.
    """

    def __init__(self) -> None:
        self._tripped = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._groups = 0
        self._newest_at_first = -1
        self._failures: dict[str, Counter[tuple[Outcome, int | None]]] = {}
        self._latest: dict[str, str] = {}

    def enter(self, rollout: Rollout) -> None:
        """Enter one rollout, before its group ends."""
        if rollout.outcome == "ok":
            self._start_anew()
            return
        agent = str(rollout.agent)
        status = rollout.error.status if isinstance(rollout.error, AgentHTTPError) else None
        self._failures.setdefault(agent, Counter())[rollout.outcome, status] += 1
        self._latest[agent] = rollout.reason or rollout.outcome

    def group_failed(self, group_id: int, *, newest: int) -> None:
        """Enter a group that has ended without a scored rollout.

        Args:
            group_id: groups are numbered in the order in which they begin.
            newest: the newest group that has begun.

        Raises:
            ConfigError: it was one too many; raised once.
        """
        if self._groups and group_id <= self._newest_at_first:
            return
        if not self._groups:
            self._newest_at_first = newest
        self._groups += 1
        if self._groups >= GROUPS_WITHOUT_SCORE and not self._tripped:
            self._tripped = True
            agents = "\n".join(self._told(agent) for agent in sorted(self._failures))
            raise ConfigError(
                f"{GROUPS_WITHOUT_SCORE} groups in a row ended without one scored rollout, so the run was stopped. "
                f"What became of their rollouts:\n{agents}"
            )

    def _told(self, agent: str) -> str:
        failures = self._failures[agent]
        counts = ", ".join(
            f"{count} {outcome}{f' {status}' if status else ''}" for (outcome, status), count in failures.most_common()
        )
        (outcome, status), _ = failures.most_common(1)[0]
        advice = _ADVICE_BY_STATUS.get(status or 0) or _ADVICE[outcome]
        return f"  agent {agent!r}: {counts}. The latest: {self._latest[agent]}. Look at {advice}."
