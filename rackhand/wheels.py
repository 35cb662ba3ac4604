"""Wheels for a container's Python, downloaded on this side and kept in the user's cache."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rackhand.errors import PreconditionError
from rackhand.pins import Pins

LIMIT_S = 300


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "rackhand" / "wheels"


def fetch_wheels(pins: Pins, where: str) -> tuple[Path, ...]:
    """The wheels of `pins`, checked against their hashes by pip. PreconditionError when they can't be had."""
    folder = cache_dir() / pins.digest
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as fresh:
            whole = Path(fresh, "whole")
            whole.mkdir()
            _download(pins, whole, where)
            with contextlib.suppress(OSError):
                whole.rename(folder)
    return tuple(sorted(folder.glob("*.whl")))


def _download(pins: Pins, folder: Path, where: str) -> None:
    requirements = folder.with_name("requirements.txt")
    requirements.write_text(pins.text)
    target = pins.target
    tag = f"cp{target.major}{target.minor}"
    argv = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", f"{target.major}.{target.minor}", "--abi", tag, "--abi", "abi3", "--abi", "none"),
        *(word for platform in target.platforms for word in ("--platform", platform)),
        *("-d", str(folder), "-r", str(requirements)),
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise PreconditionError(f"no wheels within {LIMIT_S} s", where=where, hint=_HINT) from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        what = f"can't download the wheels for Python {target.major}.{target.minor}: {said[0].removeprefix('ERROR: ')}"
        raise PreconditionError(what, where=where, hint=_HINT, detail=done.stderr)


_HINT = "is a package index reachable from here? pip's own settings apply; or set python: to one that has aiohttp"
