"""Makes loops for TRL and lets them run against a fake agent, in the event loop of a test."""

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import turnloom
from turnloom.integrations.nemo_gym.rollout import NemoGymRolloutLoop
from turnloom.testing import AgentCall, FakeAgent, gym_answer

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

    def close(self) -> None:
        """Leave nothing behind of a loop whose work is done."""
        self.loop._loop.close()
        self.loop._tool_pool.shutdown()

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
            run.close()
        if error is not None:
            raise error


def pushed(loop: NemoGymRolloutLoop) -> list[dict[str, Any]]:
    """What the metrics queue has got."""
    taken = []
    while not loop._metrics_queue.empty():
        taken.append(loop._metrics_queue.get_nowait())
    return taken


def later_turn(turn: turnloom.Turn) -> bool:
    return turn.item_index > 0


def broken_reward(completions: list[Any], **_: Any) -> list[float]:
    raise LookupError("my own mistake")
