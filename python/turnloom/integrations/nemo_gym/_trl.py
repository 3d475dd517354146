"""TRL's asynchronous trainer: the only file that imports TRL, and all it does is translate.

What is known of rollouts, groups, failures and metrics stands in `turnloom._groups` and `turnloom._metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from turnloom._client import GymClient
from turnloom._groups import (
    DenseIds,
    GroupPolicy,
    GroupRunner,
    check_advantages,
    check_rows,
    only_members,
    positions,
)
from turnloom._gym import checked_sampling
from turnloom._metrics import Ledger, reports
from turnloom.integrations.nemo_gym._printing import printable
from turnloom.integrations.nemo_gym._process import (
    EndsWell,
    collect_garbage_rarely,
    leave_interrupts_to_the_trainer,
    leave_unread,
    log_to_stderr,
    stop_when_told,
)
from turnloom.integrations.nemo_gym._settings import (
    MODEL_SERVER_URL,
    check_it_crosses,
    check_names,
    check_settings,
    check_tokenizer,
    client_settings,
    eos_token_ids,
    group_settings,
    known_settings,
    refuse_adapter,
    reward_functions,
    settings_from_config,
)
from turnloom.integrations.nemo_gym._trl_version import check_trl_hooks, check_trl_version

check_trl_version()

from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # noqa: E402
from trl.experimental.async_grpo.async_rollout_worker import (  # noqa: E402
    AsyncRolloutWorker,
    RolloutGroup,
    RolloutSample,
    TrainingSequence,
    _AsyncRolloutLoop,
)
from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences as chain_to_sequences  # noqa: E402
from trl.trainer.utils import print_prompt_completions_sample  # noqa: E402

check_trl_hooks(_AsyncRolloutLoop, AsyncRolloutWorker, RolloutGroup, RolloutSample)

__all__ = [
    "AsyncGRPOConfig",
    "AsyncGRPOTrainer",
    "AsyncRolloutWorker",
    "NemoGymRolloutLoop",
    "NemoGymRolloutWorker",
    "chain_to_sequences",
]

RewardFuncs = Callable[..., Any] | Sequence[Callable[..., Any]]

WATCH_S: Final = 0.5
"""How often the loop looks at what changes by itself: the policy's version, the agents' queues."""

_FAILED: Final[tuple[list[Any], list[int], list[Any], int, int, None]] = ([], [], [], 0, 0, None)
"""TRL's tuple for a rollout that cannot be scored."""


class NemoGymRolloutLoop(_AsyncRolloutLoop):  # type: ignore[misc]
    """The loop in the worker's process: each rollout is one `/run` of a NeMo Gym agent.

    Args:
        agent_servers: by the agents' names a URL each, or a list of URLs; a row without `agent_ref.name` goes to the
            first agent.
        run_timeout: seconds without data after which a rollout is given up (stock NeMo Gym sends nothing until a run
            is over, so there it bounds the whole run).
        **kwargs: what TRL's loop takes, and the settings of `NemoGymRolloutWorker`.
    """

    _provides_rollout_reward = True

    def __init__(self, agent_servers: dict[str, str | list[str]], run_timeout: float = 300.0, **kwargs: Any) -> None:
        train_turn_fn = kwargs.pop("train_turn_fn", None)
        self._prometheus_port = kwargs.pop("prometheus_port", None)
        gym_settings = {name: kwargs.pop(name) for name in client_settings(kwargs)}
        self._prints_samples = kwargs.pop("log_completions", False)
        policy = GroupPolicy(**{name: kwargs.pop(name) for name in group_settings(kwargs)})
        leave_interrupts_to_the_trainer()
        log_to_stderr()
        collect_garbage_rarely()
        # TRL would refuse a chat template that it cannot parse responses of; here nothing is parsed.
        tokenizer = kwargs["processing_class"]
        if getattr(tokenizer, "response_template", None) is None:
            tokenizer.response_template = {}
        super().__init__(**kwargs)
        self.reward_func_names.append("nemo_gym")
        self._gym = GymClient(
            agent_servers, run_timeout=run_timeout, fork_threshold_tokens=self._fork_threshold_tokens, **gym_settings
        )
        self._dense_ids = DenseIds()
        self._ledger = Ledger()
        self._runner = GroupRunner(
            self._gym,
            self._ledger,
            agents=tuple(agent_servers),
            group_size=self.num_generations,
            slots=self.max_inflight_tasks,
            policy=policy,
            train_turn_fn=train_turn_fn,
            deadline=gym_settings.get("deadline"),
            sampling={"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p},
        )
        self._positions = positions(self._dataset_iter, self.dataset, start=kwargs.get("dataset_start_index", 0))

    async def _run_loops(self, stop_event: asyncio.Event) -> None:
        """Generate and score until `stop_event` is set, or one of the loops fails; runs in flight are given up."""
        stop_when_told(stop_event)
        async with self._gym, reports(self._ledger, lambda: self._gym.agents, prometheus_port=self._prometheus_port):
            loops = [
                asyncio.create_task(self._generate_loop(stop_event=stop_event)),
                asyncio.create_task(self._score_loop(stop_event=stop_event)),
                asyncio.create_task(self._watch_until(stop_event)),
            ]
            try:
                await asyncio.gather(*loops)
            finally:
                stop_event.set()
                await asyncio.gather(*loops, return_exceptions=True)
                self._ledger.metrics.push(self._metrics_queue, self._gym.agents)
        leave_unread(self.rollout_buffer, self._metrics_queue)

    async def _watch_until(self, stop_event: asyncio.Event) -> None:
        while not stop_event.is_set():
            self._runner.look(self.model_version)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop_event.wait(), WATCH_S)
        self._runner.stop()

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for group_id, (position, row) in enumerate(self._positions):
            opened = self._runner.open(group_id, row, position=position, version=self.model_version)
            yield from [(group_id, opened)] * self.num_generations

    async def _generate_one(
        self, prompt: Any, tool_dict: Any = None, tools: Any = None, group_id: int = 0
    ) -> tuple[list[Any], list[int], list[Any], int, int, float | None]:
        rollout = await self._runner.run(group_id)
        if rollout is None or rollout.outcome != "ok":
            return _FAILED
        ids = rollout.generated_ids()
        self._push_rollout_metrics(
            turns=len(rollout.turns),
            sequences=len(rollout.rows),
            completion_ids=ids,
            tally={name: float(count) for name, count in asdict(rollout.drift).items()},
            loop_exhausted=False,
            duration_s=rollout.timing.total_s,
        )
        sequences = [
            TrainingSequence(row.input_ids, row.completion_mask, row.old_log_probs, row.rollout_id)
            for row in rollout.rows
        ]
        return rollout.messages(), ids, sequences, 0, 0, rollout.reward

    async def _score_group(self, group: Any) -> list[Any]:
        """Score those members alone that have a reward: the others belong to no mean, nor to a reward function."""
        is_wanted = self._runner.close(group.group_id)
        kept = [index for index, reward in enumerate(group.rollout_rewards) if is_wanted and reward is not None]
        samples: list[Any] = await super()._score_group(only_members(group, kept)) if kept else []
        check_advantages(samples)
        number = self._dense_ids.number(group.group_id, has_rows=bool(samples))
        for sample in samples:
            sample.group_id = number
        if self._prints_samples and samples:
            self._print(samples)
        self._ledger.metrics.push(self._metrics_queue, self._gym.agents)
        return samples

    def _print(self, samples: list[Any]) -> None:
        print_prompt_completions_sample(
            prompts=[printable(sample.prompt) for sample in samples],
            completions=[printable(sample.completion) for sample in samples],
            rewards={"reward": [sample.metrics["reward"] for sample in samples]},
            advantages=[sample.advantage for sample in samples],
            step=self._total_groups_scored,
            num_samples=self.num_completions_to_print,
        )


class NemoGymRolloutWorker(EndsWell, AsyncRolloutWorker):  # type: ignore[misc]
    """What `AsyncGRPOTrainer(rollout_worker=…)` takes to train on NeMo Gym. Most easily made by `from_config`.

    Everything crosses into another process, so it must pickle: functions are those of a module.

    Args:
        agent_servers: by the agents' names a URL each, such as `{"math": "http://127.0.0.1:8001"}`, or a list of URLs
            where several servers do the same work.
        dataset: its rows are NeMo Gym's, as columns or as a JSON string in the column `nemo_gym_row`.
        processing_class: the tokenizer; it needs no chat template.
        max_tokens: bounds every model call.
        reward_funcs: rewards added to the agent's own; a rollout that failed reaches none of them. NaN is as None; an
            infinite one ends the run, since the group's advantages would all be NaN.
        run_timeout: seconds without data after which a rollout is given up; 300 by default.
        deadline: seconds after which a rollout is given up in any case; waiting for a slot of `max_concurrency` is not
            counted. By default there is none.
        max_concurrency: how many requests each agent may have in flight; by default there is no bound. A rollout that
            waits keeps its place in TRL's `max_inflight_tasks`: set that to the sum over the agents, at least.
        branches: which open rows a prompt may continue, as in `RunParser`; "linear" by default.
        honor_mask_sample: whether the environment's `mask_sample` keeps a rollout out of the training; it does by
            default.
        train_turn_fn: a function that says of a `Turn` whether it is trained; all are by default.
        on_failure: "drop", the default, leaves a failed rollout out of its group. "retry" runs a new one in its place
            after an `http_error` of status 500 and above, `unreachable`, `agent_failure` or `malformed`. After a
            `timeout` or `disconnected` the agent may still be at work on it, so that the new one waits until the
            `deadline` of the old one is over; without a `deadline` there is none.
        max_attempts: how many rollouts a member of a group may have with "retry", the first included; 3 by default.
        max_staleness: by how many versions the policy may have moved on before what is in flight of a group is
            cancelled; by default nothing is. The trainer's own `max_staleness` drops what comes too late.
        record_dir: a folder in which every rollout is recorded, as in `GymClient`; by default none is.
        record_max_bytes: bounds that folder, of which the oldest files go; 16 GiB by default.
        prometheus_port: where the process serves its metrics to Prometheus (`http://<host>:<port>/metrics`); by default
            it does not. It needs the extra `prometheus`.
        **kwargs: what TRL's worker takes: `num_generations`, `temperature`, `top_p`, `max_inflight_tasks`,
            `queue_maxsize`, `fork_threshold_tokens`, `log_completions` and the like.

    Raises:
        ConfigError: a row that no agent could take, or a setting that is unknown, out of its range, or such that no
            agent could follow it.
    """

    _loop_cls = NemoGymRolloutLoop

    def __init__(
        self,
        agent_servers: dict[str, str | list[str]],
        *,
        dataset: Any,
        processing_class: Any,
        max_tokens: int,
        reward_funcs: RewardFuncs = (),
        **kwargs: Any,
    ) -> None:
        check_names(kwargs, known_settings(AsyncRolloutWorker, _AsyncRolloutLoop))
        check_settings(kwargs)
        GroupPolicy(**group_settings(kwargs))  # raises for what it cannot use, as GymClient below
        checked_sampling(
            max_tokens=max_tokens, temperature=kwargs.get("temperature", 1.0), top_p=kwargs.get("top_p", 1.0)
        )
        check_tokenizer(processing_class)
        rewards = reward_functions(reward_funcs)
        threshold = {name: kwargs[name] for name in ("fork_threshold_tokens",) if name in kwargs}
        GymClient(agent_servers, **client_settings(kwargs), **threshold)
        check_rows(dataset, agent_servers)
        kwargs.setdefault("model_name", getattr(processing_class, "name_or_path", ""))
        kwargs.setdefault("eos_token_ids", eos_token_ids(processing_class))
        super().__init__(
            agent_servers=dict(agent_servers),
            dataset=dataset,
            processing_class=processing_class,
            max_tokens=max_tokens,
            reward_funcs=rewards,
            **kwargs,
        )

    @classmethod
    def from_config(
        cls,
        config: AsyncGRPOConfig,
        *,
        agent_servers: dict[str, str | list[str]],
        dataset: Any,
        processing_class: Any,
        reward_funcs: RewardFuncs = (),
        generation_config: Any = None,
        **kwargs: Any,
    ) -> NemoGymRolloutWorker:
        """The worker with each setting that it shares with the trainer taken from the trainer's config.

        Args:
            config: the trainer's.
            generation_config: the model's, for the ids that end a generation beside the tokenizer's.
            **kwargs: as for the class; they win over the config.
        """
        settings = settings_from_config(config)
        settings["eos_token_ids"] = eos_token_ids(processing_class, generation_config)
        return cls(
            agent_servers,
            dataset=dataset,
            processing_class=processing_class,
            reward_funcs=reward_funcs,
            **{**settings, **kwargs},
        )

    def start(self) -> None:
        """Start the process.

        Raises:
            ConfigError: the trainer sends its weights as an adapter, which the agents' model would not use; or a
                setting cannot be sent to the process.
        """
        refuse_adapter(self._loop_kwargs.get("vllm_server_url", MODEL_SERVER_URL), f"trl-policy-v{self.model_version}")
        try:
            super().start()
        except TypeError:  # TRL speaks of the functions, whichever setting it is
            for name, value in self._loop_kwargs.items():
                check_it_crosses(name, value)
            raise


# Where a user finds them, and pickle too.
for _cls in (NemoGymRolloutLoop, NemoGymRolloutWorker):
    _cls.__module__ = "turnloom.integrations.nemo_gym.rollout"
