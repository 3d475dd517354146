"""What the loop and the worker take over from TRL's classes: their hooks, the rows, the versions, the heartbeat."""

import asyncio
import inspect
import itertools
import json
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import IterableDataset
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, RolloutSample

import turnloom
from trl_loops import ONE_TURN, answering, dataset_of, make_loop, make_tokenizer, running, scored
from trl_workers import make_worker
from turnloom.integrations.nemo_gym import _settings, _trl_version
from turnloom.integrations.nemo_gym._trl import AsyncGRPOConfig, AsyncRolloutWorker
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop, NemoGymRolloutWorker
from turnloom.testing import AgentCall, gym_answer
from turnloom.testing.cpu import cpu_training

TRL_LOOP = NemoGymRolloutLoop.__mro__[1]
CLASSES = {cls.__name__: cls for cls in (TRL_LOOP, AsyncRolloutWorker, RolloutGroup, RolloutSample)}

# Hooks


@pytest.mark.parametrize(
    ("owner", "hook"), [(owner, hook) for owner, hooks in _trl_version._HOOKS.items() for hook in hooks]
)
def test_a_trl_that_lacks_one_hook_is_refused_by_its_name(owner: str, hook: str) -> None:
    others = {name: None for name in _trl_version._HOOKS[owner] if name != hook}
    without = type(owner, (), others)
    with pytest.raises(_trl_version.UnsupportedTrl, match=rf"lacks what turnloom builds on: {owner}\.{hook}\. Install"):
        _trl_version.check_trl_hooks(without)
    assert hasattr(CLASSES[owner], hook)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(NemoGymRolloutLoop, TRL_LOOP), (NemoGymRolloutWorker, AsyncRolloutWorker)]
)
def test_whatever_is_overridden_is_known_as_a_hook(ours: type, theirs: type) -> None:
    own = {name for cls in ours.__mro__[: ours.__mro__.index(theirs)] for name in vars(cls)}
    overridden = {name for name in own if hasattr(theirs, name) and not hasattr(object, name)}
    overridden -= {"__module__", "__dict__", "__weakref__"}
    assert overridden
    assert overridden <= set(_trl_version._HOOKS[theirs.__name__])


# The worker


def test_the_worker_is_trls_own_kind_so_that_a_checkpoint_knows_the_datasets_position() -> None:
    with cpu_training():
        worker = make_worker(queue_maxsize=7, child_ready_timeout=9)
    assert isinstance(worker, AsyncRolloutWorker)
    assert worker._loop_kwargs["dataset_start_index"] == 0
    assert type(worker._loop_kwargs) is dict, "the trainer writes into it"
    wanted = set(RolloutWorkerProtocol.__annotations__) | {
        name for name in vars(RolloutWorkerProtocol) if not name.startswith("_")
    }
    assert {"rollout_buffer", "metrics_queue", "start", "stop", "update_model_version", "check_health"} <= wanted
    assert all(hasattr(worker, name) for name in wanted)
    assert worker.rollout_buffer._maxsize == 7
    assert worker.metrics_queue._maxsize == 4096
    worker.stop()  # which was never started


def test_the_worker_says_that_trl_asks_for_vllm() -> None:
    with pytest.raises(ImportError, match="pip install vllm"):
        make_worker()


def test_what_cannot_be_sent_to_the_process_is_named() -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"responses_create_params": {"input": "hi"}}]))
    with cpu_training():
        worker = make_worker(dataset=stream)
    with pytest.raises(turnloom.ConfigError, match=r"(?s)dataset=.* cannot be sent to the worker's process"):
        worker.start()
    worker.stop()


def test_without_a_word_the_model_server_is_where_trl_looks_for_it() -> None:
    in_config = AsyncGRPOConfig.__dataclass_fields__["vllm_server_base_url"].default
    in_worker = inspect.signature(TRL_LOOP).parameters["vllm_server_url"].default
    assert in_config == in_worker == _settings.MODEL_SERVER_URL


# The loop


def test_rows_come_in_order_each_for_a_whole_group_and_over_again() -> None:
    rows = dataset_of({}, {}, {})
    loop = make_loop({"math": "http://127.0.0.1:9"}, rows, num_generations=2, dataset_start_index=4)
    taken = [(group_id, row["number"]) for group_id, row in itertools.islice(loop._repeat_iterator(), 10)]
    loop._loop.close()
    assert taken == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 0), (2, 0), (3, 1), (3, 1), (4, 2), (4, 2)]


async def test_a_group_has_the_version_of_its_first_dispatch() -> None:
    gate = asyncio.Event()

    async def behave(call: AgentCall) -> None:
        await gate.wait()
        await call.answer(gym_answer(await call.row(), turns=ONE_TURN))

    version = SimpleNamespace(value=1)
    async with running(behave, dataset_of({}), model_version_value=version) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        version.value = 2
        gate.set()
        samples = await run.samples(6)
    assert [sample.model_version for sample in samples] == [1, 1, 1, 2, 2, 2]


def tokenizer_with(**attributes: Any) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    for name, value in attributes.items():
        setattr(tokenizer, name, value)
    return tokenizer


@pytest.mark.parametrize(
    "attributes",
    [
        {"chat_template": None},
        {"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"},
        {"chat_template": qwen3_chat_template},
        {"response_schema": {"type": "object"}},
        {"response_template": {"mine": 1}},
        {"pad_token": None, "eos_token": None},
    ],
)
async def test_any_tokenizer_will_do(attributes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with running(
            answering(scored(1.0)), dataset_of({}), processing_class=tokenizer_with(**attributes), eos_token_ids=[]
        ) as run:
            assert len(await run.samples(3)) == 3
    assert run.loop.chat_template is None
    assert run.loop.tokenizer.response_template == attributes.get("response_template", {})


# The heartbeat


class Heartbeat:
    """The value that the loop writes its time into, and the trainer looks at."""

    def __init__(self) -> None:
        self._value = 0.0
        self._beats = 0
        self._beat = asyncio.Event()

    @property
    def value(self) -> float:
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        self._value = value
        self._beats += 1
        self._beat.set()

    async def beats(self, number: int) -> None:
        """Wait for so many more."""
        wanted = self._beats + number
        while self._beats < wanted:
            self._beat.clear()
            await self._beat.wait()


async def test_the_heart_beats_while_no_rollout_ends() -> None:
    async def silent(call: AgentCall) -> None:
        await call.body()
        await call.gone()

    heartbeat = Heartbeat()
    async with running(silent, dataset_of({}), heartbeat_value=heartbeat) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        await heartbeat.beats(10)
        assert abs(time.time() - heartbeat.value) < 60, "the time of day, which both processes know"
        assert run.agent.open_connections == 3
        assert run.loop.rollout_buffer.empty()


async def test_the_heart_beats_in_the_middle_of_huge_answers() -> None:
    heartbeat = Heartbeat()
    ids = list(range(100, 100 + 50_000))

    async def behave(call: AgentCall) -> None:
        turns = [(ids[: 10 + 2_000 * n], [n], [-0.5]) for n in range(1, 20)]
        body = json.dumps(gym_answer(await call.row(), turns=turns)).encode()
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 1_000_000):
            await call.send(body[start : start + 1_000_000])
            if start < 3_000_000:
                await heartbeat.beats(3)

    async with running(behave, dataset_of({}), heartbeat_value=heartbeat) as run:
        samples = await run.samples(3)
    assert all(len(sample.input_ids) > 30_000 for sample in samples)
