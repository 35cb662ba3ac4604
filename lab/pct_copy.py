"""pct push and pull: copies in place, under the configuration's lock, that exit 0 when they fail.

The copy runs in a worker whose message reaches stderr and whose end reaches nobody: that is what a real host does.
"""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import sys
from collections.abc import Callable

from lab import container
from lab.place import Place
from lab.pve import PveError, config_lock

CLONE_NEWNS = 0x20000
BLOCK = 1 << 16


def push(place: Place, vmid: int, source: str, target: str, options: dict[str, str]) -> None:
    """Copies `source` of the host (/dev/stdin too) to `target` in the container."""
    with config_lock(place, vmid):
        pid = _running(place, vmid, "can only push files to a running CT")

        def work() -> None:
            handle = _open(source, "failed to open {path} for reading")
            _enter(pid)
            _copy(handle, _create(target, options))

        _in_worker(work)


def pull(place: Place, vmid: int, source: str, target: str, options: dict[str, str]) -> None:
    """Copies `source` in the container to `target` of the host, which is made empty first."""
    with config_lock(place, vmid):
        pid = _running(place, vmid, "can only pull files from a running VM")

        def work() -> None:
            handle = _create(target, options)
            _enter(pid)
            _copy(_open(source, "failed to open {path}: {why}"), handle)

        _in_worker(work)


def _running(place: Place, vmid: int, refusal: str) -> int:
    pid = container.init_pid(place, vmid)
    if pid is None:
        raise PveError(refusal)
    return pid


def _in_worker(work: Callable[[], None]) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except PveError as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _enter(pid: int) -> None:
    """Moves this process into the container's mount namespace."""
    handle = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNS):
        raise PveError("failed to enter the container's mount namespace")
    os.close(handle)
    os.chdir("/")


def _open(path: str, refusal: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise PveError(refusal.format(path=path, why=error.strerror)) from None


def _create(path: str, options: dict[str, str]) -> int:
    """Opens the target; a file that exists keeps its inode, and its mode unless one is asked for. A new one has what
    the caller's umask leaves of 0666."""
    uid = _number("uid", options.get("user"), lambda name: pwd.getpwnam(name).pw_uid)
    gid = _number("gid", options.get("group"), lambda name: grp.getgrnam(name).gr_gid)
    mode = _mode(options["perms"]) if "perms" in options else None
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise PveError(f"failed to create file: {path}: {error.strerror}") from None
    if mode is not None:
        os.fchmod(handle, mode)
    if uid is not None or gid is not None:
        os.fchown(handle, -1 if uid is None else uid, -1 if gid is None else gid)
    return handle


def _number(kind: str, name: str | None, lookup: Callable[[str], int]) -> int | None:
    if name is None or name.isdigit():
        return int(name) if name else None
    try:
        return lookup(name)
    except KeyError:
        raise PveError(f"failed to get {kind} for: {name}") from None


def _mode(perms: str) -> int:
    try:
        return int(perms, 16) if perms.lower().startswith("0x") else int(perms, 8)
    except ValueError:
        raise PveError(f"invalid mode: '{perms}'") from None


def _copy(source: int, target: int) -> None:
    """A full disk ends the copy, and nobody hears of it."""
    try:
        while block := os.read(source, BLOCK):
            while block:
                block = block[os.write(target, block) :]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EISDIR, errno.EIO, errno.EDQUOT):
            raise
