"""A file that only grows, and is whole again after every failed write."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class AppendFile:
    """Appends whole pieces. `size` is the length of what was written without an error.

    A write or sync that fails raises OSError, and the next append first cuts whatever it left: after a failed
    sync the kernel may have dropped the pages, so the same piece must be appended again.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.size = size if size is not None else (path.stat().st_size if path.exists() else 0)
        self._fd: int | None = None

    def append(self, data: bytes, *, sync: bool) -> None:
        fd = self._open()
        try:
            view, at = memoryview(data), self.size
            while view:
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
            if sync:
                os.fdatasync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.size)
            self.close()
            raise
        self.size += len(data)

    def sync(self) -> None:
        fd = self._open()
        try:
            os.fdatasync(fd)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> int:
        if self._fd is None:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, self.size)
                sync_directory(self.path.parent)
            except OSError:
                os.close(fd)
                raise
            self._fd = fd
        return self._fd


def sync_directory(path: Path) -> None:
    """Makes names that were created or renamed in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put_whole(path: Path, data: bytes, *, sync: bool) -> None:
    """Replaces `path` at once: a reader sees the old bytes or the new ones."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    if sync:
        sync_directory(path.parent)


def put_over(path: Path, data: bytes) -> None:
    """Writes over `path`, whose old length must be the same, when a full disk has no room for a second file."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)
