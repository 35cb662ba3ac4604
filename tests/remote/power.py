"""A disk that loses its power: only what was synced survives for sure, of the rest any sectors of 512 bytes.

Stands for os.fsync and os.fdatasync, and watches the writing calls of this process; the files are real, in a folder.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

SECTOR = 512
_CALLS = ("write", "pwrite", "ftruncate", "fsync", "fdatasync")


class PowerLossError(BaseException):
    """No `except` of the product may catch it."""


class Disk:
    """`fail_after` calls it loses its power: that call and all later ones raise. None: never."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail_after: int | None = None
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
        self.fail_after = None
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
        def call(fd: int, *arguments: Any) -> Any:
            info = os.fstat(fd)
            if self.fail_after is not None:
                if self.fail_after <= 0:
                    raise PowerLossError(name)
                self.fail_after -= 1
            if name in ("fsync", "fdatasync"):
                return self._note_sync(fd, info)
            return self._real[name](fd, *arguments)

        return call

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
