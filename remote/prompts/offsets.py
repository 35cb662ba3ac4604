"""Where the lines of a plain prompts file begin: a sample every MiB, kept beside the output.

So a resume goes to the first row that is wanted, and the rows aren't counted twice. A cache: it may be missing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rackhand.contract import from_json
from rackhand.contract.job import PromptsDigest
from remote.output.append_file import put_whole
from remote.prompts.files import observe_kind
from remote.prompts.rows import RowCount, count_rows

OFFSETS_FILE = ".prompts_offsets"
_FORMAT = 1
_NEAR_ROWS = 64
"""Rows that are rather read than jumped over."""


def _longs() -> array[int]:
    return array("Q", [0])


@dataclass
class PromptOffsets:
    """Row `rows[i]` begins at byte `offsets[i]`; both ascend from 0."""

    rows: array[int] = field(default_factory=_longs)
    offsets: array[int] = field(default_factory=_longs)

    def note(self, row: int, offset: int) -> None:
        self.rows.append(row)
        self.offsets.append(offset)

    def before(self, row: int) -> tuple[int, int]:
        """The last sample at or before `row`."""
        at = bisect_right(self.rows, row) - 1
        return self.rows[at], self.offsets[at]


@dataclass
class KnownPrompts:
    """What is kept of a prompts file beside `output`, for its `shard` (I of N). `count` None: not counted yet."""

    path: Path
    output: Path
    digest: PromptsDigest
    shard: tuple[int, int]
    offsets: PromptOffsets = field(default_factory=PromptOffsets)
    count: RowCount | None = None

    def count_rows(self) -> RowCount:
        """Reads the whole file unless it was counted before, and keeps what it found; OSError, EOFError."""
        if self.count is None:
            sampled = PromptOffsets()
            note = sampled.note if observe_kind(self.path) == "lines" else None
            self.count = count_rows(self.path, shard=self.shard[0], shards=self.shard[1], note=note)
            self._put(sampled, self.count)
        return self.count

    def forget(self) -> None:
        """For a file that changed: what was kept may be of either state."""
        self.count = None
        (self.output / OFFSETS_FILE).unlink(missing_ok=True)

    def _put(self, offsets: PromptOffsets, count: RowCount) -> None:
        data = offsets.rows.tobytes() + offsets.offsets.tobytes()
        head = _head(self.digest, self.shard) | {"count": asdict(count), "crc32": zlib.crc32(data)}
        with contextlib.suppress(OSError):
            put_whole(self.output / OFFSETS_FILE, json.dumps(head).encode() + b"\n" + data, sync=False)


def observe_known(path: Path, output: Path, digest: PromptsDigest, shard: tuple[int, int]) -> KnownPrompts:
    """Without count and offsets when nothing whole of these prompts and this shard is kept."""
    known = KnownPrompts(path, output, digest, shard)
    try:
        line, _, data = (output / OFFSETS_FILE).read_bytes().partition(b"\n")
        head = json.loads(line)
        count, crc = head.pop("count"), head.pop("crc32")
        if head == _head(digest, shard) and crc == zlib.crc32(data) and len(data) % 16 == 0:
            half = len(data) // 2
            rows = from_json(RowCount, count)
            known.offsets = PromptOffsets(array("Q", data[:half]), array("Q", data[half:]))
            known.count = rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return known


def _head(digest: PromptsDigest, shard: tuple[int, int]) -> dict[str, object]:
    return {"format": _FORMAT, "prompts": asdict(digest), "shard": list(shard), "byteorder": sys.byteorder}


class RowSkipper:
    """Moves a file of lines from one row to the next wanted one."""

    def __init__(self, next_wanted: Callable[[int], int], offsets: PromptOffsets) -> None:
        self._next_wanted = next_wanted
        self._offsets = offsets

    def __call__(self, file: BinaryIO, row: int) -> int:
        """The row at which `file` stands afterwards; at its end, any row that isn't there. Near rows stay unread."""
        wanted = self._next_wanted(row)
        if wanted - row < _NEAR_ROWS:
            return row
        sampled, offset = self._offsets.before(wanted)
        if sampled > row:
            file.seek(offset)
            row = sampled
        deque(islice(file, wanted - row), maxlen=0)
        return wanted
