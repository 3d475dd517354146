"""The loop and the worker for TRL, against a fake agent, with TRL's own scoring; no trainer yet."""

import asyncio
import importlib.metadata
import json
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from accelerate import PartialState
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import turnloom
from turnloom.integrations.nemo_gym import _settings, _trl_version, rollout
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop, NemoGymRolloutWorker
from turnloom.testing import AgentCall, FakeAgent, gym_answer
from turnloom.testing.cpu import cpu_training

PartialState(cpu=True)  # TRL's log needs it; in the worker's process TRL makes it

Turns = list[tuple[list[int], list[int], list[Any]]]
ONE_TURN: Turns = [([1, 2], [3, 4], [-0.5, -0.25])]
TWO_TURNS: Turns = [*ONE_TURN, ([1, 2, 3, 4, 5], [6], [-1.0])]
TWO_ROWS: Turns = [*ONE_TURN, ([7, 8], [9], [-1.0])]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer without a chat template."""
    words = Tokenizer(WordLevel({"<pad>": 0, "<end>": 1, "word": 2}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def dataset_of(*rows: dict[str, Any]) -> Dataset:
    """Each row as a JSON string, with its number as a column of its own."""
    texts = [json.dumps({"responses_create_params": {"input": "hi"}, **row}) for row in rows]
    return Dataset.from_dict({"nemo_gym_row": texts, "number": list(range(len(rows)))})


def answering(*answers: Any) -> Callable[[AgentCall], Any]:
    """Each call gets the next answer, over and over; a function of the row makes one, an int is a status."""
    calls = iter(range(10**9))

    async def behave(call: AgentCall) -> None:
        row = await call.row()
        answer = answers[next(calls) % len(answers)]
        if callable(answer):
            answer = answer(row)
        if isinstance(answer, int):
            await call.answer("it broke", status=answer)
        else:
            await call.answer(answer)

    return behave


def scored(reward: float | None, turns: Turns = ONE_TURN, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: gym_answer(row, turns=turns, reward=reward, **more)


def make_loop(agents: dict[str, str], dataset: Any, **settings: Any) -> NemoGymRolloutLoop:
    return NemoGymRolloutLoop(
        agents,
        **{
            "model_name": "policy",
            "dataset": dataset,
            "reward_funcs": [],
            "processing_class": make_tokenizer(),
            "eos_token_ids": [1],
            "rollout_buffer": asyncio.Queue(),
            "model_version_value": SimpleNamespace(value=1),
            "heartbeat_value": SimpleNamespace(value=0.0),
            "failed_event": threading.Event(),
            "exception_info_queue": queue.Queue(),
            "metrics_queue": queue.Queue(),
            "num_generations": 3,
            "max_inflight_tasks": 3,
            "max_tokens": 64,
            **settings,
        },
    )


class Run:
    """A loop at work in this event loop, and the agent server that it asks."""

    def __init__(self, loop: NemoGymRolloutLoop, agent: FakeAgent) -> None:
        self.loop = loop
        self.agent = agent
        self.stop = asyncio.Event()
        self.work = asyncio.create_task(loop._run_loops(self.stop))

    async def samples(self, count: int) -> list[Any]:
        """The next samples that the trainer would get."""
        return [await self._one_sample() for _ in range(count)]

    async def _one_sample(self) -> Any:
        sample = asyncio.create_task(self.loop.rollout_buffer.get())
        await asyncio.wait({sample, self.work}, return_when=asyncio.FIRST_COMPLETED)
        if not sample.done():
            sample.cancel()
            await self.work  # raises
        return await sample


@asynccontextmanager
async def running(behave: Callable[[AgentCall], Any], dataset: Any, **settings: Any) -> AsyncIterator[Run]:
    """The loop at work within the block; what it raises comes out at the end."""
    async with FakeAgent(behave) as agent:
        run = Run(make_loop({"math": agent.url}, dataset, **settings), agent)
        try:
            yield run
        finally:
            run.stop.set()
            (error,) = await asyncio.gather(run.work, return_exceptions=True)
            run.loop._loop.close()
            run.loop._tool_pool.shutdown()
        if error is not None:
            raise error


def pushed(loop: NemoGymRolloutLoop) -> list[dict[str, Any]]:
    """What the metrics queue has got."""
    taken = []
    while not loop._metrics_queue.empty():
        taken.append(loop._metrics_queue.get_nowait())
    return taken


# From a row to samples


async def test_rows_become_samples_with_the_agents_reward() -> None:
    async with running(answering(scored(1.0, TWO_TURNS), scored(0.0), scored(0.0)), dataset_of({"a": 1})) as run:
        samples = await run.samples(3)
    best = max(samples, key=lambda sample: sample.advantage)
    assert best.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert best.completion_mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert best.old_log_probs.tolist() == [0, 0, -0.5, -0.25, 0, -1.0]
    assert [array.dtype for array in (best.input_ids, best.completion_mask, best.old_log_probs)] == [
        np.int64,
        np.int64,
        np.float32,
    ]
    assert best.input_ids.flags.writeable
    assert best.prompt == [{"role": "user", "content": "hi"}]
    assert [message["role"] for message in best.completion] == ["assistant", "assistant"]
    assert best.advantage == pytest.approx(2**0.5)
    assert best.metrics["reward"] == best.metrics["rewards/nemo_gym"] == 1.0
    assert {sample.group_id for sample in samples} == {0}
    pickle.loads(pickle.dumps(samples))


async def test_the_sampling_and_the_row_reach_the_agent_and_the_threshold_the_core() -> None:
    realign: Turns = [*ONE_TURN, ([1, 2, 3, 9], [6], [-1.0])]
    own = {"verifier": {"x": None}, "agent_ref": {"name": "math"}}
    settings = {"temperature": 0.7, "top_p": 0.9, "fork_threshold_tokens": 0}
    async with running(answering(scored(1.0, realign)), dataset_of(own), **settings) as run:
        samples = await run.samples(6)
        sent = await run.agent.calls[0].row()
    assert sent == {
        **own,
        "responses_create_params": {"input": "hi", "max_output_tokens": 64, "temperature": 0.7, "top_p": 0.9},
    }
    assert [sample.input_ids.tolist() for sample in samples[:2]] == [[1, 2, 3, 4], [1, 2, 3, 9, 6]]


async def test_rows_go_to_the_agents_they_name() -> None:
    async with (
        FakeAgent(answering(scored(1.0, ONE_TURN))) as math,
        FakeAgent(answering(scored(0.5, TWO_TURNS))) as code,
    ):
        agents = {"math": math.url, "code": code.url}
        run = Run(make_loop(agents, dataset_of({"agent_ref": {"name": "code"}}, {}), num_generations=1), math)
        samples = await run.samples(4)
        run.stop.set()
        await run.work
        run.loop._loop.close()
    assert {(len(sample.input_ids), sample.metrics["reward"]) for sample in samples} == {(4, 1.0), (6, 0.5)}
    assert ["agent_ref" in await call.row() for call in math.calls[:2]] == [False, False]
    assert [(await call.row())["agent_ref"]["name"] for call in code.calls[:2]] == ["code", "code"]


async def test_forks_share_the_advantage_and_the_group_of_their_rollout() -> None:
    async with running(
        answering(scored(1.0, TWO_ROWS), scored(0.0)), dataset_of({}), num_generations=2, max_inflight_tasks=2
    ) as run:
        samples = await run.samples(3)
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0, 1.0])
    assert {sample.group_id for sample in samples} == {0}
    assert samples[0].metrics is not samples[1].metrics


class Format:
    """1 for a completion of two messages, else 0, also for an empty one; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, completions: list[Any], **columns: Any) -> list[float]:
        self.asked.append({"completions": completions, **columns})
        return [float(len(completion) == 2) for completion in completions]

    __name__ = "format"


async def test_a_failed_member_belongs_to_no_mean_and_no_reward_function() -> None:
    format_reward = Format()
    answers = answering(scored(1.0, TWO_TURNS), scored(0.0), 500)
    async with running(answers, dataset_of({}, {}), reward_funcs=[format_reward]) as run:
        samples = await run.samples(2)
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0])
    assert samples[0].metrics["reward_std"] == pytest.approx(1.0)
    asked = format_reward.asked[0]
    assert {name: len(column) for name, column in asked.items()} == {
        "completions": 2,
        "prompts": 2,
        "completion_ids": 2,
        "nemo_gym_row": 2,
        "number": 2,
    }
    assert [] not in asked["completions"]
    assert sorted(asked["completion_ids"]) == [[3, 4], [3, 4, 6]]


@pytest.mark.parametrize(
    "failure",
    [500, scored(None), scored(float("nan")), scored(1.0, []), scored(1.0, mask_sample=True), lambda row: b"{"],
)
async def test_no_failure_becomes_a_reward_or_a_row(failure: Any) -> None:
    async with running(answering(scored(1.0), failure, scored(0.0)), dataset_of({})) as run:
        samples = await run.samples(2)
    assert sorted(sample.metrics["reward"] for sample in samples) == [0.0, 1.0]
    assert sorted(sample.advantage for sample in samples) == pytest.approx([-1.0, 1.0])


async def test_groups_that_fail_leave_no_hole_and_ask_no_reward_function() -> None:
    format_reward = Format()

    def by_number(row: dict[str, Any]) -> Any:
        return 500 if row["fails"] else gym_answer(row, turns=ONE_TURN, reward=1.0)

    rows = dataset_of({"fails": True}, {"fails": False}, {"fails": True}, {"fails": False}, {"fails": False})
    settings = {"num_generations": 2, "max_inflight_tasks": 2, "reward_funcs": [format_reward]}
    async with running(answering(by_number), rows, **settings) as run:
        samples = await run.samples(6)
    assert [sample.group_id for sample in samples] == [0, 0, 1, 1, 2, 2]
    assert all(len(asked["completions"]) == 2 for asked in format_reward.asked)


def later_turn(turn: turnloom.Turn) -> bool:
    return turn.item_index > 0


async def test_only_the_turns_wanted_are_trained() -> None:
    answers = answering(scored(1.0, TWO_TURNS), scored(0.0, ONE_TURN), scored(0.0, TWO_ROWS))
    async with running(answers, dataset_of({}), train_turn_fn=later_turn) as run:
        samples = sorted(await run.samples(2), key=lambda sample: -len(sample.input_ids))
    assert [(sample.input_ids.tolist(), sample.completion_mask.tolist()) for sample in samples] == [
        ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1]),
        ([7, 8, 9], [0, 0, 1]),
    ]
    # The member with nothing to train still counts in its group's mean.
    assert [sample.advantage for sample in samples] == pytest.approx([2**0.5, -(2**-0.5)])


async def test_a_prompt_is_filled_in_and_kept_where_there_is_one() -> None:
    rows = [
        {"responses_create_params": {"input": [{"role": "user", "content": "listed"}]}},
        {"responses_create_params": {"input": "hi"}, "prompt": [{"role": "user", "content": "mine"}]},
    ]
    async with running(answering(scored(1.0)), rows, num_generations=1, max_inflight_tasks=1) as run:
        samples = await run.samples(2)
        sent = await run.agent.calls[1].row()
    assert [sample.prompt[0]["content"] for sample in samples] == ["listed", "mine"]
    assert "prompt" not in sent


# Metrics


async def test_metrics_reach_the_trainer_in_its_shapes() -> None:
    answers = answering(scored(1.0, TWO_TURNS, total_run_time=2.0), scored(0.0), 500)
    async with running(answers, dataset_of({})) as run:
        await run.samples(2)
    ours: dict[str, list[Any]] = {}
    for put in pushed(run.loop):
        for name, value in put.items():
            assert isinstance(value, (float, tuple)), name
            ours.setdefault(name, []).append(value)
    assert {type(value) for values in ours.values() for value in values} == {float, tuple}
    assert all(len({type(value) for value in values}) == 1 for values in ours.values())
    assert {"rollout/turns_mean", "rollout/duration_s", "completions/mean_length"} <= ours.keys()
    rollouts = sum(ours["nemo_gym/rollouts_total"])
    assert (
        sum(ours["nemo_gym/outcome/ok_total"])
        + sum(ours["nemo_gym/outcome/http_error_total"])
        + sum(ours.get("nemo_gym/outcome/cancelled_total", []))
        == rollouts
    )
    assert sum(total for total, _ in ours["nemo_gym/env/math/total_run_time"]) == 2.0 * sum(
        count for _, count in ours["nemo_gym/env/math/total_run_time"]
    )
    for name in ("success_frac", "latency_s", "turns", "reward", "rows_per_rollout", "drift/clean_frac"):
        assert all(isinstance(value, tuple) for value in ours[f"nemo_gym/{name}"])
        assert f"nemo_gym/agent/math/{name}" in ours


async def test_a_full_metrics_queue_delays_our_numbers_and_loses_none() -> None:
    metrics_queue: queue.Queue[Any] = queue.Queue(maxsize=1)
    metrics_queue.put({})
    settings = {"num_generations": 1, "max_inflight_tasks": 1, "metrics_queue": metrics_queue}
    async with running(answering(scored(1.0)), dataset_of({}), **settings) as run:
        await run.samples(20)
        metrics_queue.get_nowait()
    sums = [put.get("nemo_gym/rollouts_total", 0.0) for put in pushed(run.loop)]
    run.loop._ledger.metrics.push(metrics_queue)
    sums += [put.get("nemo_gym/rollouts_total", 0.0) for put in pushed(run.loop)]
    assert sum(sums) == run.loop._ledger.metrics.counts()["nemo_gym/rollouts_total"] >= 20


# Ends


async def test_stopping_gives_up_what_is_in_flight() -> None:
    async def silent(call: AgentCall) -> None:
        await call.body()
        await call.gone()

    async with running(silent, dataset_of({})) as run:
        await run.agent.until(lambda agent: len(agent.calls) == 3)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert run.loop._ledger.metrics.counts() == {
        "nemo_gym/rollouts_total": 3,
        "nemo_gym/outcome/cancelled_total": 3,
    }
    assert run.loop.rollout_buffer.empty()


async def test_answers_without_ids_end_the_run_with_one_error() -> None:
    def without_ids(row: dict[str, Any]) -> dict[str, Any]:
        items = [{"type": "function_call", "name": "f"}, {"type": "message", "role": "assistant", "content": "4"}]
        return {**row, "response": {"output": items}, "reward": 1.0}

    with pytest.raises(turnloom.ConfigError, match=r"return_token_id_information.*1 function_call, 1 message"):
        async with running(answering(without_ids), dataset_of({}), max_inflight_tasks=16) as run:
            await run.work


def index_of_the_last(completions: list[Any], **_: Any) -> list[float]:
    raise LookupError("my own mistake")


async def test_an_error_of_a_reward_function_ends_the_run_and_is_told() -> None:
    with pytest.raises(LookupError, match="my own mistake"):
        async with running(answering(scored(1.0)), dataset_of({}), reward_funcs=[index_of_the_last]) as run:
            await run.work


# The worker


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with cpu_training():
        yield


def make_worker(**settings: Any) -> NemoGymRolloutWorker:
    return NemoGymRolloutWorker(
        {"math": "http://127.0.0.1:9", "code": "http://127.0.0.1:9"},
        **{"dataset": dataset_of({}), "processing_class": make_tokenizer(), "max_tokens": 64, **settings},
    )


@pytest.mark.usefixtures("on_cpu")
def test_unknown_agents_are_found_when_the_worker_is_made() -> None:
    rows = dataset_of({}, {"agent_ref": {"name": "math"}}, {"agent_ref": {"name": "chess"}}, {"agent_ref": {"name": 3}})
    with pytest.raises(turnloom.ConfigError) as caught:
        make_worker(dataset=rows)
    assert "2 of 4 rows" in str(caught.value)
    assert "row 2" in str(caught.value)
    assert "row 3" in str(caught.value)
    assert "math, code" in str(caught.value)
    make_worker(dataset=rows.select([0, 1]))
    make_worker(dataset=rows.to_iterable_dataset())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"top_k": 20}, "top_k=20"),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"repetition_penalty": 1.1}, r"repetition_penalty=1\.1"),
        ({"tools": [len]}, "tools is not used"),
        ({"environment_factory": dict}, "environment_factory is not used"),
        ({"lora_name": "mine"}, "lora_name"),
        ({"run_timeout": 0}, "run_timeout"),
        ({"deadline": -1.0}, "deadline"),
    ],
)
def test_settings_that_no_agent_could_follow_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        make_worker(**settings)


@pytest.mark.usefixtures("on_cpu")
def test_the_number_of_tokens_has_to_be_said() -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        NemoGymRolloutWorker({"math": "http://127.0.0.1:9"}, dataset=dataset_of({}), processing_class=make_tokenizer())
    make_worker(top_k=0, min_p=None, repetition_penalty=1.0)
    make_worker(top_k=-1, min_p=0.0)


@pytest.mark.usefixtures("on_cpu")
def test_the_trainers_config_gives_every_shared_setting(caplog: pytest.LogCaptureFixture) -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    config = AsyncGRPOConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        num_generations=6,
        max_completion_length=77,
        temperature=0.6,
        top_p=0.8,
        queue_maxsize=11,
        request_timeout=5,
        fork_threshold_tokens=3,
        vllm_server_base_url="http://127.0.0.1:9",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=5,
        max_staleness=2,
        log_completions=True,
        num_completions_to_print=4,
        max_tool_calling_iterations=9,
        chat_template_kwargs={"thinking": False},
    )
    worker = NemoGymRolloutWorker.from_config(
        config,
        agent_servers={"math": "http://127.0.0.1:9"},
        dataset=dataset_of({}),
        processing_class=make_tokenizer(),
        reward_funcs=[index_of_the_last],
        generation_config=SimpleNamespace(eos_token_id=[1, 7]),
        run_timeout=60.0,
        deadline=90.0,
        train_turn_fn=later_turn,
    )
    settings = worker._loop_kwargs
    assert settings.pop("dataset").num_rows == 1
    assert settings.pop("processing_class").eos_token_id == 1
    assert settings == {
        "agent_servers": {"math": "http://127.0.0.1:9"},
        "run_timeout": 60.0,
        "deadline": 90.0,
        "train_turn_fn": later_turn,
        "model_name": "",
        "reward_funcs": [index_of_the_last],
        "eos_token_ids": [1, 7],
        "num_generations": 6,
        "max_tokens": 77,
        "temperature": 0.6,
        "top_p": 0.8,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "queue_maxsize": 11,
        "max_inflight_tasks": 20,
        "request_timeout": 5,
        "fork_threshold_tokens": 3,
        "vllm_server_url": "http://127.0.0.1:9",
        "log_completions": True,
        "num_completions_to_print": 4,
        "max_tool_calling_iterations": 9,
        "chat_template_kwargs": {"thinking": False},
        "dataset_start_index": 0,
    }
    assert "chat_template_kwargs does not reach the agents" in caplog.text
    given = NemoGymRolloutWorker.from_config(
        config,
        agent_servers={"math": "http://127.0.0.1:9"},
        dataset=dataset_of({}),
        processing_class=make_tokenizer(),
        max_inflight_tasks=64,
    )
    assert given._loop_kwargs["max_inflight_tasks"] == 64
    assert given._loop_kwargs["eos_token_ids"] == [1]


@pytest.mark.usefixtures("on_cpu")
def test_the_loop_takes_whatever_the_worker_hands_over() -> None:
    settings = make_worker(
        train_turn_fn=later_turn, honor_mask_sample=False, deadline=5.0, run_timeout=7.0
    )._loop_kwargs
    handed = pickle.loads(pickle.dumps(settings))
    loop = make_loop(handed.pop("agent_servers"), **handed)
    loop._loop.close()
    assert loop.reward_func_names == ["nemo_gym"]
    assert loop._gym._run_timeout == 7.0
    assert loop._gym._deadline == 5.0
    assert loop._gym._parser_settings["honor_mask_sample"] is False


@pytest.mark.usefixtures("on_cpu")
def test_weights_sent_as_an_adapter_are_refused() -> None:
    async def models(call: AgentCall) -> None:
        raise AssertionError("never a /run")

    worker = make_worker(vllm_server_url="http://127.0.0.1:9")
    worker.update_model_version(1)
    assert not _settings.published_adapter("http://127.0.0.1:9", "trl-policy-v1")
    with FakeAgent(models) as server:
        assert not _settings.published_adapter(server.url, "trl-policy-v1")


@pytest.mark.usefixtures("on_cpu")
def test_an_adapter_on_the_model_server_stops_the_start() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "base"}, {"id": "trl-policy-v1"}]}).encode()
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Models) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        worker = make_worker(vllm_server_url=f"http://127.0.0.1:{server.server_port}")
        worker.update_model_version(1)
        try:
            with pytest.raises(turnloom.ConfigError, match="enable-lora"):
                worker.start()
            assert not _settings.published_adapter(f"http://127.0.0.1:{server.server_port}", "trl-policy-v2")
        finally:
            server.shutdown()
            thread.join()


# TRL itself


def test_the_classes_are_found_by_name() -> None:
    for cls in (NemoGymRolloutLoop, NemoGymRolloutWorker):
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls.__module__ == rollout.__name__
    assert NemoGymRolloutWorker._loop_cls is NemoGymRolloutLoop
    assert sorted(rollout.__all__) == rollout.__all__
    with pytest.raises(AttributeError, match="no attribute 'Worker'"):
        _ = rollout.Worker


def test_the_functions_need_no_trl() -> None:
    names = ("agent_request", "messages_from_agent_output", "turns_from_agent_output")
    code = f"import sys\nfrom turnloom.integrations.nemo_gym.rollout import {', '.join(names)}\n"
    heavy = "{'trl', 'torch', 'transformers', 'datasets', 'httpx', 'aiohttp'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}print({heavy})"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("found", ["1.15.2", "1.17.0", "2.16.0", "1.1"])
def test_another_trl_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    with pytest.raises(turnloom.ConfigError, match=rf"TRL {found} .*>=1\.16,<1\.17.*issue tracker") as caught:
        _trl_version.check_trl_version()
    assert isinstance(caught.value, ImportError)


def test_a_missing_trl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    with pytest.raises(ImportError, match=r"pip install 'turnloom\[trl\]'"):
        _trl_version.check_trl_version()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.16.3")
    _trl_version.check_trl_version()


def test_a_trl_without_a_hook_is_refused() -> None:
    class RolloutSample:
        pass

    with pytest.raises(ImportError, match=r"RolloutSample\.group_id"):
        _trl_version.check_trl_hooks(RolloutSample)


# Processes


async def test_a_trainer_that_dies_stops_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, trainers = os.pipe()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=ours))
    async with running(answering(scored(1.0)), dataset_of({})) as run:
        await run.samples(3)
        assert not run.work.done()
        os.close(trainers)
        await run.work
    os.close(ours)


def big_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Makes a sample above 1 MB: the pipe between the processes holds 64 KiB."""
    generation = list(range(100_000))
    return gym_answer(row, turns=[([1], generation, [-0.5] * len(generation))], reward=1.0)


@contextmanager
def started(agent: FakeAgent, **settings: Any) -> Iterator[NemoGymRolloutWorker]:
    """A worker with its process, forked from one that has imported everything; spawning would import it each time."""
    with cpu_training():
        worker = make_worker(num_generations=2, max_inflight_tasks=4, **settings)
    worker._loop_kwargs["agent_servers"] = {"math": agent.url}
    worker._mp_ctx = multiprocessing.get_context("forkserver")
    worker._mp_ctx.set_forkserver_preload(["turnloom.integrations.nemo_gym._trl"])
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        assert not multiprocessing.active_children()


def test_the_process_ends_at_once_though_nobody_reads_its_samples() -> None:
    with FakeAgent(answering(big_answer)) as agent, started(agent) as worker:
        process = worker._process
        assert process is not None
        os.kill(process.pid, signal.SIGINT)  # as Ctrl-C does: it is the trainer that stops it
        worker.rollout_buffer.get(timeout=30)
        while worker.rollout_buffer.qsize() < 4:
            process.join(0.01)
        began = time.monotonic()
        worker.stop()
        assert process.exitcode == 0
        assert time.monotonic() - began < 5


class OneGroupOnly:
    """Scores one group, and no more."""

    __name__ = "one_group_only"
    groups = 0

    def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        self.groups += 1
        if self.groups > 1:
            raise LookupError("my own mistake")
        return [0.0] * len(completions)


def test_a_failure_is_told_after_every_sample_was_read() -> None:
    with FakeAgent(answering(big_answer)) as agent, started(agent, reward_funcs=[OneGroupOnly()]) as worker:
        process = worker._process
        assert process is not None
        assert worker._failed_event.wait(30)
        samples = [worker.rollout_buffer.get(timeout=10) for _ in range(2)]
        assert all(len(sample.input_ids) == 100_001 for sample in samples)
        with pytest.raises(RuntimeError) as caught:
            worker.check_health(300)
        assert "LookupError: my own mistake" in str(caught.value.__cause__)
        worker.stop()
        assert process.exitcode == 1


def test_the_death_of_the_process_is_told_at_once() -> None:
    with FakeAgent(answering(scored(1.0))) as agent, started(agent) as worker:
        process = worker._process
        assert process is not None
        process.kill()
        process.join()
        with pytest.raises(RuntimeError, match="signal 9"):
            worker.check_health(300)
