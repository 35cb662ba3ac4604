"""The JSON that both sides share. Pure, standard library only, Python 3.10; travels in the zipapp.

A session
---------
The control side runs one process inside the container, over any road, for all that a verb of ./inv asks there::

    env -i PATH=... LANG=C.UTF-8 PYTHON -c BOOT ZIP_BYTES NONCE PYTHON

It says that it is ready before anything is sent to it: until then a start-up file of some shell may be what reads.
Then stdin is the zipapp (ZIP_BYTES bytes) and requests, one after another, in frames (`wire.frame`): a JSON object
with `verb`, `python` and `request`, then the frames of the verb's body, then an empty one. BOOT keeps the zipapp in
memory and runs it: nothing is left on a disk; HOME is the user's own there. Each request is carried out by a fork,
which has the body as its stdin: no request sees what another left in memory. One that wants another PYTHON than the
process's makes it exec that one first.

stdout is one JSON object a line (events), each with an `event` key. Each line of ours is marked with the nonce
(`wire.tell`); what isn't marked was said by somebody else, a start-up file most likely. A request's last line is the
sentinel (`wire.end`), with a `Failure` or null: no sentinel, no answer. Between requests a line says now and then that
the process is idle, so that a dead road is noticed. The end of stdin ends it. stderr is for people.

Values are dataclasses; `to_json` and `from_json` turn them into plain JSON and back. Unknown keys are ignored when
reading, so that an older side can talk to a newer one.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_hints = functools.lru_cache(maxsize=256)(typing.get_type_hints)
"""Of a dataclass: reading its annotations takes longer than reading an object of it."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a verb failed. `kind` is for programs: failed, usage, busy, disk_full, read_only, missing, interrupted ...

    no_python: its interpreter can't be run; killed, crashed: it ended without a word, or by an error of its own.
    `detail` is for --verbose.
    """

    kind: str
    what: str
    hint: str = ""
    detail: str = ""


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
