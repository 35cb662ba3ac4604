"""A file of zstd frames with checksums, one a commit group: each frame stands for itself.

Damage costs the frame it is in. What follows is found again by the mark that every frame begins with.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.packages import load_package

SUFFIX = ".zst"
_MARK = b"\x28\xb5\x2f\xfd"
_BLOCK = 1 << 20
_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """A frame and its bytes decompressed; `data` None: bytes that are no whole frame."""

    start: int
    end: int
    data: bytes | None


class Frames:
    """Makes frames. MissingPackageError when zstandard isn't here."""

    def __init__(self) -> None:
        zstd = load_package("zstandard", "--compress zstd")
        self._compressor: Any = zstd.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)

    def frame(self, data: bytes) -> bytes:
        """One frame that holds all of `data`."""
        made: bytes = self._compressor.compress(data)
        return made


def observe_frames(path: Path) -> Iterator[Piece]:
    """All bytes of `path`, frame by frame; one frame is in memory at a time."""
    zstd = load_package("zstandard", f"reading {path.name}")
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        at = 0
        while at < len(view):
            found = _decompress(zstd, view, at)
            if found is None:
                following = view.find(_MARK, at + 1)
                while following >= 0 and _decompress(zstd, view, following) is None:
                    following = view.find(_MARK, following + 1)
                end = following if following >= 0 else len(view)
                yield Piece(at, end, None)
            else:
                end = found[0]
                yield Piece(at, end, found[1])
            at = end


def _decompress(zstd: Any, view: mmap.mmap, start: int) -> tuple[int, bytes] | None:
    """Where the frame that begins at `start` ends, and its bytes; None when it isn't whole or its checksum differs."""
    if view[start : start + len(_MARK)] != _MARK:
        return None
    frame = zstd.ZstdDecompressor().decompressobj()
    parts = []
    at = start
    try:
        while not frame.eof:
            block = view[at : at + _BLOCK]
            if not block:
                return None
            parts.append(frame.decompress(block))
            at += len(block)
    except zstd.ZstdError:
        return None
    return at - len(frame.unused_data), b"".join(parts)
