"""A disk that loses its power, whose writer is killed, or that fails: at any writing call.

After a loss of power only what was synced survives for sure, of the rest any sectors of 512 bytes; after a kill all
that was written. Stands for os.fsync and os.fdatasync, and watches the writing calls of this process; the files are
real.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

SECTOR = 512
_CALLS = ("write", "pwrite", "ftruncate", "fsync", "fdatasync", "replace", "unlink")


class PowerLossError(BaseException):
    """No `except` of the product may catch it."""


class Disk:
    """After `fail_after` calls the writer is gone: that call, a write after `share` of its bytes, and all later ones
    raise. With an `errno` only that call fails, with it. `fail_after` None: never."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail_after: int | None = None
        self.errno: int | None = None
        self.share = 0.0
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _CALLS}
        self._content: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._pins: dict[int, int] = {}

    def __enter__(self) -> Self:
        self.start_from_here()
        for name in _CALLS:
            setattr(os, name, self._watched(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._real.items():
            setattr(os, name, call)
        self._unpin()

    def start_from_here(self) -> None:
        """Everything in the folder counts as synced."""
        self.fail_after = self.errno = None
        self._unpin()
        self._content = {}
        for path in self.folder.iterdir():
            self._content[path.stat().st_ino] = path.read_bytes()
        self._sync_names()

    def lose_power(self, folder: Path, dice: random.Random) -> None:
        """Goes on with `folder`, which gets what survived."""
        now = {path.name: path.stat().st_ino for path in self.folder.iterdir()}
        paths = {path.stat().st_ino: path for path in self.folder.iterdir()}
        names = now if dice.random() < 0.5 else self._names
        for name, inode in names.items():
            latest = paths[inode].read_bytes() if inode in paths else os.pread(self._pins[inode], 1 << 30, 0)
            (folder / name).write_bytes(self._torn(self._content.get(inode, b""), latest, dice))
        self.folder = folder
        self.start_from_here()

    def _torn(self, synced: bytes, latest: bytes, dice: random.Random) -> bytes:
        if synced == latest:
            return latest
        size = dice.choice((len(synced), len(latest), dice.randint(*sorted((len(synced), len(latest))))))
        share = dice.random()
        found = bytearray()
        for at in range(0, size, SECTOR):
            source = latest if dice.random() < share else synced
            found += source[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0")[: size - at]
        return bytes(found)

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(file: Any, *arguments: Any, **more: Any) -> Any:
            if self.fail_after is not None:
                if self.fail_after <= 0:
                    self._fail(name, file, arguments)
                self.fail_after -= 1
            if name in ("fsync", "fdatasync"):
                return self._note_sync(file, os.fstat(file))
            return self._real[name](file, *arguments, **more)

        return call

    def _fail(self, name: str, file: Any, arguments: tuple[Any, ...]) -> NoReturn:
        if name in ("write", "pwrite") and self.fail_after == 0:
            data, *at = arguments
            self._real[name](file, bytes(data)[: int(len(data) * self.share)], *at)
        if self.errno is not None:
            self.fail_after = None
            raise OSError(self.errno, os.strerror(self.errno))
        self.fail_after = -1
        raise PowerLossError(name)

    def _note_sync(self, fd: int, info: os.stat_result) -> None:
        if stat.S_ISDIR(info.st_mode):
            self._sync_names()
            return
        reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self._content[info.st_ino] = os.pread(reader, 1 << 30, 0)
        if info.st_ino in self._pins:
            os.close(reader)
        else:
            self._pins[info.st_ino] = reader

    def _sync_names(self) -> None:
        self._names = {}
        for path in self.folder.iterdir():
            inode = path.stat().st_ino
            self._names[path.name] = inode
            if inode not in self._pins:
                # An inode that is kept open isn't given to another file.
                self._pins[inode] = os.open(path, os.O_RDONLY)

    def _unpin(self) -> None:
        for fd in self._pins.values():
            os.close(fd)
        self._pins = {}
