"""Files of rows: what becomes of their lines, in Arrow and on the way back, and what is said of lines that are none."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import turnloom
from turnloom._gym import agent_request, read_rows
from turnloom.integrations.nemo_gym import load_dataset

SAMPLING: dict[str, Any] = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0}
ROWS = [
    '{"responses_create_params": {"input": "2 + 2?", "tools": []}, "expected": 4, "agent_ref": {"name": "math"}}',
    '{"responses_create_params":{"input":[{"role":"user","content":"a\u2028b ü"}],"metadata":{"x":null}},"id":1e400}',
    '{"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, '
    '{"type": "function_call", "name": "f", "arguments": "{\\"a\\": null}", "call_id": "c"}, '
    '{"type": "function_call_output", "call_id": "c", "output": "\\ud800"}]}, "deep": [{"a": null}, {"b": [null]}]}',
]


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\n\n".join(ROWS).encode() + b"\r\n")
    return path


def without_sampling(request: dict[str, Any]) -> dict[str, Any]:
    params = request["responses_create_params"]
    kept = {name: params[name] for name in params if name not in ("max_output_tokens", "temperature", "top_p")}
    return {**request, "responses_create_params": kept}


def test_rows_are_the_texts_of_the_lines(rows_file: Path) -> None:
    assert [row["nemo_gym_row"] for row in read_rows(rows_file)] == ROWS


def test_rows_survive_arrow_and_its_files(rows_file: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    loaded = load_dataset(rows_file)
    loaded.save_to_disk(tmp_path / "saved")
    loaded.to_parquet(tmp_path / "rows.parquet")
    for again in (loaded, datasets.load_from_disk(tmp_path / "saved"), pickle.loads(pickle.dumps(loaded))):
        assert [row["nemo_gym_row"] for row in again] == ROWS
        for row, text in zip(again, ROWS, strict=True):
            sent = json.loads(text)
            assert without_sampling(agent_request(row, **SAMPLING)) == sent
    parquet = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    assert parquet["nemo_gym_row"][:] == ROWS


def test_prompts_are_messages_without_members_that_they_had_not(rows_file: Path) -> None:
    pytest.importorskip("datasets")
    prompts = [row["prompt"] for row in load_dataset(rows_file)]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": None}}}
    assert prompts == [
        [{"role": "user", "content": "2 + 2?"}],
        [{"role": "user", "content": "a\u2028b ü"}],
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "\ufffd"},
        ],
    ]


def test_real_rows_come_back_byte_for_byte(bodies_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    texts = [
        path.read_text()
        for path in sorted((bodies_folder / "real").glob("*.request.json"))
        if not path.name.startswith("error_")
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(texts))
    loaded = load_dataset(tmp_path / "rows.jsonl")
    assert loaded["nemo_gym_row"][:] == texts
    assert all(row["prompt"] for row in loaded)


def test_a_line_with_the_column_stands_for_the_row_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"nemo_gym_row": text, "prompt": "x"}) for text in ROWS))
    assert [row["nemo_gym_row"] for row in read_rows(path)] == ROWS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: .*not JSON"),
        (b"[1]", "line 2: .*not a JSON object"),
        (b'{"input": "hi"}', "line 2: the row's responses_create_params is missing"),
        (b'{"responses_create_params": {"max_output_tokens": -1}}', "line 2: .*max_output_tokens"),
        (b'{"nemo_gym_row": {"responses_create_params": {}}}', "line 2: the row's responses_create_params is missing"),
        (b'{"responses_create_params": {"input": "\xff"}}', "line 2: it is not UTF-8"),
        (b"[" * 100_000, "line 2: .*not JSON"),
    ],
)
def test_a_line_that_is_no_row_is_told_by_its_number(line: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + line + b"\n" + ROWS[0].encode())
    with pytest.raises(turnloom.ConfigError, match=rf"rows\.jsonl: 1 lines are no rows of NeMo Gym:\n  {said}"):
        read_rows(path)


def test_at_most_ten_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"{}\n" * 12)
    with pytest.raises(turnloom.ConfigError, match=r"12 lines .*\n(.*\n){10}  and 2 more$"):
        read_rows(path)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\n \n")
    with pytest.raises(turnloom.ConfigError, match="no row in it"):
        read_rows(tmp_path / "rows.jsonl")
