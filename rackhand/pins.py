"""requirements-remote.lock: which wheels a container's Python gets. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rackhand.contract.files import Platform
from rackhand.errors import PreconditionError
from rackhand.place import SHARE

LOCK = SHARE / "requirements-remote.lock"
_MARKER = re.compile(r"python_full_version (<|>=) '(\d+)\.(\d+)'")
_MACHINES = ("x86_64", "aarch64")
_OLDEST_GLIBC_MINOR = 17


@dataclass(frozen=True, slots=True)
class Target:
    """A CPython on Linux with glibc 2.`glibc_minor`."""

    major: int
    minor: int
    machine: str
    glibc_minor: int

    @property
    def platforms(self) -> tuple[str, ...]:
        """pip's tags, newest first."""
        minors = range(self.glibc_minor, _OLDEST_GLIBC_MINOR - 1, -1)
        return (*(f"manylinux_2_{minor}_{self.machine}" for minor in minors), f"manylinux2014_{self.machine}")


@dataclass(frozen=True, slots=True)
class Pins:
    """Requirements with hashes for one target. `digest` names the environment that is made of them."""

    target: Target
    text: str
    digest: str


def pins_for(platform: Platform, where: str, lock: str | None = None) -> Pins:
    """PreconditionError when the pinned wheels don't exist for that interpreter."""
    target = _target(platform, where)
    text = "".join(entry for entry, marker in _entries(lock or _lock()) if _holds(marker, target))
    named = f"{target.major}.{target.minor} {target.machine} 2.{target.glibc_minor}\n{text}"
    return Pins(target, text, hashlib.sha256(named.encode()).hexdigest()[:16])


@cache
def _lock() -> str:
    return LOCK.read_text()


def _target(platform: Platform, where: str) -> Target:
    libc = re.fullmatch(r"glibc 2\.(\d+).*", platform.libc)
    major, minor = (int(part) for part in platform.python.split(".")[:2])
    if platform.implementation != "cpython" or libc is None or platform.machine not in _MACHINES:
        what = (
            f"no wheels for {platform.implementation} on {platform.machine} with {platform.libc or 'an unknown libc'}"
        )
        hint = f"set hosts.{where.partition('/')[0]}.python to an interpreter that has aiohttp"
        raise PreconditionError(what, where=where, hint=hint)
    return Target(major, minor, platform.machine, int(libc.group(1)))


def _entries(lock: str) -> Iterator[tuple[str, str]]:
    """Each requirement with its hashes and without its marker, and the marker."""
    for entry in re.split(r"(?m)^(?=[A-Za-z])", lock):
        head, newline, hashes = entry.partition("\n")
        requirement, _, marker = head.removesuffix("\\").strip().partition(" ; ")
        if requirement:
            yield f"{requirement} \\{newline}{hashes}", marker


def _holds(marker: str, target: Target) -> bool:
    if not marker:
        return True
    found = _MARKER.fullmatch(marker)
    if found is None:
        raise ValueError(f"requirements-remote.lock: the marker {marker!r} isn't known here")
    limit = (int(found.group(2)), int(found.group(3)))
    return ((target.major, target.minor) < limit) == (found.group(1) == "<")
