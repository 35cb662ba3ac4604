"""The gates that every change passes: each is one command that ends with 0, or says what is wrong."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dev.programs import ROOT, program
from dev.rendered import render_scripts

SHELL_FILES = ("inv", ".ci/run", "lab/apt-install")


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    argv: tuple[str, ...]


def gates(scripts: tuple[str, ...]) -> tuple[Gate, ...]:
    """`scripts` are paths of rendered shell scripts; what they source exists in the container only (SC1091)."""
    shellcheck = program("shellcheck")
    return (
        Gate("ruff check", (program("ruff"), "check", "--quiet", ".")),
        Gate("ruff format", (program("ruff"), "format", "--quiet", "--check", ".")),
        Gate("mypy --strict", (program("mypy"), "--no-error-summary")),
        Gate("import contracts", (program("lint-imports"), "--no-cache")),
        Gate(f"shellcheck of {', '.join(SHELL_FILES)}", (shellcheck, *SHELL_FILES)),
        Gate(
            f"shellcheck of {len(scripts)} rendered scripts", (shellcheck, "--shell=bash", "--exclude=SC1091", *scripts)
        ),
    )


def check(say: Callable[[str], None]) -> int:
    """Run every gate, also after a red one. Returns 0, or 1 when one was red."""
    with tempfile.TemporaryDirectory(prefix="rackhand-check-") as folder:
        red = [gate.name for gate in gates(render_scripts(Path(folder))) if not _is_green(gate, say)]
    say(f"red: {', '.join(red)}" if red else "all gates green")
    return 1 if red else 0


def _is_green(gate: Gate, say: Callable[[str], None]) -> bool:
    start = time.monotonic()
    ran = subprocess.run(gate.argv, cwd=ROOT, capture_output=True, text=True)
    say(f"{'ok ' if ran.returncode == 0 else 'RED'} {time.monotonic() - start:5.1f} s  {gate.name}")
    if ran.returncode:
        say((ran.stdout + ran.stderr).rstrip())
    return ran.returncode == 0
