"""The files of records: what is left of them when a process, a disk or a file fails, and what keeps them small."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import turnloom
from recording import ANSWER, ROW, SAMPLING, assert_same, record
from turnloom import _records
from turnloom._records import RecordWriter, _body, _writer, _zstd
from turnloom._records._format import Header
from turnloom.testing import FakeAgent

# --- What damages them ---


@pytest.fixture
async def three(tmp_path: Path) -> tuple[list[turnloom.Rollout], Path]:
    """Three records, one after the other in one file."""
    async with FakeAgent(ANSWER) as agent, turnloom.GymClient({"math": agent.url}, record_dir=tmp_path) as gym:
        rollouts = [await gym.run({**ROW, "id": number}, **SAMPLING) for number in range(3)]
    [path] = turnloom.Records(tmp_path).files()
    return rollouts, path


async def test_a_record_cut_off_anywhere_is_told_and_costs_no_other(three: Any) -> None:
    rollouts, path = three
    whole = path.read_bytes()
    last = turnloom.Records(path)[rollouts[2].id]
    assert last.offset > 0
    for size in range(last.offset, len(whole)):
        path.write_bytes(whole[:size])
        records = turnloom.Records(path)
        assert [record.rollout_id for record in records] == [rollout.id for rollout in rollouts[:2]]
        assert len(records.problems) == (size > last.offset)
        assert all(str(path) in problem and "cut off" in problem for problem in records.problems)
        with pytest.raises(KeyError):
            records[rollouts[2].id]


async def test_after_a_cut_recording_goes_on_soundly(three: Any, tmp_path: Path) -> None:
    rollouts, path = three
    path.write_bytes(path.read_bytes()[:-5])
    [new], _ = await record(ANSWER, tmp_path)
    records = turnloom.Records(tmp_path)
    assert [found.rollout_id for found in records] == [rollouts[0].id, rollouts[1].id, new.id]
    assert_same(records[new.id].rollout(), new)
    assert len(records.problems) == 1


@pytest.mark.parametrize("facts", [b"[]", b"{}", b"5", b"[" * 100_000])
async def test_a_record_of_something_else_is_passed_over(facts: bytes, three: Any) -> None:
    rollouts, path = three
    frame = _zstd.compress(facts)
    path.write_bytes(Header(rollouts[0].id, len(frame), 0).to_bytes() + frame + path.read_bytes())
    records = turnloom.Records(path)
    assert len(list(records)) == 3
    assert "its facts are damaged" in records.problems[0]


async def test_a_damaged_byte_costs_the_record_it_is_in(three: Any) -> None:
    rollouts, path = three
    whole = path.read_bytes()
    second = turnloom.Records(path)[rollouts[1].id]
    third = turnloom.Records(path)[rollouts[2].id]
    live = {rollout.id: rollout for rollout in rollouts}
    facts = {found.rollout_id: found.facts for found in turnloom.Records(path)}
    missed = 0
    for place in range(second.offset, third.offset, 5):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        records = turnloom.Records(path)
        told: list[tuple[str, int]] = []
        for found in records:
            try:
                again = found.rollout()
            except turnloom.MalformedRecord as error:
                told.append((error.path, error.offset))
            else:
                assert_same(again, live[found.rollout_id])
                assert found.facts == facts[found.rollout_id]
        assert {rollouts[0].id, rollouts[2].id} <= {found.rollout_id for found in records}
        assert set(told) <= {(str(path), second.offset)}
        missed += not (told or records.problems)
    assert missed <= 4  # bits that only fill up a byte of zstd mean nothing


async def test_an_answer_that_ends_before_its_end_is_told(three: Any) -> None:
    rollouts, path = three
    record = turnloom.Records(path)[rollouts[2].id]
    start, whole = record.offset, path.read_bytes()
    header = Header.from_bytes(whole[start : start + Header.SIZE])
    assert header is not None
    shorter = replace(header, body_bytes=header.body_bytes - 20)
    path.write_bytes(whole[:start] + shorter.to_bytes() + whole[start + Header.SIZE : -20])
    with pytest.raises(turnloom.MalformedRecord, match=r"[\d,]+ of the [\d,]+ bytes of its answer are there"):
        turnloom.Records(path)[rollouts[2].id].body()


async def test_what_is_no_record_is_passed_over(three: Any) -> None:
    rollouts, path = three
    path.write_bytes(b"x" * 3_000_000 + path.read_bytes())
    records = turnloom.Records(path)
    assert [found.rollout_id for found in records] == [rollout.id for rollout in rollouts]
    assert records.problems == [f"{path}, record at byte 0: there is no record; 3000000 bytes are skipped"]


KILLED = """
import asyncio, sys, turnloom
from turnloom.testing import FakeAgent, gym_answer
async def main():
    answer = gym_answer({}, turns=[([1], [2], [-1.0])], filler="x" * 100_000)
    async with FakeAgent(answer) as agent, turnloom.GymClient({"a": agent.url}, record_dir=sys.argv[1]) as gym:
        while True:
            row = {"responses_create_params": {"input": "hi"}}
            await asyncio.gather(*(gym.run(row, max_tokens=1, temperature=1.0, top_p=1.0) for _ in range(8)))
            print(gym.records.written, flush=True)
asyncio.run(main())
"""


def test_a_killed_process_leaves_what_it_has_recorded(tmp_path: Path) -> None:
    written = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= 20:
                    written += int(line)
                    process.send_signal(signal.SIGKILL)
                    break
    records = turnloom.Records(tmp_path)
    assert [found.rollout().outcome for found in records] == ["ok"] * len(list(records))
    assert len(list(records)) >= written
    assert len(records.files()) == 2


# --- What bounds them ---


async def test_the_oldest_files_go_when_the_folder_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def noisy(number: int) -> dict[str, Any]:
        return {**ROW, "id": number, "noise": os.urandom(3000).hex()}

    bound = 100_000
    async with FakeAgent(ANSWER) as agent:
        gym = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path, record_max_bytes=bound)
        async with gym:
            live = [await gym.run(noisy(number), **SAMPLING) for number in range(60)]
    kept = [found.rollout_id for found in turnloom.Records(tmp_path)]
    assert kept == [rollout.id for rollout in live][-len(kept) :]
    size = sum(path.stat().st_size for path in turnloom.Records(tmp_path).files())
    assert bound * 0.7 < size <= bound
    assert (gym.records.written, gym.records.dropped) == (60, 0)
    assert gym.records.removed_files > 0
    assert sum("the oldest of its files go" in told.message for told in caplog.records) == 1


async def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "records-0.zst").mkdir()
    (tmp_path / "records-1.zst").symlink_to("nowhere")
    async with FakeAgent(ANSWER) as agent:
        gym = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path, record_max_bytes=2000)
        async with gym:
            for _ in range(20):
                await gym.run(ROW, **SAMPLING)
    assert (gym.records.written, gym.records.dropped) == (20, 0)
    assert gym.records.removed_files > 0
    assert len(turnloom.Records(tmp_path)) == len(list(turnloom.replay(tmp_path))) > 0


async def test_a_file_that_goes_while_it_is_read_costs_its_own_records(three: Any, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    older, newer = (folder / f"records-{number}.zst" for number in (1, 2))
    for path in (older, newer):
        path.write_bytes(three[1].read_bytes())
    records = turnloom.Records(folder)
    iterator = iter(records)
    found = next(iterator)
    newer.unlink()
    assert len(list(iterator)) == 2
    assert ["the file is gone" in problem for problem in records.problems] == [True]
    older.unlink()
    with pytest.raises(turnloom.MalformedRecord, match="the file is gone"):
        found.body()


async def test_files_that_another_writer_has_open_stay(tmp_path: Path) -> None:
    async with FakeAgent(ANSWER) as agent:
        other = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path)
        ours = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path, record_max_bytes=1000)
        async with other:
            theirs = await other.run(ROW, **SAMPLING)
            await _until_written(other)
            async with ours:
                await ours.run(ROW, **SAMPLING)
        assert (ours.records.written, ours.records.dropped) == (0, 1)
        [found] = turnloom.Records(tmp_path)
        assert found.rollout_id == theirs.id
        async with ours:
            await ours.run({**ROW}, **SAMPLING)
    assert (ours.records.removed_files, ours.records.dropped) == (1, 1)


async def _until_written(gym: turnloom.GymClient) -> None:
    """While the client stays open."""
    async with asyncio.timeout(10):
        while not gym.records.written:  # noqa: ASYNC110 - a thread counts
            await asyncio.sleep(0)


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, "1"])
def test_a_bound_is_a_positive_integer_or_none(bound: Any, tmp_path: Path) -> None:
    with pytest.raises(turnloom.ConfigError, match="record_max_bytes"):
        turnloom.GymClient({"a": "http://127.0.0.1:1"}, record_dir=tmp_path, record_max_bytes=bound)
    turnloom.GymClient({"a": "http://127.0.0.1:1"}, record_dir=tmp_path, record_max_bytes=None)


def test_a_folder_that_cannot_be_is_told_when_the_client_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(turnloom.ConfigError, match=r"folder of records .*file"):
        turnloom.GymClient({"a": "http://127.0.0.1:1"}, record_dir=tmp_path / "file")
    with pytest.raises(turnloom.ConfigError, match="no records at"):
        turnloom.Records(tmp_path / "nowhere")
    turnloom.GymClient({"a": "http://127.0.0.1:1"}, record_dir=tmp_path / "new" / "folder")
    assert list(turnloom.Records(tmp_path / "new" / "folder")) == []


FULL_DISK = """
import asyncio, json, resource, sys, turnloom
from turnloom.testing import FakeAgent, gym_answer
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
async def main():
    answer = gym_answer({}, turns=[([1], [2], [-1.0])])
    async with FakeAgent(answer) as agent, turnloom.GymClient({"a": agent.url}, record_dir=sys.argv[1]) as gym:
        row = {"responses_create_params": {"input": "hi"}}
        outcomes = [(await gym.run(row, max_tokens=1, temperature=1.0, top_p=1.0)).outcome for _ in range(20)]
    print(json.dumps([outcomes, gym.records.written, gym.records.dropped]))
asyncio.run(main())
"""


def test_a_full_disk_costs_records_and_no_rollout(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    outcomes, written, dropped = json.loads(done.stdout)
    assert outcomes == ["ok"] * 20
    assert written > 0
    assert written + dropped == 20
    assert done.stderr.count("nothing more is recorded") == 1
    assert "File too large" in done.stderr
    records = turnloom.Records(tmp_path)
    assert len(list(records)) == written
    assert records.problems == []


class StalledDisk:
    """A writer whose disk takes its first record only when it is let go."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(_writer, "MAX_PENDING_BYTES", 10_000)
        self.writer = RecordWriter(folder, **settings)
        self.let_go = threading.Event()
        reached, append = threading.Event(), self.writer._files.append

        def stalled(data: bytes) -> bool:
            reached.set()
            return self.let_go.wait(60) and append(data)

        monkeypatch.setattr(self.writer._files, "append", stalled)
        with self.begin() as first:
            first.end(turnloom.parse_run(json.dumps(ANSWER)))
        assert reached.wait(60)

    def begin(self) -> _records.Recording:
        return self.writer.begin(b"{}", settings={})


def test_while_the_disk_stalls_the_record_that_most_waits_for_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = StalledDisk(tmp_path, monkeypatch)
    rollout = turnloom.parse_run(json.dumps(ANSWER))
    with disk.begin() as large, disk.begin() as small:
        large.chunk(b"x" * 5000)
        small.chunk(b"y" * 2500)
        small.chunk(b"y" * 2500)  # there is no room for these, but for the first
        large.chunk(b"x" * 5000)
        large.end(turnloom.parse_run("{}"))
        small.end(rollout)
    assert disk.writer.counts.dropped == 1
    disk.let_go.set()
    disk.writer.close()
    assert (disk.writer.counts.written, disk.writer.counts.dropped) == (2, 1)
    assert turnloom.Records(tmp_path)[rollout.id].body() == b"y" * 5000
    assert [line.message.split(": ")[1] for line in caplog.records] == [
        "more arrives than can be compressed and written"
    ]
    assert disk.writer._pending_bytes == 0


def test_so_many_large_answers_at_once_and_any_number_of_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "MAX_LARGE", 2)
    monkeypatch.setattr(_body, "HELD_BYTES", 1000)
    writer = RecordWriter(tmp_path)
    rollouts = [turnloom.parse_run(json.dumps(ANSWER)) for _ in range(8)]
    bodies = [os.urandom(3000 if number % 2 else 900) for number in range(8)]
    for group in (slice(0, 6), slice(6, 8)):
        recordings = [writer.begin(b"{}", settings={}) for _ in rollouts[group]]
        for recording, body in zip(recordings, bodies[group], strict=True):
            recording.chunk(body[:2000])
            recording.chunk(body[2000:])
            with writer._changed:
                writer._changed.wait_for(lambda: writer._pending_bytes == 0)
        for recording, rollout in zip(recordings, rollouts[group], strict=True):
            recording.end(rollout)
        with writer._changed:
            writer._changed.wait_for(lambda: writer._pending_bytes == 0)
    writer.close()
    found = {record.rollout_id: record.body() for record in turnloom.Records(tmp_path)}
    kept = [number for number in range(8) if number != 5]  # the third large one of the first six
    assert found == {rollouts[number].id: bodies[number] for number in kept}
    assert writer.counts.dropped == 1
    assert writer._large == set()


def test_a_writer_can_be_made_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StalledDisk(tmp_path, monkeypatch, when_full="wait")

    def offer() -> None:
        with disk.begin() as recording:
            for _ in range(5):
                recording.chunk(b"x" * 5000)
            recording.end(turnloom.parse_run("{}"))

    offering = threading.Thread(target=offer)
    offering.start()
    offering.join(0.1)  # by then it waits; what follows holds in any case
    disk.let_go.set()
    offering.join()
    disk.writer.close()
    assert (disk.writer.counts.written, disk.writer.counts.dropped) == (2, 0)


def test_closing_does_not_wait_for_a_stalled_disk_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "CLOSE_TIMEOUT_S", 0.05)
    disk = StalledDisk(tmp_path, monkeypatch)
    with disk.begin() as recording:
        recording.end(turnloom.parse_run("{}"))
    thread = disk.writer._thread
    assert thread is not None
    disk.writer.close()
    assert disk.writer.failure == "the last records were not written within 0.05 s"
    disk.let_go.set()
    thread.join()
    assert (disk.writer.counts.written, disk.writer.counts.dropped) == (1, 1)


def test_without_zstandard_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['zstandard'] = None; import turnloom\n"
        "for make in (lambda: turnloom.GymClient({'a': 'http://127.0.0.1:1'}, record_dir='x'), "
        "lambda: turnloom.Records('.')):\n"
        "    try: make()\n"
        "    except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'turnloom[records]'") == 2


async def test_a_client_that_is_opened_again_records_again(tmp_path: Path) -> None:
    async with FakeAgent(ANSWER) as agent:
        gym = turnloom.GymClient({"math": agent.url}, record_dir=tmp_path)
        for _ in range(2):
            async with gym:
                await gym.run(ROW, **SAMPLING)
    assert gym.records.written == 2
    assert len(list(turnloom.Records(tmp_path))) == 2
