"""{home}/venv: a virtual environment from wheels that came in the stream; the container needs no network and no pip.

`venv` is a link to `.venv-DIGEST`, so that a new one replaces it in one step.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from rackhand.contract.files import Wheels
from remote.cli import VerbError

LINK = "venv"
PREFIX = ".venv-"
NEW = ".venv-new"
LIMIT_S = 120


class Fresh:
    """An environment in the making, under another name until `switch`."""

    def __init__(self, home: Path, wheels: Wheels) -> None:
        self._home, self._wheels = home, wheels
        self._folder = home / NEW
        self._incoming = home / NEW / "wheels"

    def wheel(self, name: str) -> Path:
        if "/" in name or not name.endswith(".whl"):
            raise VerbError("usage", f"{name} is no wheel")
        return self._incoming / name

    def finish(self) -> None:
        """Unpacks the wheels and imports what they are for."""
        (site,) = self._folder.glob("lib/python3*/site-packages")
        for file in self._wheels.files:
            with zipfile.ZipFile(self.wheel(file.path)) as archive:
                _unpack(archive, site, file.path)
        shutil.rmtree(self._incoming)
        python = self._folder / "bin/python"
        for module in self._wheels.modules:
            done = _run(str(python), "-c", f"import {module}")
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
                raise VerbError("failed", f"the new environment can't import {module}: {last[0]}")

    def switch(self) -> None:
        final, link, beside = (
            self._home / f"{PREFIX}{self._wheels.digest}",
            self._home / LINK,
            self._home / ".venv-link",
        )
        old = self._home / link.readlink() if link.is_symlink() else None
        if final.exists():
            shutil.rmtree(final)
        self._folder.rename(final)
        if link.is_dir() and not link.is_symlink():
            shutil.rmtree(link)
        beside.symlink_to(final.name)
        beside.replace(link)
        if old is not None and old != final:
            shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def begin(home: str, wheels: Wheels) -> Fresh:
    """Makes the empty environment. VerbError when that interpreter can't."""
    fresh = Fresh(Path(home), wheels)
    done = _run(wheels.python, "-m", "venv", "--without-pip", str(Path(home, NEW)))
    if done.returncode:
        fresh.discard()
        last = (done.stderr + done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        kind, hint = ("disk_full", "make room") if "No space left" in last[0] else ("missing", "install python3-venv")
        raise VerbError(kind, f"{wheels.python} -m venv failed: {last[0]}", f"{hint} in the container")
    Path(home, NEW, "wheels").mkdir()
    return fresh


def sweep(home: str) -> None:
    """Removes what a killed one left, and environments that the link doesn't name."""
    link = Path(home, LINK)
    current = str(link.readlink()) if link.is_symlink() else None
    for folder in Path(home).glob(f"{PREFIX}*"):
        if folder.is_symlink():
            folder.unlink()
        elif folder.name != current:
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(archive: zipfile.ZipFile, site: Path, name: str) -> None:
    """Wheels with a .data folder need an installer; the pinned ones have scripts in it at most, which nobody calls."""
    wanted = [member for member in archive.namelist() if ".data/scripts/" not in member]
    for member in wanted:
        if ".data/" in member or member.startswith("/") or ".." in member.split("/"):
            raise VerbError("failed", f"{name} holds {member}, which has no place in site-packages")
    archive.extractall(site, wanted)
    for info in map(archive.getinfo, wanted):
        if info.external_attr >> 16 & 0o111 and not info.is_dir():
            os.chmod(site / info.filename, 0o755)  # noqa: S103, PTH101


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))
