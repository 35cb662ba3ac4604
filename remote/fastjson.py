"""JSON bytes in and out: orjson where it can be imported, the standard library otherwise, with the same answers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _standard_loads(data: bytes) -> Any:
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _standard_dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _load() -> tuple[Callable[[bytes], Any], Callable[[object], bytes]]:
    try:
        orjson = importlib.import_module("orjson")
    except ImportError:
        return _standard_loads, _standard_dumps

    def dumps(value: object) -> bytes:
        try:
            data: bytes = orjson.dumps(value)
        except TypeError:
            # An integer of more than 64 bits, or a lone surrogate in a name.
            data = _standard_dumps(value)
        return data

    return orjson.loads, dumps


loads, dumps = _load()
"""`loads` raises ValueError; `dumps` gives one line without its newline."""
