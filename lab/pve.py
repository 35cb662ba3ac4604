"""What Proxmox VE knows and does about a container: configuration, lock, power. Shared by pct and the API.

Messages and exit codes are those of Proxmox VE 8.4 and 9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lab import container
from lab.place import NODE, LabError, LabOptions, Place

LOCK_TIMEOUT_S = 10.0


class PveError(Exception):
    """Proxmox refuses or fails; `code` is pct's exit status."""

    def __init__(self, message: str, *, code: int = 255) -> None:
        super().__init__(message)
        self.code = code


def vmid_fault(value: str) -> str:
    """Why Proxmox takes a word for no vmid; "" for a right one, which need not be there."""
    if not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        return f"type check ('integer') failed - got '{value}'"
    if not re.fullmatch(r"[1-9]\d{2,8}", value, re.ASCII):
        return "invalid format - value does not look like a valid VM ID"
    return ""


def vmids(place: Place) -> list[int]:
    return sorted(int(path.stem) for path in (place.state / "pve").glob("*.conf"))


def read_conf(place: Place, vmid: int) -> list[tuple[str, str]]:
    """The configuration's lines: sorted keys, raw lxc.* lines last."""
    try:
        text = place.conf(vmid).read_text()
    except FileNotFoundError:
        raise PveError(f"Configuration file 'nodes/{NODE}/lxc/{vmid}.conf' does not exist", code=2) from None
    pairs = [(key, value.strip()) for key, _, value in (line.partition(":") for line in text.splitlines()) if value]
    return sorted((pair for pair in pairs if not pair[0].startswith("lxc.")), key=lambda pair: pair[0]) + [
        pair for pair in pairs if pair[0].startswith("lxc.")
    ]


def lock_of(place: Place, vmid: int) -> str:
    """`backup`, `snapshot` ... or the empty string: the lock that stands in the configuration."""
    return dict(read_conf(place, vmid)).get("lock", "")


def put_lock(place: Place, vmid: int, reason: str | None) -> None:
    """Writes the lock of a backup or a snapshot into the configuration, or takes it out."""
    lines = [line for line in place.conf(vmid).read_text().splitlines() if not line.startswith("lock:")]
    if reason:
        lines.insert(0, f"lock: {reason}")
    place.conf(vmid).write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def config_lock(place: Place, vmid: int, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """The lock that push, pull, start and stop hold while they work, and exec doesn't."""
    handle = os.open(place.lock_dir / f"pve-config-{vmid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _flock(handle, vmid, timeout_s)
        yield
    finally:
        os.close(handle)


def _flock(handle: int, vmid: int, timeout_s: float) -> None:
    if _took(handle):
        return
    sys.stderr.write("trying to acquire lock...\n")
    sys.stderr.flush()
    deadline = time.monotonic() + timeout_s
    while not _took(handle):
        if time.monotonic() > deadline:
            raise PveError(f"can't lock file '/run/lock/lxc/pve-config-{vmid}.lock' - got timeout", code=4)
        time.sleep(0.02)
    sys.stderr.write(" OK\n")


def _took(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_unlocked(place: Place, vmid: int) -> None:
    if reason := lock_of(place, vmid):
        raise PveError(f"CT is locked ({reason})")


def put_start_warning(place: Place, vmid: int, text: str | None) -> None:
    """From now on every start of the container warns of something and goes on, as one of an old guest does."""
    path = _start_warning(place, vmid)
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text)


def _start_warning(place: Place, vmid: int) -> Path:
    return place.state / "pve" / f"{vmid}.warning"


def check_can_start(place: Place, vmid: int) -> None:
    """A container that isn't there passes: only the task finds that it has no configuration."""
    if container.is_running(place, vmid):
        raise PveError(f"CT {vmid} already running")


def check_can_stop(place: Place, vmid: int) -> None:
    """A container that isn't there is called not running, too."""
    if not container.is_running(place, vmid):
        raise PveError(f"CT {vmid} not running")


def start(place: Place, vmid: int, options: LabOptions) -> tuple[str, ...]:
    """The warnings of a start that went well all the same."""
    check_can_start(place, vmid)
    with config_lock(place, vmid):
        try:
            _check_unlocked(place, vmid)
            container.start(place, vmid, options)
        except LabError as error:
            raise PveError(f"startup for container '{vmid}' failed: {error}") from None
        except PveError as error:
            raise PveError(str(error)) from None  # a task's end: its own code gets lost
    try:
        return (_start_warning(place, vmid).read_text(),)
    except FileNotFoundError:
        return ()


def stop(place: Place, vmid: int) -> None:
    check_can_stop(place, vmid)
    with config_lock(place, vmid):
        _check_unlocked(place, vmid)
        container.stop(place, vmid)


def shutdown(place: Place, vmid: int, *, timeout_s: float = 60.0, force: bool = False) -> None:
    check_can_stop(place, vmid)
    with config_lock(place, vmid):
        _check_unlocked(place, vmid)
        if not container.shutdown(place, vmid, timeout_s=timeout_s, force=force):
            raise PveError("container did not stop")


def reboot(place: Place, vmid: int, options: LabOptions, *, timeout_s: float = 60.0) -> tuple[str, ...]:
    if not container.is_running(place, vmid):
        raise PveError(f"VM {vmid} not running")
    shutdown(place, vmid, timeout_s=timeout_s)
    return start(place, vmid, options)
