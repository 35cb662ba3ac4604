"""requirements.lock: every package with its hashes, for every platform and Python from 3.11 on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dev.programs import ROOT

LOOK = ("--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-header")


def lock(*, upgrade: bool) -> int:
    """Write requirements.lock anew from pyproject.toml and requirements-schema.in; `upgrade` takes newer versions."""
    with tempfile.TemporaryDirectory(prefix="rackhand-lock-") as folder:
        uv = _uv(Path(folder))
        main, schema = Path(folder, "main.txt"), Path(folder, "schema.txt")
        if not upgrade:
            shutil.copy(ROOT / "requirements.lock", main)
        more = ("--upgrade",) if upgrade else ()
        extras = ("--extra", "remote", "--extra", "dev")
        _run(uv, "pip", "compile", *LOOK, *more, *extras, "pyproject.toml", "--output-file", str(main))
        _run(uv, "pip", "compile", *LOOK, "--no-deps", "requirements-schema.in", "--output-file", str(schema))
        whole = main.read_text() + schema.read_text()
    (ROOT / "requirements.lock").write_text(whole)
    return 0


def _uv(folder: Path) -> str:
    here = shutil.which("uv")
    if here:
        return here
    _run(sys.executable, "-m", "venv", str(folder / "uv"))
    _run(str(folder / "uv/bin/python"), "-m", "pip", "install", "--quiet", "uv")
    return str(folder / "uv/bin/uv")


def _run(*argv: str) -> None:
    subprocess.run(argv, cwd=ROOT, check=True)
