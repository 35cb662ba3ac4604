"""What a container sees of its machine, from files that a test writes: CPU times, pressures, the kernel log.

As on a real host, where lxcfs mounts files of its own over the container's /proc/stat. Without these a container sees
this machine, and whatever else runs on it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lab import container
from lab.place import LabError, Place

_SEEN_AS = {
    "stat": ("/proc/stat",),
    "cpu.pressure": ("/proc/pressure/cpu", "/sys/fs/cgroup/cpu.pressure"),
    "io.pressure": ("/proc/pressure/io", "/sys/fs/cgroup/io.pressure"),
    "kmsg": ("/dev/kmsg",),
}
_IN_CONTAINER = "/run/rackhand-lab/machine"
_MOUNT = """
touch /dev/kmsg
for path in $2; do if [ -e "$path" ]; then mount --bind "$1" "$path" || exit 1; fi; done
"""
_TICKS = 100


class Machine:
    """A quiet machine, once `Machine(place, vmid)` has covered the running container's files. LabError when it can't.

    The mounts end with the container.
    """

    def __init__(self, place: Place, vmid: int) -> None:
        self._files = place.gpu_dir(vmid) / "machine"
        self._files.mkdir(exist_ok=True)
        self._spent = {"user": 0, "idle": 0, "iowait": 0}
        self.show()
        (self._files / "kmsg").write_text("")
        pid = container.init_pid(place, vmid)
        if pid is None:
            raise LabError(f"container {vmid} isn't running")
        for name, paths in _SEEN_AS.items():
            argv = [
                "nsenter",
                "-t",
                str(pid),
                "-m",
                "sh",
                "-c",
                _MOUNT,
                "sh",
                f"{_IN_CONTAINER}/{name}",
                " ".join(paths),
            ]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"container {vmid}: {name} can't be covered: {done.stderr.strip()}")

    def show(
        self, *, busy_pct: int = 5, iowait_pct: int = 0, cpu_pressure_pct: int = 0, io_pressure_pct: int = 0
    ) -> None:
        """From now on: shares of the CPUs' time, and how long work waited for a CPU, all work for I/O."""
        self._busy_pct, self._iowait_pct = busy_pct, iowait_pct
        for name, pct in (("cpu.pressure", cpu_pressure_pct), ("io.pressure", io_pressure_pct)):
            lines = (f"{word} avg10={pct:05.2f} avg60=00.00 avg300=00.00 total=0" for word in ("some", "full"))
            _rewrite(self._files / name, "\n".join(lines) + "\n")
        self.pass_time()

    def pass_time(self) -> None:
        """The CPUs spend a second, as `show` said. A reader between two calls finds that no time has passed."""
        self._spent["user"] += self._busy_pct * _TICKS // 100
        self._spent["iowait"] += self._iowait_pct * _TICKS // 100
        self._spent["idle"] += (100 - self._busy_pct - self._iowait_pct) * _TICKS // 100
        user, idle, iowait = (self._spent[name] for name in ("user", "idle", "iowait"))
        _rewrite(self._files / "stat", f"cpu  {user:012d} 0 0 {idle:012d} {iowait:012d} 0 0 0 0 0\n")

    def log(self, text: str) -> None:
        """A record of the kernel log."""
        with (self._files / "kmsg").open("a") as file:
            file.write(f"3,1,1,-;{text}\n")


def _rewrite(path: Path, text: str) -> None:
    """In place, in one write of the same length: a mounted file can't be replaced, and nobody reads half of it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, text.encode(), 0)
    finally:
        os.close(fd)
