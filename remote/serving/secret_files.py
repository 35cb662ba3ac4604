"""Secrets on the container's tmpfs: a directory only its owner can enter, files only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from remote.cli import VerbError

MOUNTS = Path("/proc/self/mounts")


def put_secrets(directory: Path, files: dict[str, str]) -> None:
    """Each file whole or not at all. VerbError when the directory is somebody else's or not on a tmpfs."""
    if not files:
        return
    directory.mkdir(mode=0o700, parents=False, exist_ok=True)
    if not is_on_tmpfs(directory):
        raise VerbError("failed", f"{directory} is not on a tmpfs", "mount one on /dev/shm: secrets go to no disk")
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise VerbError("failed", f"{directory} belongs to somebody else", "remove it and try again")
    directory.chmod(0o700)
    for name, text in sorted(files.items()):
        temporary = directory / f".{name}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.replace(directory / name)
        finally:
            temporary.unlink(missing_ok=True)


def is_on_tmpfs(path: Path) -> bool:
    """By the mount that holds it; of two on one place the later one counts."""
    kinds: dict[str, str] = {}
    for line in MOUNTS.read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        kinds[place] = kind
    return next((kinds[str(at)] for at in (path, *path.parents) if str(at) in kinds), "") in ("tmpfs", "ramfs")
