"""The head of `.done_indices` as bits, so that a resume needn't read ten million lines. A cache: it may be missing.

One line of JSON, then the bits. It stands for the first `done_bytes` of `.done_indices`, is made when a shard is
closed, and is believed only when the checksums of both files fit.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path

from rackhand.contract.job import DONE_FILE
from remote.output.append_file import put_whole
from remote.output.done_file import observe_done
from remote.output.index_set import IndexSet

BITS_FILE = ".done_indices.bits"
_FORMAT = 1
_BLOCK = 1 << 20
_HEAD_BYTES = 4096


def put_bits(output: Path, indices: IndexSet, done_bytes: int) -> None:
    """`indices` are exactly those in the first `done_bytes` of `.done_indices`, synced. An error leaves no file."""
    with contextlib.suppress(OSError):
        bits = indices.to_bits()
        crc = _crc32(output / DONE_FILE, done_bytes)
        head = {"format": _FORMAT, "done_bytes": done_bytes, "done_crc32": crc, "bits_crc32": zlib.crc32(bits)}
        put_whole(output / BITS_FILE, json.dumps(head).encode() + b"\n" + bits, sync=True)


def observe_bits(output: Path, done_bytes: int) -> IndexSet | None:
    """The indices in the first `done_bytes` of `.done_indices`; None when the cache isn't of just these bytes."""
    try:
        line, _, bits = (output / BITS_FILE).read_bytes().partition(b"\n")
        head = json.loads(line)
        wanted = {"format": _FORMAT, "done_bytes": done_bytes, "bits_crc32": zlib.crc32(bits)}
        if any(head[key] != value for key, value in wanted.items()):
            return None
        if head["done_crc32"] != _crc32(output / DONE_FILE, done_bytes):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return IndexSet.from_bits(bits)


def count_done(output: Path) -> int:
    """How many indices `.done_indices` holds; only what the bits don't stand for is read as text."""
    start, known = 0, None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), (output / BITS_FILE).open("rb") as file:
        start = int(json.loads(file.readline(_HEAD_BYTES))["done_bytes"])
        known = observe_bits(output, start)
    return len(observe_done(output / DONE_FILE, start=start if known is not None else 0, known=known).indices)


def _crc32(path: Path, size: int) -> int:
    crc = 0
    with path.open("rb") as file:
        while size and (block := file.read(min(_BLOCK, size))):
            crc = zlib.crc32(block, crc)
            size -= len(block)
    if size:
        raise ValueError(f"{path} is shorter")
    return crc
