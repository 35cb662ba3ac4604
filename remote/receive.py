"""The verb `receive`: many files in one stream, all of them or none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from rackhand.contract import from_json, to_json
from rackhand.contract.files import MANIFEST, Incoming, ReceiveReply, ReceiveRequest
from remote import venv
from remote.cli import Emit, VerbError

LOCK = ".deploy.lock"
SUFFIX = ".rackhand-tmp-"
BEAT_S = 10.0
SYNC_BYTES = 128 << 20
"""Synced so often, a big upload never makes the caller wait in silence for one long sync at its end."""
SILENCE_S = 120
"""A sender that is silent for longer is given up, so that its lock doesn't keep others out."""
_KINDS = {
    errno.ENOSPC: ("disk_full", "the disk is full", "make room there, then ./inv deploy again: nothing was changed"),
    errno.EDQUOT: (
        "disk_full",
        "the disk quota is used up",
        "make room there, then ./inv deploy again: nothing was changed",
    ),
    errno.EROFS: ("read_only", "the file system is read-only", "mount it read-write, then ./inv deploy again"),
    errno.EACCES: ("read_only", "no permission to write", "in an unprivileged container: does the mount's idmap fit?"),
    errno.EPERM: ("read_only", "no permission to write", "in an unprivileged container: does the mount's idmap fit?"),
}


def call(request: Any, emit: Emit, body: BufferedReader) -> None:
    order = from_json(ReceiveRequest, request)
    with _explained(), _staged(order, body) as source, _lock(order):
        reply = _Transaction(order, source, emit).run()
    emit({"event": "received", **to_json(reply)})


class _Transaction:
    def __init__(self, order: ReceiveRequest, source: BufferedReader, emit: Emit) -> None:
        self._order, self._source, self._emit = order, source, emit
        self._mark = SUFFIX + secrets.token_hex(4)
        self._ready: list[tuple[Path, Path]] = []
        self._beat = time.monotonic()
        self._size = 0

    def run(self) -> ReceiveReply:
        order = self._order
        self._sweep()
        fresh: venv.Fresh | None = None
        try:
            for file in order.files:
                self._take(file, Path(file.path))
            if order.wheels is not None:
                fresh = venv.begin(order.home, order.wheels)
                for wheel in order.wheels.files:
                    self._copy(wheel, fresh.wheel(wheel.path))
                    self._tick()
                fresh.finish()
            if order.manifest is not None:
                self._take(order.manifest, Path(order.manifest.path))
            self._commit(fresh)
        except BaseException:
            for temporary, _ in self._ready:
                temporary.unlink(missing_ok=True)
            if fresh is not None:
                fresh.discard()
            raise
        removed = self._remove()
        return ReceiveReply(len(order.files), removed, self._size)

    def _take(self, file: Incoming, target: Path) -> None:
        if target.is_dir():
            raise VerbError("missing", f"{target} is a directory", "mend dest in the inventory")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}{self._mark}")
        self._ready.append((temporary, target))
        self._copy(file, temporary)

    def _copy(self, file: Incoming, to: Path) -> None:
        """`file` out of the body into the new file `to`: checked, synced, with its final mode and time."""
        handle = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as out:
            sha, left, unsynced = hashlib.sha256(), file.size, 0
            while left:
                chunk = self._read(min(left, 1 << 20), file)
                out.write(chunk)
                sha.update(chunk)
                left, unsynced = left - len(chunk), unsynced + len(chunk)
                if unsynced >= SYNC_BYTES:
                    os.fdatasync(out.fileno())
                    unsynced = 0
                self._tick()
            if sha.hexdigest() != file.sha256:
                raise VerbError("failed", f"{file.path} arrived changed: its sha256 differs", "./inv deploy again")
            out.flush()
            os.fchmod(out.fileno(), file.mode)
            if file.mtime_ns is not None:
                os.utime(out.fileno(), ns=(file.mtime_ns, file.mtime_ns))
            os.fsync(out.fileno())
        self._size += file.size

    def _read(self, size: int, file: Incoming) -> bytes:
        signal.alarm(SILENCE_S)
        chunk = self._source.read1(size)
        signal.alarm(0)
        if not chunk:
            raise VerbError(
                "interrupted", f"the stream ended within {file.path}", "nothing was changed: ./inv deploy again"
            )
        return chunk

    def _tick(self) -> None:
        if time.monotonic() - self._beat > BEAT_S:
            self._beat = time.monotonic()
            self._emit({"event": "progress", "size": self._size})

    def _commit(self, fresh: venv.Fresh | None) -> None:
        """From here on only renames, which need no room. A signal can't come between them."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            if fresh is not None:
                fresh.switch()
            for temporary, target in self._ready:
                temporary.replace(target)
            for folder in {target.parent for _, target in self._ready}:
                _sync(folder)
            self._ready.clear()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

    def _remove(self) -> int:
        gone = 0
        for path in self._order.remove:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
                gone += 1
        return gone

    def _sweep(self) -> None:
        """Leftovers of a receive that was killed: nobody else writes while the lock is held."""
        targets = [Path(file.path) for file in self._order.files]
        targets += [Path(path) for path in _manifest_paths(Path(self._order.home, MANIFEST))]
        for folder in {Path(self._order.home), *(target.parent for target in targets)}:
            for left in folder.glob(f".*{SUFFIX}*") if folder.is_dir() else ():
                left.unlink(missing_ok=True)
        venv.sweep(self._order.home)


def _manifest_paths(manifest: Path) -> tuple[str, ...]:
    try:
        return tuple(json.loads(manifest.read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _staged(order: ReceiveRequest, body: BufferedReader) -> Iterator[BufferedReader]:
    if order.staged is None:
        yield body
        return
    staged = Path(order.staged)
    try:
        with staged.open("rb") as file:
            _check_whole(order, file)
            yield file
    except FileNotFoundError as error:
        if error.filename != str(staged):
            raise
        raise VerbError("failed", f"pct push left no {staged}", "see what it said, with --verbose") from error
    finally:
        staged.unlink(missing_ok=True)


def _check_whole(order: ReceiveRequest, file: BufferedReader) -> None:
    """pct push says nothing of a full disk and leaves what had room."""
    heads = [*order.files, *(order.wheels.files if order.wheels else ()), *([order.manifest] if order.manifest else ())]
    wanted, there = sum(head.size for head in heads), os.fstat(file.fileno()).st_size
    if there >= wanted:
        return
    room = os.fstatvfs(file.fileno())
    if room.f_bavail * room.f_frsize < wanted - there:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise VerbError("failed", f"{there} of {wanted} bytes came through", "deploy again: nothing was changed")


@contextlib.contextmanager
def _lock(order: ReceiveRequest) -> Iterator[None]:
    if not Path(order.workspace).is_dir():
        hint = "make it in the container, or mend workspace in the inventory"
        raise VerbError("missing", f"no directory {order.workspace}", hint)
    Path(order.home).mkdir(exist_ok=True)
    handle = os.open(Path(order.home, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 64).decode(errors="replace").strip() or "another one"
            hint = f"wait for it, or end process {holder} in the container"
            raise VerbError("busy", "another deploy is writing here", hint) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    def give_up(_signal: int, _frame: object) -> None:
        raise VerbError("interrupted", f"nothing came for {SILENCE_S} s", "nothing was changed: ./inv deploy again")

    signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    except OSError as error:
        if error.errno not in _KINDS:
            raise
        kind, what, hint = _KINDS[error.errno]
        at = f": {error.filename}" if error.filename else ""
        raise VerbError(kind, what + at, hint) from error
