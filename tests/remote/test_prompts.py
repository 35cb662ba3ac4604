from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote import fastjson
from remote.check_prompts import check_prompts
from remote.prompts import rows as prompts
from remote.prompts.kinds import BOM
from remote.prompts.oddities import words_of
from remote.prompts.rows import BadRow, Prompt, PromptReader, Row, RowCount, count_rows, parse_row
from remote.prompts.shapes import PLAIN

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "hi"}, [USER]),
        ({"prompt": [USER]}, [USER]),
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER, {"role": "assistant", "content": "old"}], "prompt": "no"}, [USER]),
        (
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "hi"}]},
            [{"role": "system", "content": "s"}, USER],
        ),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "old"}]}, [USER]),
        ({"conversations": [USER, {"role": "assistant", "content": "old"}]}, [USER]),
        (
            {
                "conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "b"},
                    {"from": "tool", "value": "c"},
                ]
            },
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "tool", "content": "c"},
            ],
        ),
        ({"prompt": "a\u2028b\u0085\u0000c"}, [{"role": "user", "content": "a\u2028b\u0085\u0000c"}]),
    ],
)
def test_a_row_becomes_messages(row: dict, messages: list) -> None:
    parsed = parse_row(3, json.dumps(row, ensure_ascii=False).encode())
    assert isinstance(parsed, Prompt)
    assert (parsed.index, parsed.messages) == (3, messages)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a', "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"prompt": "a\0b"}', "not JSON"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b'{"prompt": NaN}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\0\0\0", "not JSON"),
        (b"[1]", "a JSON object was expected"),
        (b'{"text": "a"}', "none of messages"),
        (b'{"prompt": 7}', "not text"),
        (b'{"prompt": " "}', "prompt is empty"),
        (b'{"messages": []}', "asks nothing"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "asks nothing"),
        (b'{"messages": [{"role": "user", "content": ""}]}', "last turn is empty"),
        (b'{"messages": [{"content": "x"}]}', "without a role"),
        (b'{"messages": "x"}', "not a list of turns"),
        (b'{"conversations": [{"from": "nobody", "value": "x"}]}', "a turn from 'nobody'"),
        (b'{"conversations": [{"from": "human"}]}', "without a value"),
        (b'{"prompt": "x", "tools": 5}', "tools is not a list"),
        (b'{"prompt": "x", "tools": "[nope"}', "tools: not JSON"),
    ],
)
@pytest.mark.parametrize("loads", ["fast", "standard"])
def test_a_bad_row_says_why_with_either_json_library(
    line: bytes, reason: str, loads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loads == "standard":
        monkeypatch.setattr(prompts.fastjson, "loads", fastjson._standard_loads)
    parsed = parse_row(0, line)
    assert isinstance(parsed, BadRow)
    assert reason in parsed.reason


@pytest.mark.parametrize(
    ("tools", "kept"),
    [([TOOL], [TOOL]), (json.dumps([TOOL]), [TOOL]), ([{"name": "f"}], [TOOL]), ([], None), ("", None)],
)
def test_tools_are_kept_in_the_shape_that_servers_take(tools: object, kept: object) -> None:
    parsed = parse_row(0, json.dumps({"prompt": "x", "tools": tools, "id": 7}).encode())
    assert isinstance(parsed, Prompt)
    assert (parsed.tools, parsed.id) == (kept, 7)


def _read(path: Path, rows: int = 3) -> list[Row]:
    reader = PromptReader(path, wanted=lambda index: True)
    found: list[Row] = []
    while some := reader.read(rows=rows, size=1 << 20):
        found += some
    reader.close()
    return found


def test_a_file_with_everything_wrong_still_gives_its_rows_by_number(tmp_path: Path) -> None:
    big = "x" * 5_000_000
    lines = [
        b'\xef\xbb\xbf{"prompt": "bom"}\r',
        b"",
        b"   ",
        b"{",
        json.dumps({"prompt": big}).encode(),
        b'{"prompt": "end"}',
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(lines))
    rows = _read(path)
    assert [row.index for row in rows] == [0, 3, 4, 5]
    assert [type(row) for row in rows] == [Prompt, BadRow, Prompt, Prompt]
    assert count_rows(path) == RowCount(4, 4)


def test_a_gzip_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n{"prompt": "b"}\n'))
    assert [row.index for row in _read(path)] == [0, 1]
    assert count_rows(path, shard=1, shards=2) == RowCount(2, 1)


LINE = st.one_of(
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")),
    st.text(max_size=20).map(lambda text: json.dumps({"prompt": text}).encode()),
    st.sampled_from(
        [b"", b"\r", b" \t", b"{}", b'{"prompt":"a"}', b'{"prompt":"a"}\r', b'{"prompt":"\0"}', b"\xef\xbb\xbf"]
    ),
)


@given(lines=st.lists(LINE, max_size=30), ended=st.booleans(), shards=st.integers(1, 4))
def test_the_index_is_the_number_of_newlines_before_the_row(
    lines: list[bytes], ended: bool, shards: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ended else b""))
    reader = PromptReader(path, wanted=lambda index: True)
    rows = reader.read(rows=99, size=1 << 20)
    reader.close()
    expected = [i for i, line in enumerate(lines) if (line.removeprefix(BOM) if i == 0 else line).strip()]
    assert [row.index for row in rows] == expected
    for shard in range(shards):
        mine = sum(1 for i in expected if i % shards == shard)
        assert count_rows(path, shard=shard, shards=shards) == RowCount(len(expected), mine)
    checked = check_prompts(path, PLAIN)
    assert checked.input == reader.oddities == _oddities(path.read_bytes(), rows)
    bad = [row for row in rows if isinstance(row, BadRow)]
    assert checked.bad_lines == len(bad)
    assert checked.blank + checked.rows == checked.lines


def _oddities(data: bytes, rows: list[Row]) -> Counter[str]:
    """Counted in another way."""
    *lines, rest = data.split(b"\n")
    found = Counter({"crlf": sum(line.endswith(b"\r") for line in lines), "unended": int(rest != b"")})
    found["bom"] = int(data.startswith(BOM))
    found["blank"] = len(lines) + (rest != b"") - len(rows)
    found += Counter(row.kind for row in rows if isinstance(row, BadRow))
    return +found


def test_every_oddity_of_a_file_is_counted_and_told(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        BOM + b'{"prompt": "a"}\r',
        b"",
        b'{"prompt": "\xff\0"}',
        b'{"prompt": "\0"}',
        b'{"prompt": ',
        b'{"text": "a"}',
        b'{"prompt": ""}',
        b'{"prompt": "' + b"x" * 50_000_000 + b'"}',
    ]
    path.write_bytes(b"\n".join(lines))
    found = check_prompts(path, PLAIN)
    assert found.input == dict.fromkeys(
        ("bom", "blank", "crlf", "long", "unended", "not_utf8", "nul", "not_json", "shape", "empty"), 1
    )
    assert (found.rows, found.bad_lines, sum(found.shapes.values())) == (7, 5, 2)
    notes = " | ".join(found.notes)
    for words in ("byte order mark", "CRLF", "10 MiB", "50000014 bytes", "no newline", "UTF-8", "NUL", "not JSON"):
        assert words in notes, words
    assert list(words_of(found.input))[1] == "blank lines: 1"
