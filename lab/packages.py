"""The system packages that the lab's parts come from."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "openssh-server": ("sshd", "ssh-keygen"),
    "openssh-client": ("ssh",),
    "tmux": ("tmux",),
    "lxc": ("lxc-start", "lxc-attach"),
    "uidmap": ("newuidmap",),
    "iproute2": ("ip",),
}
"""Debian package → programs that it brings and the lab uses."""

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class PackagesMissingError(Exception):
    """The packages can't be installed here; the installer has printed the exact command."""

    exit_code = 4


def missing_packages() -> tuple[str, ...]:
    path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
    return tuple(
        package
        for package, programs in PROGRAMS.items()
        if not all(shutil.which(program, path=path) for program in programs)
    )


def install_packages() -> None:
    """Install what is missing, after saying so. Raises PackagesMissingError where that is impossible."""
    missing = missing_packages()
    if not missing:
        return
    installer = Path(__file__).parent / "apt-install"
    status = subprocess.run(["sh", str(installer), *missing]).returncode
    if status in {130, 143}:
        raise KeyboardInterrupt
    if status or missing_packages():
        raise PackagesMissingError(f"missing system packages: {' '.join(missing_packages())}")


def prepare_for_lab() -> None:
    """Install what a lab needs. Not for an ordinary user, whose lab can't be yet: lab.host.up says so."""
    if os.geteuid() == 0:
        install_packages()
