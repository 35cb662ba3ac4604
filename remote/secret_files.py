"""Secrets on the container's tmpfs: a directory only its owner can enter, files only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from remote.cli import VerbError


def put_secrets(directory: Path, files: dict[str, str]) -> None:
    """Each file whole or not at all. VerbError when the directory is somebody else's or not on a tmpfs."""
    if not files:
        return
    directory.mkdir(mode=0o700, parents=False, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise VerbError("failed", f"{directory} belongs to somebody else", "remove it and try again")
    directory.chmod(0o700)
    for name, text in sorted(files.items()):
        temporary = directory / f".{name}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(directory / name)
