"""Zstandard files: any number of frames, one after the other. A frame that isn't whole is never taken for the end."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remote.packages import load_package

_BLOCK = 1 << 20
_LARGEST_WINDOW = 1 << 27


def load_zstd(what: str) -> Any:
    return load_package("zstandard", what)


class ZstdFile(io.RawIOBase):
    """The decompressed bytes of `path`. OSError for damage, EOFError when the last frame isn't whole."""

    def __init__(self, path: Path) -> None:
        self._zstd = load_zstd(f"reading {path.name}")
        self._file = path.open("rb")
        self._path = path
        self._frame: Any = None
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._data:
            block = self._file.read(_BLOCK) if self._frame is None or not self._frame.unused_data else b""
            if not block and (self._frame is None or not self._frame.eof):
                if self._frame is not None:
                    raise EOFError(f"{self._path} ends inside a frame; is it whole?")
                return 0
            self._data = memoryview(self._decompress(block))
        taken = min(len(buffer), len(self._data))
        buffer[:taken] = self._data[:taken]
        self._data = self._data[taken:]
        return taken

    def _decompress(self, block: bytes) -> bytes:
        if self._frame is not None and self._frame.eof:
            block = self._frame.unused_data + block
            self._frame = None
        if not block:
            return b""
        if self._frame is None:
            self._frame = self._zstd.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        try:
            data: bytes = self._frame.decompress(block)
        except self._zstd.ZstdError as error:
            raise OSError(f"{self._path} is damaged: {error}") from None
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def whole_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each frame that is whole and undamaged from the start on: where it ends, and its bytes decompressed.

    Ends at the first one that isn't. Frames are held in memory one at a time.
    """
    zstd = load_zstd(f"reading {path.name}")
    with path.open("rb") as file:
        rest, at = b"", 0
        while True:
            frame = zstd.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
            parts = []
            read = 0
            try:
                while not frame.eof:
                    block = rest or file.read(_BLOCK)
                    rest = b""
                    if not block:
                        return
                    read += len(block)
                    parts.append(frame.decompress(block))
            except zstd.ZstdError:
                return
            rest = frame.unused_data
            at += read - len(rest)
            yield at, b"".join(parts)
