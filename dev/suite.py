"""The test suite, with what it needs."""

from __future__ import annotations

import shlex
import sys

from dev.browser import install_browser
from dev.programs import run_to_end
from lab.packages import install_packages

INTERRUPTED, WRONG_USAGE, NO_TESTS = 2, 4, 5
"""Exit statuses of pytest."""


def run_suite(*, slow: bool, only: str | None, args: str | None) -> int:
    """Returns 0, 1 when a test failed or none ran, 2 for wrong usage, 130 after Ctrl-C."""
    install_packages()
    if slow:
        install_browser()
    argv = [sys.executable, "-m", "pytest"]
    argv += [] if slow else ["-m", "not slow"]
    argv += ["-k", only] if only is not None else []
    status = run_to_end([*argv, *shlex.split(args or "")])
    return {INTERRUPTED: 130, WRONG_USAGE: 2, NO_TESTS: 1}.get(status, status)
