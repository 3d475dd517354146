"""The worker for TRL: its settings, and the TRL it takes."""

import functools
import importlib.metadata
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import DatasetDict

import turnloom
from trl_loops import broken_reward, dataset_of, later_turn, make_loop, make_tokenizer
from trl_workers import make_worker
from turnloom.integrations.nemo_gym import _settings, _trl, _trl_version, rollout
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop, NemoGymRolloutWorker
from turnloom.testing import AgentCall, FakeAgent
from turnloom.testing.cpu import cpu_training

# The worker


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with cpu_training():
        yield


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
        ({"run_timout": 3}, r"no setting 'run_timout' \(did you mean 'run_timeout'"),
        ({"zzz": 3, "num_generation": 4}, r"no setting 'zzz', 'num_generation' \(did you mean 'num_generations'\?\)"),
        ({"rollout_buffer": None}, "no setting 'rollout_buffer'"),
        ({"fork_threshold_tokens": 1.5}, r"fork_threshold_tokens=1\.5"),
        ({"num_generations": 0}, "num_generations=0: an integer of at least 1"),
        ({"max_inflight_tasks": 2.5}, r"max_inflight_tasks=2\.5"),
        ({"score_queue_maxsize": None}, "score_queue_maxsize=None"),
        ({"dataset_start_index": True}, "dataset_start_index=True"),
        ({"reward_funcs": "acc"}, "reward_funcs='acc'"),
        ({"reward_funcs": None}, "reward_funcs=None"),
        ({"reward_funcs": [broken_reward, "acc"]}, "reward_funcs has 'acc', which is no function"),
        ({"dataset": None}, "dataset=None"),
        ({"dataset": DatasetDict(train=dataset_of({}))}, "a DatasetDict of train"),
        ({"processing_class": object()}, r"processing_class=<object.*or a processor's \.tokenizer"),
        ({"processing_class": None}, "processing_class=None: the tokenizer itself"),
        ({"processing_class": "Qwen/Qwen3-4B"}, "processing_class='Qwen/Qwen3-4B': the tokenizer itself"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"train_turn_fn": lambda turn: True}, r"train_turn_fn=<function .*lambda.*module-level function"),
        ({"reward_funcs": [lambda **_: [1.0]]}, r"reward_funcs=<function .*lambda.*module-level function"),
        ({"train_turn_fn": "later"}, "train_turn_fn='later': a function"),
        ({"on_failure": "again"}, "on_failure='again'"),
        ({"max_attempts": 2}, "max_attempts=2 has no effect without on_failure='retry'"),
        ({"max_staleness": -1}, "max_staleness=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_the_worker_is_made(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        make_worker(**settings)


@pytest.mark.usefixtures("on_cpu")
def test_the_number_of_tokens_has_to_be_said() -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        NemoGymRolloutWorker({"math": "http://127.0.0.1:9"}, dataset=dataset_of({}), processing_class=make_tokenizer())
    make_worker(top_k=0, min_p=None, repetition_penalty=1.0)
    make_worker(top_k=-1, min_p=0.0)


@pytest.mark.usefixtures("on_cpu")
def test_every_setting_of_trls_worker_and_of_ours_is_known() -> None:
    """Whatever the loop would take, the worker lets through, numbers of numpy too."""
    worker = make_worker(
        num_generations=np.int64(2),
        temperature=np.float32(0.5),
        score_queue_maxsize=2,
        child_ready_timeout=9,
        queue_maxsize=3,
        branches="best",
        train_turn_fn=functools.partial(later_turn),
        on_failure="retry",
        max_attempts=np.int64(2),
        max_staleness=3,
        reward_funcs=(broken_reward,),
    )
    assert worker._loop_kwargs["reward_funcs"] == [broken_reward]
    with pytest.raises(turnloom.ConfigError, match="module-level function"):
        make_worker(train_turn_fn=functools.partial(lambda wanted, turn: wanted, True))


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
        reward_funcs=broken_reward,
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
        "reward_funcs": [broken_reward],
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
        train_turn_fn=later_turn,
        honor_mask_sample=False,
        deadline=5.0,
        run_timeout=7.0,
        max_concurrency=3,
        agent_servers={"math": ["http://127.0.0.1:9", "http://127.0.0.1:10"]},
    )._loop_kwargs
    handed = pickle.loads(pickle.dumps(settings))
    loop = make_loop(handed.pop("agent_servers"), **handed)
    loop._loop.close()
    assert loop.reward_func_names == ["nemo_gym"]
    gym = loop._gym
    assert (gym._settings.run_timeout, gym._settings.deadline, gym._max_concurrency) == (7.0, 5.0, 3)
    assert gym._settings.parser["honor_mask_sample"] is False
    assert [replica.url for replica in gym.agents["math"].replicas] == ["http://127.0.0.1:9", "http://127.0.0.1:10"]


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
@pytest.mark.parametrize("where_trl_looks", [False, True])
def test_an_adapter_on_the_model_server_stops_the_start(where_trl_looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(_trl, "MODEL_SERVER_URL", url if where_trl_looks else "http://127.0.0.1:9")
        worker = make_worker(**({} if where_trl_looks else {"vllm_server_url": url}))
        worker.update_model_version(1)
        try:
            with pytest.raises(turnloom.ConfigError, match="enable-lora"):
                worker.start()
            assert not _settings.published_adapter(url, "trl-policy-v2")
        finally:
            server.shutdown()
            thread.join()


# TRL itself


def test_the_classes_are_found_by_name() -> None:
    for cls in (NemoGymRolloutLoop, NemoGymRolloutWorker):
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls.__module__ == rollout.__name__
    assert NemoGymRolloutWorker._loop_cls is NemoGymRolloutLoop
    assert not {"NemoGymRolloutLoop", "NemoGymRolloutWorker"} & set(rollout.__all__), "import * needs no TRL"
    with pytest.raises(AttributeError, match="no attribute 'Worker'"):
        _ = rollout.Worker


@pytest.mark.parametrize("names", ["agent_request, messages_from_agent_output, turns_from_agent_output", "*"])
def test_the_functions_need_no_trl(names: str) -> None:
    code = f"import sys\nfrom turnloom.integrations.nemo_gym.rollout import {names}\nturns_from_agent_output([])\n"
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


def test_without_trl_asking_for_a_class_tells_why() -> None:
    code = (
        "import sys, importlib.metadata as found\n"
        "def version(name): raise found.PackageNotFoundError(name)\n"
        "found.version = version\n"
        "from turnloom.integrations.nemo_gym.rollout import *\n"
        "agent_request, messages_from_agent_output, turns_from_agent_output\n"
        "try:\n    from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutWorker\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UnsupportedTrl TRL is missing")


def test_a_trl_without_a_hook_is_refused() -> None:
    class RolloutSample:
        pass

    with pytest.raises(ImportError, match=r"RolloutSample\.group_id"):
        _trl_version.check_trl_hooks(RolloutSample)
