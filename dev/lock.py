"""The lock files, every package with its hashes for every platform.

requirements.lock: this side, Python from 3.11 on. requirements-remote.lock: the environments that deploy makes in
containers, Python from 3.10 on; where both apply they pin the same versions. requirements-browser.lock: what the
browser tests and the pictures need besides; installed when they are run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

from dev.programs import ROOT
from rackhand.errors import RackhandError

LOOK = ("--quiet", "--universal", "--generate-hashes", "--no-annotate", "--no-header")
REMOTE = ROOT / "requirements-remote.lock"
BROWSER = ROOT / "requirements-browser.lock"
HERE, THERE = ("--python-version", "3.11"), ("--python-version", "3.10")


def lock(*, upgrade: bool) -> int:
    """Write all anew from pyproject.toml and requirements-schema.in; `upgrade` takes newer versions."""
    with tempfile.TemporaryDirectory(prefix="rackhand-lock-") as folder:
        uv = _uv(Path(folder))
        main, schema, remote = (Path(folder, name) for name in ("main.txt", "schema.txt", "remote.txt"))
        if not upgrade:
            shutil.copy(ROOT / "requirements.lock", main)
            shutil.copy(REMOTE, remote)
        more = ("--upgrade",) if upgrade else ()
        extras = ("--extra", "remote", "--extra", "dev")
        _run(uv, "pip", "compile", *LOOK, *HERE, *more, *extras, "pyproject.toml", "--output-file", str(main))
        _run(uv, "pip", "compile", *LOOK, *HERE, "--no-deps", "requirements-schema.in", "--output-file", str(schema))
        _run(uv, "pip", "compile", *LOOK, *THERE, *more, _extra("remote", Path(folder)), "--output-file", str(remote))
        browser = Path(folder, "browser.txt")
        if not upgrade and BROWSER.exists():
            shutil.copy(BROWSER, browser)
        beside = ("--constraint", str(main))
        words = (*LOOK, *HERE, *more, *beside, _extra("browser", Path(folder)))
        _run(uv, "pip", "compile", *words, "--output-file", str(browser))
        BROWSER.write_text(browser.read_text())
        whole = main.read_text() + schema.read_text()
        pins = remote.read_text()
    (ROOT / "requirements.lock").write_text(whole)
    REMOTE.write_text(pins)
    return 0


def _extra(name: str, folder: Path) -> str:
    """A requirements file of one of pyproject's optional groups."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = folder / f"{name}.in"
    wanted.write_text("\n".join(groups[name]))
    return str(wanted)


def _uv(folder: Path) -> str:
    here = shutil.which("uv")
    if here:
        return here
    _run(sys.executable, "-m", "venv", str(folder / "uv"))
    _run(str(folder / "uv/bin/python"), "-m", "pip", "install", "--quiet", "uv")
    return str(folder / "uv/bin/uv")


def _run(*argv: str) -> None:
    ended = subprocess.run(argv, cwd=ROOT)
    if ended.returncode:
        raise RackhandError(
            f"{Path(argv[0]).name} ended with {ended.returncode}; the lock files are as they were", hint="see above"
        )
