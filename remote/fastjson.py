"""JSON bytes in and out: orjson where it can be imported, the standard library otherwise, with the same answers.

Whatever `loads` gives, `dumps` can write, and `loads` reads it again: integers of any size stay exact, NaN and
infinities are never written.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 240
"""Of what is read. orjson writes 254 levels, and the standard library's own limit moves with the stack."""
_DIGITS = bytes(ord("0") if chr(byte) in "123456789" else byte for byte in range(256))
_LONG = b"0" * 19
"""From here on an integer may have more than 64 bits; orjson makes a float of it."""
_LONGEST_INT = 4300
"""Python's own limit, which is a ValueError."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class DeepError(ValueError):
    """JSON with more levels than can be read and written again."""


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return None if math.isinf(value) else value


def _short_or_none(text: str) -> int | None:
    return int(text) if len(text) <= _LONGEST_INT else None


def _none(_: str) -> None:
    return None


def depth_of(value: object) -> int:
    """Of lists and dicts, level by level: no recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _checked(value: Any, data: bytes) -> Any:
    """Counting brackets first costs next to nothing; few lines have as many."""
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and depth_of(value) > MAX_DEPTH:
        raise DeepError("nested too deeply")
    return value


def _standard_loads(data: bytes) -> Any:
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate") from None
    except RecursionError:
        raise DeepError("nested too deeply") from None
    return _checked(value, data)


def _standard_dumps(value: object) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _load() -> tuple[Callable[[bytes], Any], Callable[[object], bytes]]:
    try:
        orjson = importlib.import_module("orjson")
    except ImportError:
        return _standard_loads, _standard_dumps

    def loads(data: bytes) -> Any:
        # Ten times as fast as a regular expression.
        if _LONG in data.translate(_DIGITS):
            return _standard_loads(data)
        try:
            return _checked(orjson.loads(data), data)
        except orjson.JSONDecodeError as error:
            if re.search("depth|recursion", str(error), re.IGNORECASE):
                raise DeepError("nested too deeply") from None
            raise

    def dumps(value: object) -> bytes:
        try:
            data: bytes = orjson.dumps(value)
        except TypeError:
            # An integer of more than 64 bits, or a lone surrogate.
            data = _standard_dumps(value)
        return data

    return loads, dumps


loads, dumps = _load()
"""`loads` raises ValueError; `dumps` gives one line without its newline: NaN as null, a lone surrogate as U+FFFD."""


def loads_answer(data: bytes) -> tuple[Any, bool]:
    """As `loads`, but for a server's answer, which is paid for. NaN, Infinity, 1e999 and integers of more than 4,300
    digits in it are read as null; raw control characters are taken. A lone surrogate and bytes that are no UTF-8
    become U+FFFD, and the second value tells that."""
    try:
        return loads(data), False
    except DeepError:
        raise
    except ValueError:
        text = data.decode("utf-8-sig", "replace")
    try:
        value = _loads_lenient(text)
    except RecursionError:
        raise DeepError("nested too deeply") from None
    value = _checked(value, data)
    if "\\u" in text:
        text = json.dumps(value, ensure_ascii=False)
        value = _loads_lenient(_SURROGATE.sub("\ufffd", text))
    return value, _SURROGATE.search(text) is not None or not _is_utf8(data)


def _loads_lenient(text: str) -> Any:
    return json.loads(text, strict=False, parse_constant=_none, parse_float=_finite_or_none, parse_int=_short_or_none)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_json(data: bytes) -> bool:
    """Whether a line is whole JSON, whoever wrote it, however deep."""
    try:
        loads(data)
    except DeepError:
        return True
    except ValueError:
        return False
    return True
