"""The lab's control groups: the one handle on every process it has, that survives a killed lab.

Each hierarchy (one on cgroup v2, a dozen on v1) holds a group named after the lab, with leaves `host/NAME` for the
daemons and `ct/VMID`, `monitor/VMID` for LXC. A process is in the lab exactly if it is in one of these groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from lab.place import LabError, Place


def hierarchies() -> list[Path]:
    """Mount points of the cgroup file systems of this machine."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def leaf(place: Place, name: str) -> Path:
    """The group whose cgroup.procs a daemon writes its pid into: made here, in one hierarchy."""
    for path in sorted(hierarchies(), key=lambda path: path.name != "freezer"):
        group = path / place.cgroup / "host" / name
        try:
            group.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        return group
    raise LabError("no control group can be made in /sys/fs/cgroup; run the lab as root of a machine where LXC works")


def groups(place: Place) -> Iterator[Path]:
    """Every group of the lab, children before their parents."""
    for path in hierarchies():
        top = path / place.cgroup
        for folder, _, _ in sorted(os.walk(top), key=lambda entry: entry[0], reverse=True):
            yield Path(folder)


def members(place: Place, under: str = "") -> set[int]:
    """Pids of the lab's processes, or of those in the groups below `under` (`host/sshd`)."""
    found: set[int] = set()
    for group in groups(place):
        inside = str(group).rpartition(f"/{place.cgroup}")[2].strip("/")
        if not under or inside == under or inside.startswith(f"{under}/"):
            with contextlib.suppress(OSError):
                found.update(map(int, (group / "cgroup.procs").read_text().split()))
    return found - {0}


def signal_members(place: Place, number: signal.Signals, *, under: str = "") -> set[int]:
    """Sends a signal to each; returns whom."""
    reached = members(place, under)
    for pid in reached:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return reached


def end(place: Place, *, under: str = "", timeout_s: float = 10.0) -> None:
    """Kills every process of the lab and waits until they are gone."""
    thaw(place)
    deadline = time.monotonic() + timeout_s
    while signal_members(place, signal.SIGKILL, under=under):
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(members(place, under))} of the lab don't end; see what holds them")
        time.sleep(0.005)


def thaw(place: Place) -> None:
    """A frozen process can't be killed on cgroup v1."""
    for group in reversed(list(groups(place))):
        for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            if (group / file).exists():
                with contextlib.suppress(OSError):
                    (group / file).write_text(word)


def remove(place: Place, *, timeout_s: float = 10.0) -> None:
    """Removes the lab's groups, busy for a moment after their last process, and kills what still joins them."""
    deadline = time.monotonic() + timeout_s
    while left := list(groups(place)):
        signal_members(place, signal.SIGKILL)
        for group in left:
            with contextlib.suppress(OSError):
                group.rmdir()
        if time.monotonic() > deadline:
            raise LabError(f"{left[0]}: the control group can't be removed; see its cgroup.procs")
        time.sleep(0.002)
