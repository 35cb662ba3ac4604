"""A file that grows, is rotated, truncated or not there yet, read line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

BACKLOG_BYTES = 256 * 1024
"""Read of a file at first sight: some minutes of a busy server."""
MAX_STEP_BYTES = 8 * 1024 * 1024
"""A file further behind than this is jumped to its end: one step never holds more memory."""
MAX_LINE_BYTES = 256 * 1024
_CHUNK = 1024 * 1024
_PIECE = 128 * 1024


class Tail:
    """`skipped_bytes` counts what was jumped over, `modified` is the file's time of change at the last read."""

    def __init__(self, path: Path, *, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self.path = path
        self.skipped_bytes = 0
        self.modified: float | None = None
        self._backlog_bytes: int | None = backlog_bytes
        self._fd: int | None = None
        self._at = 0
        self._rest = b""

    def read(self) -> list[str]:
        """The whole lines since the last read, without newlines; bytes that aren't UTF-8 are replaced."""
        data = b""
        if self._fd is not None:
            data = self._read_on()
        if self._fd is None or self._was_replaced():
            self.close()
            if self._open():
                data += self._read_on()
        return self._lines(data)

    def read_piece(self) -> list[str] | None:
        """The whole lines of the next _PIECE bytes; None where there is nothing more to read now. Nothing is skipped,
        whatever follows."""
        if self._fd is None and not self._open():
            return None
        piece = os.pread(self._fd or 0, _PIECE, self._at)
        self._at += len(piece)
        return self._lines(piece) if piece else None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        size, self._at = os.fstat(self._fd).st_size, 0
        if self._backlog_bytes is not None and size > self._backlog_bytes:
            self._at = self._to_line_start(size - self._backlog_bytes)
        self._backlog_bytes = None
        if self._rest:
            self._rest += b"\n"
        return True

    def _to_line_start(self, at: int) -> int:
        found = os.pread(self._fd or 0, _CHUNK, at).find(b"\n")
        return at + found + 1

    def _read_on(self) -> bytes:
        fd = self._fd
        if fd is None:
            return b""
        status = os.fstat(fd)
        self.modified = status.st_mtime
        if status.st_size < self._at:
            self._at, self._rest = 0, b""
        behind = status.st_size - self._at
        if behind > MAX_STEP_BYTES:
            start = self._to_line_start(status.st_size - _CHUNK)
            self.skipped_bytes += start - self._at
            self._at, self._rest = start, b""
        pieces = []
        while piece := os.pread(fd, _CHUNK, self._at):
            pieces.append(piece)
            self._at += len(piece)
            if len(pieces) > MAX_STEP_BYTES // _CHUNK:
                break
        return b"".join(pieces)

    def _was_replaced(self) -> bool:
        if self._fd is None:
            return False
        try:
            there = self.path.stat()
        except OSError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _lines(self, data: bytes) -> list[str]:
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self.skipped_bytes += len(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines]


def find_last_line(
    path: Path, needle: bytes, *, within_bytes: int = 256 * 1024 * 1024, before: int | None = None
) -> str | None:
    """The last line that holds `needle`, looked for backwards from the end of the file or from the byte `before`."""
    try:
        with path.open("rb") as file:
            last = file.seek(0, os.SEEK_END) if before is None else before
            end = last
            while end > max(0, last - within_bytes):
                start = max(0, end - _CHUNK)
                file.seek(start)
                found = file.read(min(end + len(needle), last) - start).rfind(needle)
                if found >= 0:
                    return _line_around(file, start + found)
                end = start
    except OSError:
        return None
    return None


def _line_around(file: BinaryIO, at: int) -> str:
    start = max(0, at - 4096)
    file.seek(start)
    block = file.read(at - start + 4096)
    begin, end = block.rfind(b"\n", 0, at - start) + 1, block.find(b"\n", at - start)
    return block[begin : end if end >= 0 else None].decode("utf-8", "replace")
