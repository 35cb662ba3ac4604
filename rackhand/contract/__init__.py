"""The JSON that both sides share. Pure, standard library only, Python 3.10; travels in the zipapp.

A call
------
The control side runs one verb of the zipapp inside the container, over any road, as::

    env -i PATH=... LANG=C.UTF-8 PYTHON -c BOOT ZIP_BYTES NONCE VERB

stdin is the zipapp (ZIP_BYTES bytes), then one line of JSON (the request), then the verb's body, if it has one.
BOOT keeps the zipapp in memory and runs it: nothing is left on a disk; HOME is the user's own there. stdout is one
JSON object a line (events), each with an `event` key; the last line is the sentinel, made by `end`: no sentinel, no
answer. stderr is for people.

Values are dataclasses; `to_json` and `from_json` turn them into plain JSON and back. Unknown keys are ignored when
reading, so that an older side can talk to a newer one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_hints = functools.lru_cache(maxsize=256)(typing.get_type_hints)
"""Of a dataclass: reading its annotations takes longer than reading an object of it."""

BOOT = (
    "import os,sys;n=int(sys.argv[1]);f=os.memfd_create('rackhand',0)\n"
    "while n>0:\n"
    " b=os.read(0,min(n,65536))\n"
    " if not b:sys.exit('rackhand: input ended early')\n"
    " n-=len(b);os.write(f,b)\n"
    "os.execv(sys.executable,[sys.executable,'-B','/proc/self/fd/%d'%f,'call',*sys.argv[2:]])"
)
"""Runs the zipapp from stdin. ASCII only: pct replaces other characters. Unbuffered reads: the rest is the verb's."""

END = "end"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a verb failed. `kind` is for programs: failed, usage, busy, disk_full, read_only, missing, interrupted ..."""

    kind: str
    what: str
    hint: str = ""


def end(nonce: str, failure: Failure | None = None) -> str:
    """The sentinel line, without its newline."""
    error = None if failure is None else to_json(failure)
    return json.dumps({"event": END, "nonce": nonce, "error": error})


def to_json(value: object) -> Any:
    """Dataclasses become objects, tuples lists; everything else must be JSON already."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(kind: type[T], data: Any) -> T:
    """The dataclass `kind` from decoded JSON. Raises ValueError that names the field when the shape is wrong."""
    return typing.cast("T", _read(kind, data, kind.__name__))


def _read(kind: Any, data: Any, at: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin in (typing.Union, types.UnionType):
        return _read_union(kind, data, at)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{at}: expected a list, not {type(data).__name__}")
        item = typing.get_args(kind)[0]
        return tuple(_read(item, v, f"{at}[{i}]") for i, v in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            raise ValueError(f"{at}: expected an object, not {type(data).__name__}")
        key, item = typing.get_args(kind)
        return {(int(k) if key is int else k): _read(item, v, f"{at}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, at)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and (not isinstance(data, kind) or (kind is int and isinstance(data, bool))):
        raise ValueError(f"{at}: expected {kind.__name__}, not {type(data).__name__}")
    return data


def _read_union(kind: Any, data: Any, at: str) -> Any:
    problems = []
    for option in typing.get_args(kind):
        if option is type(None):
            if data is None:
                return None
            continue
        try:
            return _read(option, data, at)
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(problems[0] if problems else f"{at}: expected null")


def _read_dataclass(kind: Any, data: Any, at: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{at}: expected an object, not {type(data).__name__}")
    hints = _hints(kind)
    values = {}
    for f in dataclasses.fields(kind):
        if f.name in data:
            values[f.name] = _read(hints[f.name], data[f.name], f"{at}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{at}.{f.name} is missing")
    return kind(**values)
