"""Records: what is in them, what they cost, and what is left of them when a process, a disk or a file fails."""

import asyncio
import gzip
import io
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

import turnloom
from recording import ANSWER, INTERLEAVED, REALIGN, ROW, SAMPLING, assert_same, record
from turnloom._gym import agent_request
from turnloom.testing import FAULTS, FakeAgent, gym_answer


async def zipped(call: Any) -> None:
    await call.answer(gzip.compress(json.dumps(ANSWER).encode()), headers={"content-encoding": "gzip"})


ENDS = {
    **{name: fault.behaviour for name, fault in FAULTS.items()},
    "sound": ANSWER,
    "no_tokens_left": gym_answer(ROW, turns=[([1], [2], [None])]),
    "cut_off": b'{"reward": 1.0, "response": ',
    "empty": b"",
    "zipped": zipped,
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_rollout_comes_back_as_it_was_however_it_ended(end: str, tmp_path: Path) -> None:
    # What says nothing ends soon; what takes its time is given it.
    settings = {"run_timeout": 0.5} if end.startswith("silence") else {}
    [live], counts = await record(ENDS[end], tmp_path, **settings)
    [found] = turnloom.Records(tmp_path)
    assert_same(found.rollout(), live)
    assert (found.rollout_id, found.outcome, found.reward, found.agent) == (live.id, live.outcome, live.reward, "math")
    assert found.request == agent_request(ROW, **SAMPLING)
    assert found.timing == live.timing
    assert len(found.body()) == live.timing.body_bytes
    assert (counts.written, counts.dropped, counts.body_bytes) == (1, 0, live.timing.body_bytes)
    assert counts.file_bytes == found.path.stat().st_size


async def test_a_deadline_is_recorded_too(tmp_path: Path) -> None:
    async def silent(call: Any) -> None:
        await call.gone()

    async with FakeAgent(silent) as agent:
        servers = {"slow": agent.url}
        async with turnloom.GymClient(servers, deadline=0.05, record_dir=tmp_path) as gym:
            late = await gym.run(ROW, **SAMPLING)
    [found] = turnloom.Records(tmp_path)
    assert late.outcome == "timeout"
    assert_same(found.rollout(), late)
    assert found.body() == b""


async def test_the_body_is_the_answer_byte_for_byte(tmp_path: Path) -> None:
    odd = json.dumps(ANSWER, indent=1).replace("\n", "\r\n").encode() + b"  \n"
    await record(odd, tmp_path)
    [found] = turnloom.Records(tmp_path)
    assert found.body() == odd
    assert b"".join(found.chunks(7)) == odd
    assert max(map(len, found.chunks(7))) == 7


async def test_real_answers_come_back(bodies_folder: Path, tmp_path: Path) -> None:
    bodies = [path.read_bytes() for path in sorted((bodies_folder / "real").glob("*.response.json"))]
    taken = iter(bodies)

    async def one_after_the_other(call: Any) -> None:
        await call.answer(next(taken))

    live = [(await record(one_after_the_other, tmp_path))[0][0] for _ in bodies]
    found = list(turnloom.Records(tmp_path))
    assert sorted(each.body() for each in found) == sorted(bodies)
    by_id = turnloom.Records(tmp_path)
    for rollout in live:
        assert_same(by_id[rollout.id].rollout(), rollout)
    assert len({rollout.outcome for rollout in live}) > 2


async def test_facts_tell_versions_time_settings_and_what_came_out(tmp_path: Path) -> None:
    [live], _ = await record(ANSWER, tmp_path, fork_threshold_tokens=3, max_body_bytes=10**6)
    [found] = turnloom.Records(tmp_path)
    assert found.settings == {
        "fork_threshold_tokens": 3,
        "branches": "linear",
        "honor_mask_sample": True,
        "max_body_bytes": 10**6,
    }
    assert found.facts["versions"]["turnloom"] == turnloom.__version__
    assert found.facts["versions"]["python"] == sys.version.split()[0]
    assert [found.facts[name] for name in ("turns", "rows", "tokens", "trained_tokens")] == [2, 1, 6, 3]
    assert found.facts["body_bytes"] == live.timing.body_bytes
    assert found.facts["began_at"].endswith("+00:00")
    assert found.facts["server"] == live.server


async def test_other_settings_make_other_rows(tmp_path: Path) -> None:
    await record(gym_answer(ROW, turns=INTERLEAVED), tmp_path)
    await record(gym_answer(ROW, turns=REALIGN, mask_sample=True), tmp_path)
    interleaved, masked = turnloom.Records(tmp_path)
    assert len(interleaved.rollout().rows) == 4
    assert len(interleaved.rollout(branches="best").rows) == 2
    assert masked.rollout().outcome == "masked"
    scored = masked.rollout(honor_mask_sample=False, fork_threshold_tokens=0)
    assert (scored.outcome, scored.reason, len(scored.rows)) == ("ok", None, 2)


async def test_a_cancelled_rollout_leaves_no_record(tmp_path: Path) -> None:
    async def begins(call: Any) -> None:
        await call.body()
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{")
        await call.gone()

    async with FakeAgent(begins) as agent:
        gym = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path)
        async with gym:
            run = asyncio.create_task(gym.run(ROW, **SAMPLING))
            await agent.until(lambda agent: len(agent.calls) == 1)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
    assert gym.records == turnloom.RecordCounts()
    assert list(turnloom.Records(tmp_path)) == []


async def test_files_are_zstd_that_any_tool_reads(tmp_path: Path) -> None:
    rollouts, _ = await record(ANSWER, tmp_path, rows=[ROW, {**ROW, "id": 8}])
    [path] = turnloom.Records(tmp_path).files()
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes()), read_across_frames=True) as reader:
        text = reader.read().decode()
    facts, end = json.JSONDecoder().raw_decode(text)
    assert facts["rollout_id"] in {rollout.id for rollout in rollouts}
    assert text[end + 1 :].startswith(json.dumps(ANSWER, separators=(",", ":")))


def test_a_large_answer_is_read_without_being_collected(tmp_path: Path) -> None:
    answer = json.dumps(ANSWER).encode()
    large = answer.replace(
        b'"prompt_token_ids"', b'"routed_experts":[' + b"[[1,2],[3,4]]," * 1_500_000 + b'[]],"prompt_token_ids"', 1
    )
    asyncio.run(record(large, tmp_path))
    [found] = turnloom.Records(tmp_path)
    tracemalloc.start()
    rollout = found.rollout()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rollout.turns[0].routed_experts_bytes > 20_000_000
    assert peak < 4_000_000
    assert found.path.stat().st_size < 20_000
