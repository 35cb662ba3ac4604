"""The gates that every change passes: each is one command that ends with 0, or says what is wrong."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from dev.programs import ROOT, program

SHELL_FILES = ("inv", ".ci/run", "lab/apt-install")


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    argv: tuple[str, ...]


def gates() -> tuple[Gate, ...]:
    shellcheck = program("shellcheck")
    return (
        Gate("ruff check", (program("ruff"), "check", "--quiet", ".")),
        Gate("ruff format", (program("ruff"), "format", "--quiet", "--check", ".")),
        Gate("mypy --strict", (program("mypy"), "--no-error-summary")),
        Gate("import contracts", (program("lint-imports"), "--no-cache")),
        Gate(f"shellcheck of {', '.join(SHELL_FILES)}", (shellcheck, *SHELL_FILES)),
    )


def check(say: Callable[[str], None]) -> int:
    """Run every gate, also after a red one. Returns 0, or 1 when one was red."""
    red = []
    for gate in gates():
        start = time.monotonic()
        ran = subprocess.run(gate.argv, cwd=ROOT, capture_output=True, text=True)
        say(f"{'ok ' if ran.returncode == 0 else 'RED'} {time.monotonic() - start:5.1f} s  {gate.name}")
        if ran.returncode:
            red.append(gate.name)
            say((ran.stdout + ran.stderr).rstrip())
    say(f"red: {', '.join(red)}" if red else "all gates green")
    return 1 if red else 0
