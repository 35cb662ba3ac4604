"""The file system under the containers' writable layers: an overlay can't lie on an overlay."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.place import LabError, Place

UNFIT = ("overlay", "nfs", "nfs4", "fuse", "9p", "virtiofs")
LXC_LOCKS = Path("/run/lxc/lock")


def prepare(place: Place) -> None:
    """Makes the directory of the layers; in memory where the state's own file system can't hold them."""
    place.lxc_path.mkdir(parents=True)
    if _file_system(place.state).split(".")[0] in UNFIT:
        argv = ["mount", "-t", "tmpfs", "-o", "mode=700", "rackhand-lab", str(place.lxc_path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{place.lxc_path}: no place for an overlay: {done.stderr.strip()}")


def remove(place: Place) -> None:
    """Undoes `prepare`, and removes LXC's lock files of this lab."""
    for mount in reversed(_mounts()):
        if Path(mount[1]).is_relative_to(place.state):
            subprocess.run(["umount", "-l", mount[1]], capture_output=True, check=False)
    locks = LXC_LOCKS / str(place.lxc_path).lstrip("/")
    for lock in locks.glob(".*"):
        lock.unlink()
    _remove_empty(locks)


def _remove_empty(folder: Path) -> None:
    """Removes a folder of /run/lxc and its parents as far as they are empty."""
    while folder != LXC_LOCKS.parent.parent:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent


def _mounts() -> list[tuple[str, str]]:
    """(type, mount point) of each mount, in order."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(words[2], words[1].replace("\\040", " ")) for words in lines]


def _file_system(path: Path) -> str:
    found = ""
    device = path.stat().st_dev
    for kind, point in _mounts():
        if path.is_relative_to(point) and Path(point).stat().st_dev == device:
            found = kind
    return found
