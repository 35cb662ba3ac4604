"""What the kernel says of this container's processes. A process is pid and start time: a reused pid never matches."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from rackhand.contract.servers import Process

PROC = Path("/proc")
MEMORY_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of the container's own control group, version 2 and 1."""


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process or it is a zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def identify(pid: int) -> Process | None:
    ticks = start_ticks(pid)
    return None if ticks is None else Process(pid, ticks)


def lives(process: Process) -> bool:
    return start_ticks(process.pid) == process.start_ticks


def is_suspended(process: Process) -> bool:
    """It was stopped by a signal (SIGSTOP, a debugger) and does nothing until SIGCONT."""
    fields = _stat_fields(process.pid)
    return fields is not None and fields[0] in ("T", "t") and int(fields[19]) == process.start_ticks


def container_started() -> float | None:
    """Unix seconds by this machine's clock: when PID 1 was started."""
    ticks = start_ticks(1)
    if ticks is None:
        return None
    return machine_started() + ticks / os.sysconf("SC_CLK_TCK")


def machine_started() -> float:
    """Unix seconds by this machine's clock. The system call tells it in a container too, where lxcfs makes files of
    /proc tell the container's own."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def oom_kills() -> int | None:
    """How many processes of this container the kernel killed because its memory was used up; None: it can't be read."""
    for path in MEMORY_EVENTS:
        with contextlib.suppress(OSError, ValueError):
            pairs = (line.split() for line in path.read_text().splitlines())
            return next((int(words[1]) for words in pairs if words[:1] == ["oom_kill"]), None)
    return None


def send_signal(process: Process, number: signal.Signals) -> bool:
    """True when the very process was there to take it. A pidfd, opened before the look, can't come to mean another
    process; where a container's seccomp filter refuses one, a plain kill follows the look at once."""
    handle: int | None = None
    try:
        with contextlib.suppress(PermissionError):
            handle = os.pidfd_open(process.pid)
        if not lives(process):
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def await_end(process: Process, timeout_s: float, *, poll_s: float = 0.1) -> bool:
    """True when it ended within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while lives(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True


def pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def cmdline(pid: int) -> tuple[str, ...]:
    """The argv; a process that set its title has it as the first word. Empty for kernel threads and the ended."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(word.decode("utf-8", "replace") for word in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def environment(pid: int, name: str) -> str | None:
    """One variable of the environment it was started with; None when unset or not readable."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    for entry in raw.split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key.decode("utf-8", "replace") == name:
            return value.decode("utf-8", "replace")
    return None


def parent(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def descendants(root: int) -> tuple[Process, ...]:
    """Children, their children and so on, without `root` itself."""
    by_parent: dict[int, list[int]] = {}
    for pid in pids():
        above = parent(pid)
        if above is not None:
            by_parent.setdefault(above, []).append(pid)
    found, todo = [], [root]
    while todo:
        for child in by_parent.get(todo.pop(), []):
            process = identify(child)
            if process is not None:
                found.append(process)
                todo.append(child)
    return tuple(sorted(found, key=lambda p: p.pid))


def _stat_fields(pid: int) -> list[str] | None:
    """Fields 3 onwards of /proc/PID/stat: the name (field 2) may hold blanks and parentheses."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None
