"""JSON in and out, with orjson and without: the same answers, exact integers, nothing that can't be read again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote import fastjson
from remote.generator.feeding import Feeding, record_line
from remote.generator.prompt_queue import Item
from remote.generator.reply import TroubleError, parse_reply
from remote.output.jsonl import record_index
from remote.prompts.rows import BadRow, Prompt, parse_row
from remote.prompts.shapes import Reading

WAYS: dict[str, tuple[Callable[[bytes], Any], Callable[[object], bytes]]] = {
    "orjson": (fastjson.loads, fastjson.dumps),
    "standard": (fastjson._standard_loads, fastjson._standard_dumps),
}
LEFT_OUT = ValueError


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    _use(request.param, monkeypatch)
    return str(request.param)


def _use(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, dumps = WAYS[way]
    monkeypatch.setattr(fastjson, "loads", loads)
    monkeypatch.setattr(fastjson, "dumps", dumps)


def strict(data: bytes) -> Any:
    """As a reader who takes nothing but RFC 8259 JSON in UTF-8."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(data.decode("utf-8", "strict"), parse_constant=refuse)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-0", 0),
        ("-0.0", -0.0),
        ("1.0", 1.0),
        ("1e16", 1e16),
        ("1e-400", 0.0),
        ("9223372036854775808", 1 << 63),
        ("-9223372036854775809", -(1 << 63) - 1),
        ("18446744073709551616", 1 << 64),
        ("1" * 400, int("1" * 400)),
        ("[123456789012345678901234567890.5]", [123456789012345678901234567890.5]),
        ('"12345678901234567890"', "12345678901234567890"),
        ('{"a":1,"a":2}', {"a": 2}),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("1e400", LEFT_OUT),
        ("-1e400", LEFT_OUT),
        ("1" * 5000, LEFT_OUT),
        ("NaN", LEFT_OUT),
        ("-Infinity", LEFT_OUT),
        ('"\\ud800"', LEFT_OUT),
        ('{"\\udc00":1}', LEFT_OUT),
        ('["12345678901234567890","\\ud800"]', LEFT_OUT),
        ("01", LEFT_OUT),
        ("[" * 239 + "{}" + "]" * 239, "itself"),
        ("[" * 241 + "]" * 241, LEFT_OUT),
        ("[" * 1500 + "]" * 1500, LEFT_OUT),
        ('{"a":' * 100_000, LEFT_OUT),
    ],
)
def test_a_value_is_read_exactly_or_refused_the_same_way_by_both(way: str, text: str, value: object) -> None:
    if value is LEFT_OUT:
        with pytest.raises(ValueError):  # noqa: PT011 (the words differ)
            fastjson.loads(text.encode())
        return
    found = fastjson.loads(text.encode())
    if value == "itself":
        assert fastjson.dumps(found).decode() == text
        return
    assert (found, type(found)) == (value, type(value))
    again = fastjson.loads(fastjson.dumps(found))
    assert (again, type(again), repr(again)) == (found, type(found), repr(found))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"id": 1 << 70, "score": math.nan}, '{"id":1180591620717411303424,"score":null}'),
        ([math.inf, -math.inf, (1.5, math.nan)], "[null,null,[1.5,null]]"),
        ({"\ud800": "a\udfff"}, '{"\ufffd":"a\ufffd"}'),
    ],
)
def test_what_json_has_no_word_for_is_written_as_null_and_as_the_replacement_character(
    way: str, value: object, text: str
) -> None:
    assert fastjson.dumps(value).decode() == text


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999"])
def test_a_number_that_is_none_in_an_answer_is_null_in_its_record(way: str, odd: str) -> None:
    body = (
        '{"choices": [{"message": {"content": "a", "tool_calls": [{"f": ODD}]}, "finish_reason": "stop"}],'
        ' "usage": {"completion_tokens": 3, "cost": ODD, "wide": 18446744073709551617}}'
    ).replace("ODD", odd)
    reply = parse_reply(200, body.encode())
    line = record_line("http://s", Item(Prompt(0, None, [])), reply, 1.0)
    record = strict(line)
    assert record["usage"] == {"completion_tokens": 3, "cost": None, "wide": 18446744073709551617}
    assert record["tool_calls"] == [{"f": None}]


@pytest.mark.parametrize("tokens", ["NaN", "-5", "1" + "0" * 400, "1e300", '"7"', "null"])
def test_a_token_count_that_is_none_spoils_no_mean(way: str, tokens: str) -> None:
    body = '{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": ODD}}'.replace("ODD", tokens)
    assert parse_reply(200, body.encode()).output_tokens == 0


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
NUMBER = st.one_of(st.integers(), st.integers(-(1 << 80), 1 << 80), st.floats())
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=12,
)
TURN = st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}, optional={"extra": VALUE})
ROW = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUE,
        "prompt": st.one_of(TEXT, st.lists(TURN, max_size=2)),
        "messages": st.lists(TURN, min_size=1, max_size=2),
        "tools": st.lists(VALUE, max_size=2),
        "kept": VALUE,
    },
)
DEEP = st.integers(1, 1200).map(
    lambda depth: b'{"prompt":"a","id":' + b"[" * depth + b"]" * depth + b',"tools":[' + b'{"a":' * depth + b"1"
    + b"}" * depth + b"]}"
)  # fmt: skip


@given(
    line=st.one_of(ROW.map(lambda row: json.dumps(row).encode()), DEEP),
    usage=VALUE,
    way=st.sampled_from(sorted(WAYS)),
)
def test_whatever_a_row_holds_its_record_is_strict_json_and_is_known_at_the_next_start(
    line: bytes, usage: Any, way: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _use(way, patch)
        row = parse_row(7, line, Reading(keep=("kept",)))
        assert row is not None
        if isinstance(row, BadRow):
            return
        item = Item(row)
        strict(Feeding({"seed": 1 << 66}).body(item, "m"))
        body = json.dumps({"choices": [{"message": {"content": "a"}}], "usage": {"logprobs": usage}})
        try:
            reply = parse_reply(200, body.encode())
        except TroubleError:
            return
        record = record_line("http://s", item, reply, 1.0)
        found = strict(record)
        assert record.count(b"\n") == 1
        assert json.dumps(found["messages"]) == json.dumps(row.messages)
        assert json.dumps([found["id"], found["extra"]]) == json.dumps([row.id, row.extra])
        for other in WAYS:
            _use(other, patch)
            assert record_index(record, whole=True) == 7


@given(line=st.one_of(ROW.map(lambda row: json.dumps(row).encode()), DEEP))
def test_both_ways_see_the_same_row(line: bytes) -> None:
    rows = []
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            _use(way, patch)
            row = parse_row(7, line, Reading(keep=("kept",)))
        rows.append(row.kind if isinstance(row, BadRow) else repr(row))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("depth", [3, 230, 500, 5000])
def test_a_record_of_any_depth_that_stands_in_a_shard_is_not_cut_out(way: str, depth: int) -> None:
    line = b'{"index":3,"id":' + b"[" * depth + b"]" * depth + b"}\n"
    assert record_index(line, whole=True) == 3


@pytest.mark.parametrize("depth", [199, 201, 800, 1100, 100_000])
def test_a_row_nested_deeply_is_a_bad_line_of_its_own_kind(way: str, depth: int) -> None:
    row = parse_row(0, b'{"prompt":"a","id":' + b"[" * depth + b"]" * depth + b"}")
    assert (row.kind if isinstance(row, BadRow) else "asked") == ("asked" if depth < 200 else "deep")
    told = json.dumps([{"role": "user", "content": "a", "x": json.loads("[" * 190 + "]" * 190)}])
    assert isinstance(parse_row(0, json.dumps({"messages": told}).encode()), Prompt)
