"""What becomes of a Parquet value of each type, in a column that is asked and in one that is only kept."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from remote.prompts.rows import BadRow, Prompt, PromptReader, Row
from remote.prompts.shapes import Reading
from tests.remote.rig import Rig, records

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
REFUSED = "refused"


def read(path: Path, columns: dict[str, Any], reading: Reading) -> list[Row]:
    parquet.write_table(pa.table(columns), path)
    reader = PromptReader(path, wanted=lambda _: True, reading=reading)
    rows = reader.read(rows=1000, size=1 << 20)
    reader.close()
    return rows


VALUES: dict[str, tuple[pa.Array, Any, Any]] = {
    "binary": (pa.array(["é".encode()], pa.binary()), "é", "é"),
    "large binary": (pa.array([b"hi"], pa.large_binary()), "hi", "hi"),
    "fixed binary": (pa.array([b"hi"], pa.binary(2)), "hi", "hi"),
    "dictionary of binary": (pa.array([b"hi"], pa.binary()).dictionary_encode(), "hi", "hi"),
    "binary that is no UTF-8": (pa.array([b"\xff\xfe"], pa.binary()), REFUSED, REFUSED),
    "text in a dictionary": (pa.array(["hi"]).dictionary_encode(), "hi", "hi"),
    "large text": (pa.array(["hi"], pa.large_string()), "hi", "hi"),
    "decimal": (pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)), REFUSED, "1.50"),
    "tiny decimal": (pa.array([decimal.Decimal("0.0000000001")], pa.decimal128(20, 10)), REFUSED, "0.0000000001"),
    "whole decimal": (pa.array([decimal.Decimal(10**30)], pa.decimal128(38, 0)), REFUSED, 10**30),
    "date": (pa.array([dt.date(2024, 2, 29)]), REFUSED, "2024-02-29"),
    "time": (pa.array([dt.time(1, 2, 3)], pa.time64("us")), REFUSED, "01:02:03"),
    "timestamp": (pa.array([1704164400000000], pa.timestamp("us")), REFUSED, "2024-01-02T03:00:00"),
    "timestamp in a zone": (
        pa.array([1704164400000000], pa.timestamp("us", "UTC")),
        REFUSED,
        "2024-01-02T03:00:00+00:00",
    ),
    "duration": (pa.array([dt.timedelta(seconds=90)], pa.duration("us")), REFUSED, 90),
    "part of a second": (pa.array([dt.timedelta(milliseconds=1500)], pa.duration("us")), REFUSED, 1.5),
    "UUID": (pa.array([UUID.bytes], pa.uuid()), REFUSED, str(UUID)),
    "unsigned": (pa.array([(1 << 64) - 1], pa.uint64()), REFUSED, (1 << 64) - 1),
    "half float": (pa.array([1.5], pa.float16()), REFUSED, 1.5),
    "NaN": (pa.array([math.nan]), REFUSED, None),
    "infinity": (pa.array([math.inf], pa.float32()), REFUSED, None),
    "null": (pa.array([None], pa.null()), REFUSED, None),
    "boolean": (pa.array([True]), REFUSED, True),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_asked_kept_or_refused_by_name(tmp_path: Path, name: str) -> None:
    values, asked, kept = VALUES[name]
    (row,) = read(tmp_path / "a.parquet", {"prompt": values}, Reading())
    if asked == REFUSED:
        assert isinstance(row, BadRow)
        assert "prompt" in row.reason
    else:
        assert isinstance(row, Prompt)
        assert row.messages == [{"role": "user", "content": asked}]
    columns = {"prompt": pa.array(["x"]), "id": values, "more": values}
    (row,) = read(tmp_path / "k.parquet", columns, Reading(keep=("more",)))
    if kept == REFUSED:
        assert isinstance(row, BadRow)
        assert (row.kind, "id holds bytes that are not UTF-8 at byte 0" in row.reason) == ("not_utf8", True)
    else:
        assert isinstance(row, Prompt)
        assert (row.id, type(row.id), row.extra) == (kept, type(kept), {"more": kept})


INNER = {
    "binary": (b"hi", pa.binary(), "hi"),
    "NaN": (math.nan, pa.float64(), None),
    "a decimal": (decimal.Decimal("1.5"), pa.decimal128(4, 1), "1.5"),
    "a date": (dt.date(2024, 1, 2), pa.date32(), "2024-01-02"),
}


@pytest.mark.parametrize("name", INNER)
def test_a_value_deep_inside_goes_by_the_same_rule(tmp_path: Path, name: str) -> None:
    inner, kind, plain = INNER[name]
    nested = {
        "list": (pa.array([[inner, None]], pa.list_(kind)), [plain, None]),
        "large list": (pa.array([[inner]], pa.large_list(kind)), [plain]),
        "fixed list": (pa.array([[inner]], pa.list_(kind, 1)), [plain]),
        "map": (pa.array([[("k", inner)]], pa.map_(pa.string(), kind)), {"k": plain}),
        "empty map": (pa.array([[]], pa.map_(pa.string(), kind)), {}),
        "struct": (pa.array([{"a": inner, "b": None}], pa.struct([("a", kind), ("b", kind)])), {"a": plain}),
    }
    for values, expected in nested.values():
        (row,) = read(tmp_path / "p.parquet", {"prompt": ["x"], "more": values}, Reading(keep=("more",)))
        assert isinstance(row, Prompt)
        assert row.extra == {"more": expected}
    turn = pa.struct([("role", pa.string()), ("content", kind)])
    turns = pa.array([[{"role": "user", "content": inner}]], pa.list_(turn))
    (row,) = read(tmp_path / "m.parquet", {"messages": turns}, Reading())
    if name == "binary":
        assert isinstance(row, Prompt)
        assert row.messages == [{"role": "user", "content": "hi"}]
    else:
        assert isinstance(row, BadRow)
        assert name == "NaN" or f"messages holds {name}" in row.reason


def test_a_map_with_other_keys_than_text_is_refused(tmp_path: Path) -> None:
    values = pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string()))
    (row,) = read(tmp_path / "p.parquet", {"prompt": ["x"], "more": values}, Reading(keep=("more",)))
    assert isinstance(row, BadRow)
    assert row.reason == "more holds a map whose keys are no text"


def test_one_bad_value_costs_its_row_alone(tmp_path: Path) -> None:
    prompts = pa.array([b"a", b"\xff", b"c"], pa.binary())
    turns = pa.array([[{"role": "user", "content": text}] for text in (b"x", b"y", b"\xc3")])
    rows = read(tmp_path / "p.parquet", {"prompt": prompts}, Reading())
    assert [row.kind if isinstance(row, BadRow) else "asked" for row in rows] == ["asked", "not_utf8", "asked"]
    rows = read(tmp_path / "p.parquet", {"messages": turns}, Reading())
    assert [row.kind if isinstance(row, BadRow) else "asked" for row in rows] == ["asked", "asked", "not_utf8"]


KINDS = st.recursive(
    st.sampled_from(
        [
            *(pa.string(), pa.binary(), pa.float64(), pa.float32(), pa.int64(), pa.uint64(), pa.bool_(), pa.date32()),
            *(pa.timestamp("us"), pa.timestamp("ns"), pa.time64("ns"), pa.duration("ms"), pa.decimal128(20, 3)),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        inner.map(lambda k: pa.struct([("a", k)])),
    ),
    max_leaves=3,
)


@given(data=st.data(), kind=KINDS)
def test_whatever_a_column_holds_it_becomes_strict_json_or_a_bad_row(
    data: st.DataObject, kind: pa.DataType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = [data.draw(_value(kind)) for _ in range(3)]
    columns = {"prompt": pa.array(["x"] * 3), "more": pa.array(values, kind)}
    rows = read(tmp_path_factory.getbasetemp() / "any.parquet", columns, Reading(keep=("more",)))
    assert [row.index for row in rows] == [0, 1, 2]
    for row in rows:
        if isinstance(row, Prompt):
            json.dumps(row.extra, allow_nan=False)
            assert "b'" not in str(row.extra)
            assert "datetime" not in str(row.extra)


def _value(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_list(kind):
        return st.lists(_value(kind.value_type), max_size=2)
    if types.is_map(kind):
        return st.lists(st.tuples(st.sampled_from("kl"), _value(kind.item_type)), max_size=1)
    if types.is_struct(kind):
        return st.one_of(st.none(), st.fixed_dictionaries({"a": _value(kind.field(0).type)}))
    if types.is_string(kind):
        return st.sampled_from(["", "x", "\U0001f600"])
    if types.is_binary(kind):
        return st.sampled_from([b"x", b"\xff", b""])
    if types.is_floating(kind):
        return st.floats(width=32)
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_decimal(kind):
        return st.decimals(-1000, 1000, places=3)
    return st.integers(0, 70_000)


def test_a_parquet_of_binary_prompts_is_asked_as_text_and_what_is_no_text_ends_with_3(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.parquet"
    table = pa.table({"prompt": pa.array([b"prompt 0", b"\xff", b"prompt 2"], pa.binary()), "n": [math.nan, 1.0, 2.0]})
    parquet.write_table(table, prompts)
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--keep", "n") == 3
        assert rig.generate(prompts, "--keep", "n") == 3
        assert rig.requests() == 2
    found = {record["index"]: record for record in records(rig.output)}
    assert {i: record["messages"][0]["content"] for i, record in found.items()} == {0: "prompt 0", 2: "prompt 2"}
    assert found[0]["extra"] == {"n": None}
