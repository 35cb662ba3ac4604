"""The container's CPUs, disks and kernel log: what may hold a run up without any server knowing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rackhand.contract.watch import HostSample
from remote import processes

XID = re.compile(r"NVRM: Xid \((PCI:[0-9a-fA-F:.]+)\): (\d+)")
MOST_XIDS = 20
_AVG10 = re.compile(r"^(some|full) avg10=([\d.]+)", re.MULTILINE)


class HostWatch:
    """`directories` are those whose free space counts; `root` stands for / in tests."""

    def __init__(self, directories: Sequence[str], root: Path = Path("/")) -> None:
        self._directories, self._root = directories, root
        self._ticks = self._read_ticks()
        self._xids: list[str] = []
        self._boot = self._read_boot()
        self._kernel_log = _open_at_end(root / "dev/kmsg")

    def close(self) -> None:
        if self._kernel_log is not None:
            os.close(self._kernel_log)
            self._kernel_log = None

    def sample(self) -> HostSample:
        before, self._ticks = self._ticks, self._read_ticks()
        cpu_pct, iowait_pct = shares(before, self._ticks)
        self._read_kernel_log()
        started = processes.container_started()
        return HostSample(
            cpu_pct=cpu_pct,
            iowait_pct=iowait_pct,
            cpu_pressure_pct=self._pressure("cpu", "some"),
            io_pressure_pct=self._pressure("io", "full"),
            disk_free_gib=self._free_gib(),
            xids=tuple(self._xids),
            boot=self._boot,
            started=None if started is None else round(started, 1),
            machine_started=round(processes.machine_started(), 1),
        )

    def _read_boot(self) -> str:
        """LXC gives a container a boot_id of its own at each start."""
        try:
            boot = (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            boot = ""
        return f"{boot}/{processes.start_ticks(1)}"

    def _read_ticks(self) -> tuple[int, ...]:
        try:
            words = (self._root / "proc/stat").read_text().split("\n", 1)[0].split()
        except OSError:
            return ()
        return tuple(map(int, words[1:9]))

    def _pressure(self, kind: str, line: str) -> float | None:
        """Of the container's own control group, or of the machine."""
        for name in (f"sys/fs/cgroup/{kind}.pressure", f"proc/pressure/{kind}"):
            with contextlib.suppress(OSError):
                found = dict(_AVG10.findall((self._root / name).read_text()))
                return float(found[line]) if line in found else None
        return None

    def _free_gib(self) -> float | None:
        found = []
        for directory in self._directories:
            with contextlib.suppress(OSError):
                disk = os.statvfs(directory)
                found.append(disk.f_bavail * disk.f_frsize / 1024**3)
        return round(min(found), 3) if found else None

    def _read_kernel_log(self) -> None:
        """One record a read; it ends with EAGAIN, and EPIPE says that records were overwritten meanwhile."""
        if self._kernel_log is None:
            return
        for _ in range(1000):
            try:
                record = os.read(self._kernel_log, 8192)
            except BrokenPipeError:
                continue
            except OSError:
                return
            if not record:
                return
            if found := XID.search(record.decode("utf-8", "replace")):
                self._xids = [*self._xids, f"{found[2]} {found[1]}"][-MOST_XIDS:]


def shares(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[float | None, float | None]:
    """Busy and waiting for I/O, in per cent, from two `cpu` lines of /proc/stat (the 4th is idle, the 5th iowait)."""
    if len(before) < 5 or len(after) < 5:
        return None, None
    spent = [max(0, b - a) for a, b in zip(before, after, strict=False)]
    total = sum(spent)
    if not total:
        return None, None
    return round(100 * (1 - (spent[3] + spent[4]) / total), 1), round(100 * spent[4] / total, 1)


def _open_at_end(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.lseek(fd, 0, os.SEEK_END)
    return fd
