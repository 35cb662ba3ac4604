"""Zstandard files: any number of frames, one after the other. A frame that isn't whole is never taken for the end."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from remote.packages import load_package

_BLOCK = 1 << 20
_LARGEST_WINDOW = 1 << 30
"""That of `zstd --long=30`; as much memory at most, and no more than the file holds. zstd's own default is 128 MiB."""
_HEADER_BYTES = 18


class ZstdFile(io.RawIOBase):
    """The decompressed bytes of `path`. OSError for damage, EOFError when the last frame isn't whole."""

    def __init__(self, path: Path) -> None:
        self._zstd = load_package("zstandard", f"reading {path.name}")
        self._file = path.open("rb")
        self._path = path
        self._frame: Any = None
        self._data = memoryview(b"")
        self._header = b""

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
            self._header = b""
        self._header = (self._header + block[:_HEADER_BYTES])[:_HEADER_BYTES]
        try:
            data: bytes = self._frame.decompress(block)
        except self._zstd.ZstdError as error:
            raise OSError(self._problem(error)) from None
        return data

    def _problem(self, error: Exception) -> str:
        """Of the frame that is read."""
        try:
            window = int(self._zstd.get_frame_parameters(self._header).window_size)
        except self._zstd.ZstdError:
            window = 0
        if window <= _LARGEST_WINDOW:
            return f"{self._path} is damaged: {error}"
        what = f"{self._path}: its zstd window is {window >> 20} MiB, at most {_LARGEST_WINDOW >> 20} are read"
        return f"{what}; compress it again with --long=30 or less"

    def close(self) -> None:
        self._file.close()
        super().close()
