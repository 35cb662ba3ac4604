"""Shapes of rows, names of columns, and files that aren't plain lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from remote import packages
from remote.packages import MissingPackageError
from remote.prompts.rows import BadRow, Prompt, PromptReader, RowCount, count_rows, parse_row
from remote.prompts.shapes import Reading
from tests.remote.rig import Rig, nothing_lost_nothing_twice, records

USER = {"role": "user", "content": "hi"}
OLD = {"role": "assistant", "content": "old"}
SYSTEM = {"role": "system", "content": "s"}
HERMES = {
    "id": "1",
    "conversations": [{"from": who, "value": text} for who, text in (("system", "s"), ("human", "hi"), ("gpt", "old"))],
    "tools": '[{"type": "function", "function": {"name": "f", "parameters": {}}}]',
    "category": "c",
    "task": "t",
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "reading", "messages"),
    [
        (HERMES, Reading(), [SYSTEM, USER]),
        ({"instruction": "hi", "input": "", "output": "old"}, Reading(), [USER]),
        ({"instruction": "do", "input": "this"}, Reading(), [{"role": "user", "content": "do\n\nthis"}]),
        ({"prompt": "hi", "system": "s"}, Reading(), [SYSTEM, USER]),
        ({"messages": [SYSTEM, USER], "system": "other"}, Reading(), [SYSTEM, USER]),
        ({"messages": json.dumps([USER, OLD])}, Reading(), [USER]),
        ({"question": "hi", "sys": "s"}, Reading({"prompt": "question", "system": "sys"}), [SYSTEM, USER]),
        ({"messages": [USER, OLD]}, Reading(last_assistant="continue"), [USER, OLD]),
        ({"messages": [USER]}, Reading(last_assistant="continue"), [USER]),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, Reading(last_assistant="continue"), [USER]),
    ],
)
def test_a_row_asks_by_its_shape(row: dict[str, Any], reading: Reading, messages: list[dict[str, str]]) -> None:
    parsed = parse_row(0, json.dumps(row).encode(), reading)
    assert isinstance(parsed, Prompt)
    assert parsed.messages == messages
    assert parsed.continues == (messages[-1] == OLD)
    assert bool(parsed.tools) == ("tools" in row)


@pytest.mark.parametrize(
    ("row", "reason", "empty"),
    [
        ({"instruction": " "}, "instruction is empty", True),
        ({"instruction": "a", "input": 5}, "input is int", False),
        ({"question": "a"}, "none of messages, conversations, q, instruction", False),
        ({"messages": [SYSTEM, OLD]}, "asks nothing", True),
    ],
)
def test_a_row_that_asks_nothing_is_told_apart_from_one_that_is_wrong(
    row: dict[str, Any], reason: str, empty: bool
) -> None:
    parsed = parse_row(0, json.dumps(row).encode(), Reading({"prompt": "q"}))
    assert isinstance(parsed, BadRow)
    assert reason in parsed.reason
    assert (parsed.kind == "empty") == empty


def test_columns_that_are_kept_stand_in_each_row_also_where_they_are_missing() -> None:
    reading = Reading(keep=("task", "level"))
    first, second = (parse_row(i, json.dumps({"prompt": "x", **more}).encode(), reading) for i, more in
                     enumerate([{"task": "t", "other": 1}, {"level": 2}]))  # fmt: skip
    assert isinstance(first, Prompt)
    assert isinstance(second, Prompt)
    assert (first.extra, second.extra) == ({"task": "t", "level": None}, {"task": None, "level": 2})


LINES = [json.dumps({"prompt": f"prompt {i}", "id": i}).encode() + b"\n" for i in range(3000)]


def _indices(path: Path) -> list[int]:
    reader = PromptReader(path, wanted=lambda index: index % 2 == 0)
    found = []
    while some := reader.read(rows=700, size=1 << 20):
        found += [row.index for row in some if isinstance(row, Prompt) and row.id == row.index]
    reader.close()
    return found


def _write(path: Path, kind: str) -> Path:
    whole = b"".join(LINES)
    if kind == "zst":
        parts = (b"".join(LINES[:1000]), b"", b"".join(LINES[1000:]))
        path.write_bytes(b"".join(zstandard.compress(part) for part in parts))
    elif kind == "gz":
        path.write_bytes(gzip.compress(whole))
    elif kind == "parquet":
        table = pa.Table.from_pylist([json.loads(line) for line in LINES])
        parquet.write_table(table, path, row_group_size=900)
    else:
        path.write_bytes(whole)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "gz", "zst", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    path = _write(tmp_path / f"prompts.{kind}", kind)
    assert _indices(path) == list(range(0, 3000, 2))
    assert count_rows(path, shard=1, shards=4) == RowCount(3000, 750)


@pytest.mark.parametrize("kind", ["gz", "zst", "parquet"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_file_is_an_error_and_not_an_early_end(tmp_path: Path, kind: str, damage: str) -> None:
    path = _write(tmp_path / f"prompts.{kind}", kind)
    data = path.read_bytes()
    at = len(data) // 2
    path.write_bytes(data[:at] if damage == "cut" else data[:at] + bytes(255 - byte for byte in data[at:]))
    with pytest.raises((OSError, EOFError), match=r"prompts|end-of-stream"):
        _indices(path)


def test_a_parquet_row_whose_values_cannot_be_read_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c", b"d"])
    times = pa.array([0, 0, 1 << 62, None], pa.timestamp("us"))
    table = pa.table({"prompt": pa.Array.from_buffers(pa.string(), 4, texts.buffers()), "id": times})
    parquet.write_table(table, tmp_path / "p.parquet")
    reader = PromptReader(tmp_path / "p.parquet", wanted=lambda index: True)
    rows = reader.read(rows=9, size=1 << 20)
    reader.close()
    assert [row.kind if isinstance(row, BadRow) else row.index for row in rows] == [0, "not_utf8", "shape", 3]
    assert reader.oddities == {"not_utf8": 1, "shape": 1}


def test_parquet_structs_lose_the_nulls_that_other_rows_brought(tmp_path: Path) -> None:
    turns = [[USER], [{"role": "user", "content": "x", "name": "n"}]]
    table = pa.Table.from_pylist([{"messages": turn, "other": 1.5} for turn in turns])
    parquet.write_table(table, tmp_path / "p.parquet")
    reader = PromptReader(tmp_path / "p.parquet", wanted=lambda index: True)
    rows = reader.read(rows=9, size=1 << 20)
    reader.close()
    assert [row.messages for row in rows if isinstance(row, Prompt)] == turns


@pytest.mark.parametrize(("kind", "package"), [("zst", "zstandard"), ("parquet", "pyarrow")])
def test_a_missing_package_is_named_with_what_needs_it(
    tmp_path: Path, kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / f"p.{kind}", kind)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(packages.importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=rf"reading p.{kind} needs {package}, .*pip install {package}"):
        PromptReader(path, wanted=lambda index: True)


def test_a_job_reads_mapped_columns_and_keeps_others_and_refuses_another_reading(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.zst"
    rows = [{"question": f"prompt {i}", "task": "t"} for i in range(50)]
    path.write_bytes(zstandard.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    options = ("--columns", '{"prompt": "question"}', "--keep", "task")
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(path, *options) == 0
        assert rig.generate(path, *options) == 0
        assert rig.generate(path) == 4
        assert "columns, keep or last-assistant changed" in rig.log
    nothing_lost_nothing_twice(rig.output, 50)
    assert {record["extra"]["task"] for record in records(rig.output)} == {"t"}
