"""Git hooks for this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dev.programs import ROOT

HOOK = "#!/bin/sh\n# Written by ./inv dev.hooks\nexec ./inv dev.check\n"


def install_hook() -> Path:
    """Write a pre-commit hook that runs the gates; a hook that is somebody else's stays. Returns the hook's path."""
    asked = subprocess.run(
        ["git", "rev-parse", "--git-path", "hooks"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    path = ROOT / asked.stdout.strip() / "pre-commit"
    if path.exists() and path.read_text() != HOOK:
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HOOK)
    path.chmod(0o755)
    return path
