"""Files of one JSON object a line that only grow: which of their lines are whole, and leaving only those.

A line whose write was cut off has no newline. One that lost sectors with the power holds NUL bytes, wherever in the
piece that wasn't synced it stands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from remote import fastjson
from remote.output.append_file import sync_directory
from remote.output.index_set import MAX_INDEX, IndexSet

PARSED_TAIL_BYTES = 16 << 20
"""At a file's end, whose lines are parsed whole; an unsynced piece is never longer."""
_AS_IT_IS: Mapping[int, bytes] = {}
_HEAD = re.compile(rb'\{"index":(\d{1,10})[,}]')


def record_index(line: bytes, *, whole: bool) -> int | None:
    """The index of a record's line (with its newline), None when the line is torn or no record."""
    match = _HEAD.match(line)
    if match is None or not is_object(line, parsed=whole):
        return None
    index = int(match[1])
    return index if index <= MAX_INDEX else None


def is_object(line: bytes, *, parsed: bool) -> bool:
    """Whether the line is a whole JSON object; without `parsed` by its ends, and by the NULs of lost sectors."""
    if not line.startswith(b"{") or not line.endswith(b"}\n") or b"\0" in line:
        return False
    return fastjson.is_json(line) if parsed else True


def repair_lines(path: Path, note: Callable[[bytes], object] = len) -> int:
    """Leaves only whole objects, synced, and tells `note` each line; gives how many bytes went. No file is fine."""
    if not path.exists():
        return 0
    spans: list[tuple[int, int]] = []
    at = 0
    total = path.stat().st_size
    with path.open("rb") as file:
        for line in file:
            end = at + len(line)
            if is_object(line, parsed=end > total - PARSED_TAIL_BYTES):
                note(line)
                add_span(spans, at, end)
            at = end
    put_spans(path, spans)
    return at - sum(end - start for start, end in spans)


def add_span(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """One that touches the last makes it longer."""
    if spans and spans[-1][1] == start:
        start = spans.pop()[0]
    spans.append((start, end))


def put_spans(path: Path, spans: Sequence[tuple[int, int]], instead: Mapping[int, bytes] = _AS_IT_IS) -> None:
    """Leaves only those spans, synced: a tail is cut, anything else is written anew. `instead`: what must stand in
    place of the span that begins there."""
    good = sum(end - start for start, end in spans)
    if not instead and (not spans or list(spans) == [(0, good)]):
        with path.open("r+b") as file:
            file.truncate(good)
            os.fsync(file.fileno())
        return
    temporary = path.with_name(path.name + ".tmp")
    with path.open("rb") as source, temporary.open("wb") as target:
        for start, end in spans:
            source.seek(start)
            left = 0 if start in instead else end - start
            target.write(instead.get(start, b""))
            while left:
                block = source.read(min(left, 1 << 20))
                target.write(block)
                left -= len(block)
        target.flush()
        os.fsync(target.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def cut_torn_line(path: Path) -> None:
    """Cuts what follows the last newline, of a file that holds no objects."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = at = file.seek(0, os.SEEK_END)
        keep = 0
        while at > 0:
            start = max(0, at - (1 << 16))
            file.seek(start)
            newline = file.read(at - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            at = start
        if keep != size:
            file.truncate(keep)
            os.fsync(file.fileno())


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines that have a newline; none when there is no file."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def line_index(line: bytes) -> int | None:
    """The `index` of an object's line, None when it has none."""
    index = record_index(line, whole=False)
    if index is None:
        try:
            index = json.loads(line)["index"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
    return index if isinstance(index, int) and 0 <= index <= MAX_INDEX else None


def observe_indices(path: Path) -> IndexSet:
    """The `index` of each whole line of failures.jsonl or rejected.jsonl."""
    return IndexSet(index for line in whole_lines(path) if (index := line_index(line)) is not None)
