"""Git hooks for this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dev.programs import ROOT
from rackhand.errors import PreconditionError

HOOK = "#!/bin/sh\n# Written by ./inv dev.hooks\nexec ./inv dev.check\n"


def install_hook() -> Path:
    """Write a pre-commit hook that runs the gates; returns its path.

    PreconditionError outside a git checkout, and where somebody else's hook stands, which stays.
    """
    asked = subprocess.run(["git", "rev-parse", "--git-path", "hooks"], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        raise PreconditionError("not a git checkout", where=str(ROOT), detail=asked.stderr)
    path = ROOT / asked.stdout.strip() / "pre-commit"
    if path.exists() and path.read_text() != HOOK:
        raise PreconditionError("another hook stands there", where=str(path), hint="call ./inv dev.check in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HOOK)
    path.chmod(0o755)
    return path
