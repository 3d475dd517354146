"""The demo's parts: its task, its servers' answers, its report."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import rich.console
import safetensors.torch
import torch
from aiohttp import web

import turnloom
from turnloom.demo import report, task
from turnloom.demo.agent import agent_app
from turnloom.demo.model import make_model, make_tokenizer
from turnloom.demo.policy import Policy, policy_app
from turnloom.demo.weights import WeightsOverHttp

ROW = {
    **task.gym_rows(0)[0],
    "item": "tea",
    "prices": {"tea": "3", "apple": "2", "bread": "5", "milk": "8"},
    "responses_create_params": {"input": [{"role": "user", "content": "price of tea"}], "temperature": 1.0},
}
PERFECT = ("lookup tea <end>", "3", "answer 3 <end>")

# The task


@pytest.mark.parametrize(
    ("first", "tool", "second", "reward"),
    [
        (*PERFECT, 1.0),
        ("lookup apple <end>", "2", "answer 2 <end>", 0.40),  # the wrong item, and what the tool said of it
        ("lookup apple <end>", "2", "answer 3 <end>", 0.70),  # the right price all the same
        ("lookup apple <end>", "2", "answer 8 <end>", 0.30),
        ("lookup tea", "3", "answer 3", 0.90),  # no end
        ("lookup tea apple <end>", "3", "answer 3 of <end>", 0.90),  # an end too late
        ("tea tea", "error", "answer error", 0.50),
        ("<end>", "error", "<end>", 0.0),
        ("of of of of of of", "error", "of of of of of of", 0.0),
    ],
)
def test_what_a_rollout_earns(first: str, tool: str, second: str, reward: float) -> None:
    components = task.reward_components(ROW, first.split(), tool, second.split())
    assert task.total_reward(components) == reward


@pytest.mark.parametrize(
    ("first", "result"),
    [
        ("lookup tea <end>", "3"),
        ("lookup tea", "3"),
        ("lookup tea milk <end>", "3"),
        ("lookup tea milk milk <end>", "error"),
        ("lookup price <end>", "error"),
        ("lookup <end>", "error"),
        ("lookup", "error"),
        ("answer tea <end>", "error"),
        ("<end>", "error"),
    ],
)
def test_what_the_tool_answers(first: str, result: str) -> None:
    assert task.tool_result(task.looked_up(first.split()), ROW["prices"]) == result


def test_rows_are_all_different_and_no_item_has_one_price() -> None:
    rows = task.gym_rows(0)
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == len(rows) == 96
    assert {(row["item"], row["prices"][row["item"]]) for row in rows} == {
        (item, price) for item in task.ITEMS for price in task.PRICES
    }
    assert task.gym_rows(0) == rows != task.gym_rows(1)
    assert [json.loads(row) for row in task.dataset_columns(rows)["nemo_gym_row"]] == rows


# The servers


async def listen(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def policy_url() -> AsyncIterator[str]:
    """A policy server with random weights."""
    policy = Policy(seed=0)
    await policy.load_weights(weights_of(make_model(0)))
    async for url in listen(policy_app(policy)):
        yield url


@pytest.fixture
async def agent_url(policy_url: str) -> AsyncIterator[str]:
    """An agent that asks it."""
    async for url in listen(agent_app(policy_url)):
        yield url


def weights_of(model: Any) -> bytes:
    return safetensors.torch.save(dict(model.named_parameters()))


async def post(url: str, body: Any) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, await response.read()


class ScriptedPolicy:
    """Says what it is told to, in order, token ids and all."""

    def __init__(self, *words: str) -> None:
        self.prompts: list[str] = []
        self._script = [text.split() for text in words]
        self._tokenizer = make_tokenizer()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        words = self._script[len(self.prompts)]
        self.prompts.append(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        choice = {
            "message": {"role": "assistant", "content": " ".join(word for word in words if word != task.END)},
            "token_ids": self._tokenizer.convert_tokens_to_ids(words),
            "logprobs": {"content": [{"token": word, "logprob": -0.5} for word in words]},
        }
        prompt_ids = self._tokenizer(self.prompts[-1])["input_ids"]
        return web.json_response({"choices": [choice], "prompt_token_ids": prompt_ids})


async def scripted_rollout(*words: str) -> tuple[turnloom.Rollout, list[str]]:
    """What comes of an agent whose policy says these words, and the prompts that the policy was given."""
    policy = ScriptedPolicy(*words)
    async for policy_url in listen(policy.app()):
        async for agent_url in listen(agent_app(policy_url)):
            status, body = await post(f"{agent_url}/run", ROW)
            assert status == 200, body
    return turnloom.parse_run(body, fork_threshold_tokens=0), policy.prompts


async def test_a_perfect_rollout_is_one_row() -> None:
    rollout, prompts = await scripted_rollout("lookup tea <end>", "answer 3 <end>")
    assert (rollout.outcome, rollout.reward, rollout.drift.clean) == ("ok", 1.0, 1)
    assert prompts[1] == "<user> price of tea <end> <assistant> lookup tea <end> <tool> 3 <end> <assistant>"
    tokenizer = make_tokenizer()
    (row,) = rollout.rows
    assert tokenizer.decode(row.input_ids) == f"{prompts[1]} answer 3 <end>"
    assert tokenizer.decode(row.input_ids[row.completion_mask == 1]) == "lookup tea <end> answer 3 <end>"
    assert rollout.metrics["reward_components/price"] == 0.4
    assert rollout.messages() == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": rollout.output[0]["call_id"],
                    "type": "function",
                    "function": {"name": "lookup", "arguments": {"item": "tea"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": rollout.output[0]["call_id"], "content": "3"},
        {"role": "assistant", "content": "answer 3"},
    ]


async def test_words_that_the_template_drops_make_a_fork() -> None:
    rollout, _ = await scripted_rollout("lookup tea apple <end>", "answer 3 <end>")
    assert (rollout.drift.fork, len(rollout.rows)) == (1, 2)
    assert sum(int(row.completion_mask.sum()) for row in rollout.rows) == 7


async def test_a_malformed_call_is_told_so_and_the_second_is_made_all_the_same() -> None:
    rollout, prompts = await scripted_rollout("tea of lookup <end>", "answer <end>")
    assert prompts[1].endswith("<assistant> tea of lookup <end> <user> error <end> <assistant>")
    assert [item["type"] for item in rollout.output] == ["message", "message", "message"]
    assert (rollout.outcome, rollout.reward, rollout.drift.clean, len(rollout.turns)) == ("ok", 0.1, 1, 2)


async def test_sampled_logprobs_are_those_of_a_plain_forward(agent_url: str) -> None:
    model = make_model(0)
    rows = task.gym_rows(0)[:24]
    async with turnloom.GymClient({task.AGENT: agent_url}, fork_threshold_tokens=0) as gym:
        rollouts = await asyncio.gather(*[gym.run(row, max_tokens=6, temperature=1.0, top_p=1.0) for row in rows])
    for row, rollout in zip(rows, rollouts, strict=True):
        assert rollout.outcome == "ok", rollout.reason
        assert rollout.reward == task.total_reward(
            {name: value for name, value in rollout.metrics.items() if name.startswith("reward_components/")}
        )
        assert (rollout.document["item"], len(rollout.turns)) == (row["item"], 2)
        for trained in rollout.rows:
            ids, mask, log_probs = trained.input_ids, trained.completion_mask, trained.old_log_probs
            with torch.inference_mode():
                logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1]
            expected = logits.log_softmax(-1).gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()
            np.testing.assert_allclose(log_probs[1:], np.where(mask[1:] == 1, expected, 0.0), atol=1e-5)
    assert len({rollout.output[-1]["content"][0]["text"] for rollout in rollouts}) > 12  # it samples


async def test_max_tokens_bounds_each_call(agent_url: str) -> None:
    async with turnloom.GymClient({task.AGENT: agent_url}) as gym:
        rollout = await gym.run(ROW, max_tokens=1, temperature=1.0, top_p=1.0)
    assert [turn.output_tokens for turn in rollout.turns] == [1, 1]


async def test_a_row_that_is_none_is_refused_as_nemo_gym_does(agent_url: str) -> None:
    status, body = await post(f"{agent_url}/run", {"responses_create_params": {"input": []}})
    assert (status, "a row needs" in json.loads(body)["detail"][0]["msg"]) == (422, True)


async def test_the_policy_refuses_what_it_does_not_do(policy_url: str) -> None:
    asked = {"messages": [], "max_tokens": 1, "temperature": 1.0, "top_p": 0.5}
    status, body = await post(f"{policy_url}/v1/chat/completions", asked)
    assert (status, b"top_p" in body) == (400, True)


async def test_calls_wait_for_the_first_weights_and_then_follow_each() -> None:
    policy = Policy(seed=0)
    async for url in listen(policy_app(policy)):
        waiting = asyncio.create_task(policy.generate([2, 6], max_tokens=1, temperature=1.0))
        transfer = WeightsOverHttp(url)
        for seed in (1, 2):
            model = make_model(seed)
            await asyncio.to_thread(transfer.send_weights, iter(model.named_parameters()))
            generation = await (waiting if seed == 1 else policy.generate([2, 6], max_tokens=1, temperature=1.0))
            with torch.inference_mode():
                expected = model(input_ids=torch.tensor([[2, 6]])).logits[0, -1].log_softmax(-1)
            assert generation.log_probs[0] == pytest.approx(expected[generation.ids[0]].item(), abs=1e-5)
        with pytest.raises(RuntimeError, match="did not take the weights: 500"):
            await asyncio.to_thread(transfer.post, {"strange": torch.zeros(1)})
        transfer.destroy()


async def test_temperature_and_padding_reach_the_distribution() -> None:
    model, policy = make_model(0), Policy(seed=0)
    async for _ in listen(policy_app(policy)):
        await policy.load_weights(weights_of(model))
        prompts = [[2, 6], [2, 6, 7, 11, 1, 3], [3], [4, 5, 6, 7]]
        generations = await asyncio.gather(
            *[policy.generate(prompt, max_tokens=4, temperature=0.25) for prompt in prompts]
        )
    for prompt, (ids, log_probs) in zip(prompts, generations, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / 0.25).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert log_probs == pytest.approx(expected.tolist(), abs=1e-5)


async def test_a_transfer_that_is_switched_off_sends_nothing() -> None:
    transfer = WeightsOverHttp("http://127.0.0.1:9", enabled=False)
    transfer.send_weights(iter(make_model(0).named_parameters()))
    assert transfer.version == 1


# The report


def step_metrics(step: int, reward: float) -> dict[str, Any]:
    outcomes = {"nemo_gym/outcome/ok_total": 100.0, "nemo_gym/outcome/timeout_total": None}
    drift = {"nemo_gym/drift/clean_frac": 0.75, "nemo_gym/drift/realign_frac": 0.0, "nemo_gym/drift/fork_frac": 0.25}
    return {"step": step, "reward": reward, **outcomes, **drift}


def test_the_summary_tells_the_first_and_the_last_five_steps() -> None:
    metrics = [step_metrics(step, step / 20) for step in range(1, 21)]
    metrics[3]["nemo_gym/outcome/timeout_total"] = 2.0
    summary = report.summarize(metrics, seconds=12.345)
    assert summary == report.Summary(0.15, 0.9, 12.3, 20, 2002, {"ok": 2000, "timeout": 2})
    assert not summary.learned
    assert report.summarize([step_metrics(1, 0.91)], seconds=1).learned


def test_the_plot_is_a_picture_also_where_no_answer_came(tmp_path: Path) -> None:
    report.plot([step_metrics(1, 0.1), {"step": 2, "reward": 0.2}], tmp_path / "reward.png")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


async def test_a_transcript_reads_as_a_conversation() -> None:
    rollout, _ = await scripted_rollout("lookup tea <end>", "answer 3 <end>")
    console = rich.console.Console(file=io.StringIO(), width=100)
    report.print_transcript(console, "after training", rollout, "price of tea")
    assert [line.split() for line in console.file.getvalue().splitlines()] == [
        ["after", "training", "(reward", "1.00)"],
        ["user", "price", "of", "tea"],
        ["assistant", "lookup({'item':", "'tea'})"],
        ["tool", "3"],
        ["assistant", "answer", "3"],
    ]


@pytest.mark.parametrize(("reward_last", "said"), [(0.95, "It learned: mean"), (0.9, "It did not learn: mean")])
def test_the_result_is_said(reward_last: float, said: str) -> None:
    console = rich.console.Console(file=io.StringIO(), width=40)
    report.print_result(console, report.Summary(0.1, reward_last, 60.4, 100, 12000, {"ok": 12000}), Path("folder"))
    first, second = console.file.getvalue().splitlines()
    assert first.startswith(f"{said} reward 0.10 → {reward_last:.2f} in 100 steps, 12000 rollouts, 60 s")
    assert second.startswith("Figures are in folder: reward.png")
