"""Collecting: every row so many times, each exactly once; what the folder then holds, and what it comes to."""

import asyncio
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnloom
from recording import CLEAN, REALIGN, assert_same_rows
from turnloom._collect._results import pass_at_k
from turnloom.testing import FakeAgent, gym_answer


def dataset(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"responses_create_params": {"input": "hi"}, "id": number, **more} for number in range(count)]


def key(row: dict[str, Any]) -> tuple[int, int]:
    return row["_ng_task_index"], row["_ng_rollout_index"]


class Scripted:
    """Answers each row by a function of it, and keeps what was asked. An int is a status."""

    def __init__(
        self, answer: Any = lambda row: gym_answer(row, turns=CLEAN, reward=float(row["_ng_rollout_index"] % 2))
    ) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, call: Any) -> None:
        row = await call.row()
        self.asked.append(row)
        answer = self.answer(row)
        await (call.answer("it broke", status=answer) if isinstance(answer, int) else call.answer(answer))


async def collect(agent: Any, rows: Any, out: Path, **settings: Any) -> turnloom.CollectionSummary:
    async with FakeAgent(agent) as server:
        return await turnloom.collect({"math": server.url}, rows, out, **{"max_tokens": 16, **settings})


async def test_every_row_is_rolled_out_so_often_and_recorded(tmp_path: Path) -> None:
    agent = Scripted()
    summary = await collect(agent, dataset(5), tmp_path, samples_per_row=3, temperature=0.5)
    assert Counter(map(key, agent.asked)) == {(task, index): 1 for task in range(5) for index in range(3)}
    assert len({row["_ng_rollout_id"] for row in agent.asked}) == 15
    assert {row["_ng_attempt_index"] for row in agent.asked} == {0}
    assert {row["responses_create_params"]["temperature"] for row in agent.asked} == {0.5}
    assert all(row["id"] == row["_ng_task_index"] for row in agent.asked)
    assert Counter(key(record.request) for record in turnloom.Records(tmp_path)) == Counter(map(key, agent.asked))
    assert summary.is_complete
    assert (summary.rows, summary.samples_per_row) == (5, 3)
    assert (summary.total.wanted, summary.total.done, summary.total.failed) == (15, 15, 0)
    assert summary.total.mean_reward == pytest.approx(1 / 3)
    assert {rate.k: (rate.value, rate.rows) for rate in summary.total.pass_at} == {
        1: (pytest.approx(1 / 3), 5),
        2: (pytest.approx(2 / 3), 5),
        3: (1.0, 5),
    }
    assert summary.total.trained_tokens == 15 * 3
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary.to_json()))


async def test_what_is_done_is_not_done_again_and_what_failed_is(tmp_path: Path) -> None:
    def first(row: dict[str, Any]) -> Any:
        whole = gym_answer(row, turns=CLEAN)
        ends = [whole, 500, {**whole, "mask_sample": True}, gym_answer(row, turns=[]), {"reward": 1.0}, b"{"]
        return ends[row["_ng_task_index"]]

    before = await collect(Scripted(first), dataset(6), tmp_path)
    assert before.total.outcomes == dict.fromkeys(
        ["ok", "http_error", "masked", "no_tokens", "agent_failure", "malformed"], 1
    )
    assert (before.total.done, before.total.failed, before.is_complete) == (3, 3, False)
    again = Scripted()
    after = await collect(again, dataset(6), tmp_path)
    assert [(row["_ng_task_index"], row["_ng_attempt_index"]) for row in again.asked] == [(1, 1), (4, 1), (5, 1)]
    assert (after.total.done, after.total.failed, after.is_complete) == (6, 0, True)
    assert after.total.outcomes == {"ok": 4, "masked": 1, "no_tokens": 1}
    idle = Scripted()
    assert (await collect(idle, dataset(6), tmp_path)).to_json() == after.to_json()
    assert idle.asked == []


async def test_rows_and_samples_may_be_added(tmp_path: Path) -> None:
    await collect(Scripted(), dataset(2), tmp_path, samples_per_row=2)
    agent = Scripted()
    summary = await collect(agent, dataset(3), tmp_path, samples_per_row=3)
    assert sorted(map(key, agent.asked)) == [(0, 2), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert summary.total.done == 9
    fewer = Scripted()
    assert (await collect(fewer, dataset(3), tmp_path, samples_per_row=1)).total.wanted == 3
    assert fewer.asked == []


async def test_a_folder_holds_one_collection(tmp_path: Path) -> None:
    await collect(Scripted(), dataset(2), tmp_path)
    agent = Scripted()
    for rows in (dataset(1), dataset(2, other=True), dataset(2)[::-1]):
        with pytest.raises(turnloom.ConfigError, match="the rollouts of other rows"):
            await collect(agent, rows, tmp_path)
    with pytest.raises(turnloom.ConfigError, match=r"sampled with .*1.0"):
        await collect(agent, dataset(2), tmp_path, temperature=0.5)
    assert agent.asked == []


@pytest.mark.parametrize("content", ["", "[]", "{}", "garbage", '{"id": 5}', "[" * 100_000])
async def test_a_damaged_state_is_told(content: str, tmp_path: Path) -> None:
    await collect(Scripted(), dataset(2), tmp_path)
    (tmp_path / "collect.json").write_text(content)
    agent = Scripted()
    with pytest.raises(turnloom.ConfigError, match=r"collect\.json.* is damaged"):
        await collect(agent, dataset(2), tmp_path)
    assert agent.asked == []


async def test_two_cannot_collect_into_one_folder(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def silent(call: Any) -> None:
        await call.body()
        began.set()
        await call.gone()

    first = asyncio.create_task(collect(silent, dataset(1), tmp_path))
    await began.wait()
    with pytest.raises(turnloom.ConfigError, match="another process"):
        await collect(Scripted(), dataset(1), tmp_path)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert json.loads((tmp_path / "summary.json").read_text())["total"]["done"] == 0
    assert (await collect(Scripted(), dataset(1), tmp_path)).is_complete


async def test_a_slow_agent_holds_up_no_other(tmp_path: Path) -> None:
    all_fast = asyncio.Event()
    in_flight: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def agent(name: str, count: int) -> Any:
        asked = []

        async def behave(call: Any) -> None:
            row = await call.row()
            asked.append(row)
            in_flight[name] += 1
            most[name] = max(most[name], in_flight[name])
            if len(asked) == count and name == "fast":
                all_fast.set()
            if name == "slow":
                await all_fast.wait()
            in_flight[name] -= 1
            await call.answer(gym_answer(row, turns=CLEAN))

        return behave

    rows = [{**row, "agent_ref": {"name": name}} for row in dataset(10) for name in ("slow", "fast")]
    async with FakeAgent(agent("slow", 10)) as slow, FakeAgent(agent("fast", 10)) as fast:
        servers = {"slow": slow.url, "fast": fast.url}
        summary = await turnloom.collect(servers, rows, tmp_path, max_tokens=1, concurrency=3)
    assert summary.is_complete
    assert {name: figures.done for name, figures in summary.agents.items()} == {"slow": 10, "fast": 10}
    assert most["slow"] == 3
    assert most["fast"] <= 3


async def test_training_rows_as_parquet(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()

    def first(row: dict[str, Any]) -> Any:
        turns = REALIGN if row["_ng_rollout_index"] else [*CLEAN, ([9], [8], [-1.0])]
        return gym_answer(row, turns=turns, reward=0.5) if row["_ng_task_index"] else 500

    await collect(Scripted(first), dataset(3), tmp_path, samples_per_row=2)
    await collect(Scripted(), dataset(3), tmp_path, samples_per_row=2, parquet=True)
    file = str(tmp_path / "rows.parquet")
    loaded = datasets.load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache"))
    expected = [
        (key(record.request), record.agent, record.reward, row)
        for record in turnloom.Records(tmp_path)
        for row in record.rollout().rows
    ]
    assert len(expected) == 2 + 2 * (2 + 1)
    for found, (its_key, agent, reward, row) in zip(loaded, expected, strict=True):
        assert (found["task_index"], found["rollout_index"]) == its_key
        assert (found["agent"], found["reward"], found["rollout_id"]) == (agent, reward, row.rollout_id)
        arrays = (
            np.array(found["input_ids"], np.int64),
            np.array(found["completion_mask"], np.int64),
            np.array(found["old_log_probs"], np.float32),
        )
        assert_same_rows([turnloom.TrainingRow(*arrays, row.turn_spans, row.rollout_id, row.turn_count)], [row])


async def test_answers_without_ids_end_it_with_one_error(tmp_path: Path) -> None:
    agent = Scripted(lambda row: gym_answer(row, turns=[]))
    with pytest.raises(turnloom.ConfigError, match="return_token_id_information"):
        await collect(agent, dataset(100), tmp_path, concurrency=4)
    assert 64 <= len(agent.asked) < 80


async def test_a_disk_that_takes_no_more_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("turnloom._records._files.RecordFiles.append", full)
    with pytest.raises(OSError, match="No space left"):
        await collect(Scripted(), dataset(3), tmp_path, concurrency=1)
    assert json.loads((tmp_path / "summary.json").read_text())["total"]["done"] == 0  # none is on the disk


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"samples_per_row": 0}, "samples_per_row=0"),
        ({"concurrency": 2.5}, "concurrency=2.5"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"run_timeout": 0}, "run_timeout=0"),
    ],
)
async def test_settings_out_of_their_range_are_told(settings: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(turnloom.ConfigError, match=said):
        await collect(Scripted(), dataset(1), tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


async def test_rows_that_no_agent_could_take_are_told_before_any_is_sent(tmp_path: Path) -> None:
    agent = Scripted()
    with pytest.raises(turnloom.ConfigError, match=r"row 1: .*no such agent"):
        await collect(agent, [*dataset(1), *dataset(1, agent_ref={"name": "chess"})], tmp_path)
    assert agent.asked == []


@given(passed=st.lists(st.booleans(), min_size=1, max_size=8), data=st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(passed: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passed)))
    draws = list(combinations(passed, k))
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(sum(map(any, draws)) / len(draws))
