"""Shards on disk: their names, the manifest of closed ones, and what a scan of one finds.

A shard holds one record a line, `{"index":N,...}`; a `.zst` one holds such lines in frames, one frame a commit. Only
its tail can be torn: everything before it was synced.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Container
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rackhand.contract import from_json
from remote.output.append_file import put_whole
from remote.output.index_set import IndexSet
from remote.output.jsonl import PARSED_TAIL_BYTES, add_span, put_spans, record_index, whole_lines
from remote.output.zstd_frames import SUFFIX, Frames, observe_frames

SHARD = re.compile(r"completions-\d{5,}\.jsonl(\.zst)?")


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
            index = record_index(line, whole=at + len(line) > total - PARSED_TAIL_BYTES)
            if index is None:
                bad += len(line)
            elif index in seen or not here.add(index):
                bad += len(line)
                duplicates += 1
            else:
                indices.append(index)
                add_span(spans, at, at + len(line))
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
    """Leaves only the good lines, synced."""
    put_spans(scan.path, scan.spans, scan.rewritten)


def observe_sha256(path: Path) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


def observe_manifest(path: Path) -> dict[str, Closed]:
    """Entries by shard name, the last one for a name; torn or foreign lines are left out."""
    found: dict[str, Closed] = {}
    for line in whole_lines(path):
        try:
            entry = from_json(Closed, json.loads(line))
        except ValueError:
            continue
        if SHARD.fullmatch(entry.shard) and entry.done_bytes >= 0:
            found[entry.shard] = entry
    return found


def put_manifest(path: Path, entries: list[Closed]) -> None:
    put_whole(path, b"".join(manifest_line(entry) for entry in entries), sync=True)


def manifest_line(entry: Closed) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"
