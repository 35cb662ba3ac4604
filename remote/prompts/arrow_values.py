"""Values of Parquet columns as JSON's types: converted on purpose, or refused by name. Nothing goes through `str`.

In every column: text, numbers and booleans as they are; NaN and infinities null; binary as UTF-8; maps with names as
keys and structs as objects, without a struct's nulls. Where a value is only kept (`id`, `keep`), also: a decimal as an
integer, or as its exact text when it has places; dates and times as ISO 8601; durations as seconds; UUIDs as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from remote.prompts.oddities import BadKind

Convert = Callable[[Any], Any]


class BadValueError(ValueError):
    """One line that says which column holds what."""

    def __init__(self, what: str, kind: BadKind = "shape") -> None:
        super().__init__(what)
        self.kind = kind


_NAMES: tuple[tuple[type, str], ...] = (
    (datetime, "a timestamp"),
    (date, "a date"),
    (time, "a time"),
    (timedelta, "a duration"),
    (Decimal, "a decimal"),
    (UUID, "a UUID"),
)


def converter(types: Any, kind: Any, column: str, *, kept: bool) -> Convert:
    """Of a column of the Arrow type `kind`, made once; `types` is pyarrow.types. It raises BadValueError."""

    def inner(part: Any) -> Convert:
        return converter(types, part, column, kept=kept)

    def leaf(value: Any) -> Any:
        return _leaf(value, column, kept=kept)

    if types.is_dictionary(kind):
        return inner(kind.value_type)
    if types.is_struct(kind):
        return _struct([(field.name, inner(field.type)) for field in kind])
    if types.is_map(kind):
        return _map(inner(kind.key_type), inner(kind.item_type), column)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = inner(kind.value_type)
        return lambda value: None if value is None else [item(one) for one in value]
    return leaf


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    def convert(value: dict[str, Any] | None) -> Any:
        if value is None:
            return None
        return {name: to_json(value[name]) for name, to_json in fields if value.get(name) is not None}

    return convert


def _map(key: Convert, item: Convert, column: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        pairs = [(key(name), item(one)) for name, one in (value.items() if isinstance(value, dict) else value)]
        if not all(isinstance(name, str) for name, _ in pairs):
            raise BadValueError(f"{column} holds a map whose keys are no text")
        return dict(pairs)

    return convert


def _leaf(value: Any, column: str, *, kept: bool) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            what = f"{column} holds bytes that are not UTF-8 at byte {error.start}"
            raise BadValueError(what, "not_utf8") from None
    if isinstance(value, list):
        return [_leaf(one, column, kept=kept) for one in value]
    if isinstance(value, dict):
        return {name: _leaf(one, column, kept=kept) for name, one in value.items()}
    name = next((name for kind, name in _NAMES if isinstance(value, kind)), None)
    if name is None:
        raise BadValueError(f"{column} holds a {type(value).__name__}, which is no JSON")
    if not kept:
        raise BadValueError(f"{column} holds {name}, not text or JSON")
    return _kept(value)


def _kept(value: Any) -> Any:
    if isinstance(value, Decimal):
        has_places = isinstance(exponent := value.as_tuple().exponent, int) and exponent < 0
        return f"{value:f}" if has_places or not value.is_finite() else int(value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return f"{value}" if isinstance(value, UUID) else value.isoformat()
