"""Shards on disk: their names, the manifest of closed ones, and what a scan of one finds.

A shard holds one record a line, `{"index":N,...}`; a `.zst` one holds such lines in frames, one frame a commit. Only
its tail can be torn: everything before it was synced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from remote import fastjson
from remote.output.append_file import put_whole, sync_directory
from remote.output.index_set import MAX_INDEX, IndexSet
from remote.output.zstd_frames import SUFFIX, Frames, observe_frames

SHARD = re.compile(r"completions-\d{5,}\.jsonl(\.zst)?")
_HEAD = re.compile(rb'\{"index":(\d{1,10})[,}]')
_PARSED_TAIL = 16 << 20
"""Bytes at a shard's end whose records are parsed whole; an unsynced piece is never longer."""


@dataclass(frozen=True)
class Closed:
    """One line of manifest.jsonl. `done_bytes` and `done_count`: how long `.done_indices` was, synced, by then."""

    shard: str
    count: int
    first_index: int | None
    last_index: int | None
    size: int
    sha256: str
    done_bytes: int
    done_count: int
    closed: str


@dataclass(frozen=True)
class Scan:
    """A shard as found: the spans of good lines (or whole frames), their indices in file order, and how many bytes must
    go. `rewritten`: what must stand instead of the span that begins there."""

    path: Path
    indices: array[int]
    spans: list[tuple[int, int]]
    size: int
    bad_bytes: int
    duplicates: int
    rewritten: dict[int, bytes] = field(default_factory=dict)


def shard_name(number: int, *, compressed: bool = False) -> str:
    return f"completions-{number:05d}.jsonl{SUFFIX if compressed else ''}"


def is_compressed(path: Path) -> bool:
    return path.suffix == SUFFIX


def shard_number(name: str) -> int:
    """Of a name that SHARD matches."""
    return int(name.removeprefix("completions-").partition(".")[0])


def observe_shards(output: Path) -> dict[int, Path]:
    """The shards in `output` by number, ascending."""
    found = {}
    for path in output.iterdir():
        if SHARD.fullmatch(path.name):
            found[shard_number(path.name)] = path
    return dict(sorted(found.items()))


def record_index(line: bytes, *, whole: bool) -> int | None:
    """The index of a record's line (with its newline), None when the line is torn or no record."""
    match = _HEAD.match(line)
    if match is None or not line.endswith(b"}\n") or b"\0" in line:
        return None
    index = int(match[1])
    if index > MAX_INDEX:
        return None
    if whole:
        try:
            fastjson.loads(line)
        except ValueError:
            return None
    return index


def observe_shard(path: Path, seen: IndexSet) -> Scan:
    """Reads a shard to its end. An index that is in `seen` or came before in the shard counts as a bad line."""
    if is_compressed(path):
        return _observe_frames(path, seen)
    indices: array[int] = array("Q")
    spans: list[tuple[int, int]] = []
    here = IndexSet()
    at = bad = duplicates = 0
    total = path.stat().st_size
    with path.open("rb") as file:
        for line in file:
            index = record_index(line, whole=at + len(line) > total - _PARSED_TAIL)
            if index is None:
                bad += len(line)
            elif index in seen or not here.add(index):
                bad += len(line)
                duplicates += 1
            else:
                indices.append(index)
                if spans and spans[-1][1] == at:
                    spans[-1] = (spans[-1][0], at + len(line))
                else:
                    spans.append((at, at + len(line)))
            at += len(line)
    return Scan(path, indices, spans, at, bad, duplicates)


def _observe_frames(path: Path, seen: IndexSet) -> Scan:
    """A frame's checksum vouches for its lines."""
    scan = Scan(path, array("Q"), [], path.stat().st_size, 0, 0)
    here = IndexSet()
    bad = duplicates = 0
    for piece in observe_frames(path):
        lines = [] if piece.data is None else [line + b"\n" for line in piece.data.split(b"\n")[:-1]]
        kept = []
        for line in lines:
            index = record_index(line, whole=False)
            if index is not None and index not in seen and here.add(index):
                scan.indices.append(index)
                kept.append(line)
            duplicates += index is not None and (not kept or kept[-1] is not line)
        if kept:
            scan.spans.append((piece.start, piece.end))
        if len(kept) < len(lines) or not kept:
            bad += piece.end - piece.start
            if kept:
                scan.rewritten[piece.start] = Frames().frame(b"".join(kept))
    return replace(scan, spans=_joined(scan.spans, scan.rewritten), bad_bytes=bad, duplicates=duplicates)


def _joined(spans: list[tuple[int, int]], apart: Container[int]) -> list[tuple[int, int]]:
    """Spans that touch become one, except those that begin at `apart`."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start and start not in apart and joined[-1][0] not in apart:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def repair_shard(scan: Scan) -> None:
    """Leaves only the good lines, synced: a torn tail is cut, anything else is written anew."""
    good = sum(end - start for start, end in scan.spans)
    if not scan.rewritten and (not scan.spans or scan.spans == [(0, good)]):
        with scan.path.open("r+b") as file:
            file.truncate(good)
            os.fsync(file.fileno())
        return
    temporary = scan.path.with_name(scan.path.name + ".tmp")
    with scan.path.open("rb") as source, temporary.open("wb") as target:
        for start, end in scan.spans:
            if start in scan.rewritten:
                target.write(scan.rewritten[start])
                continue
            source.seek(start)
            left = end - start
            while left:
                block = source.read(min(left, 1 << 20))
                target.write(block)
                left -= len(block)
        target.flush()
        os.fsync(target.fileno())
    temporary.replace(scan.path)
    sync_directory(scan.path.parent)


def observe_sha256(path: Path) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


def observe_manifest(path: Path) -> dict[str, Closed]:
    """Entries by shard name, the last one for a name; torn or foreign lines are left out."""
    found: dict[str, Closed] = {}
    names = {f.name for f in fields(Closed)}
    for line in _lines(path):
        try:
            row = json.loads(line)
            entry = Closed(**{k: v for k, v in row.items() if k in names})
        except (ValueError, TypeError, AttributeError):
            continue
        if SHARD.fullmatch(entry.shard):
            found[entry.shard] = entry
    return found


def put_manifest(path: Path, entries: list[Closed]) -> None:
    put_whole(path, b"".join(manifest_line(entry) for entry in entries), sync=True)


def manifest_line(entry: Closed) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def observe_indices(path: Path) -> IndexSet:
    """The `index` of each whole line of failures.jsonl or rejected.jsonl."""
    found = IndexSet()
    for line in _lines(path):
        try:
            index = json.loads(line)["index"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(index, int) and 0 <= index <= MAX_INDEX:
            found.add(index)
    return found


def cut_torn_line(path: Path) -> int:
    """Cuts what follows the last newline; gives the size that is left, 0 when there is no file."""
    if not path.exists():
        return 0
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
    return keep


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return
