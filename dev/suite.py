"""The test suite, with what it needs."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from dev.browser import install_browser
from dev.programs import ROOT, run_to_end
from lab import host, sshd
from lab.packages import install_packages

INTERRUPTED, WRONG_USAGE, NO_TESTS = 2, 4, 5
"""Exit statuses of pytest."""
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder")
"""Three processes on two cores: the lab's tests wait more than they work. A module stays in one process, with its lab;
in their own order the long ones of the lab begin early. The slow proofs measure, and run one after another."""


def run_suite(*, slow: bool, only: str | None, args: str | None) -> int:
    """Returns 0, 1 when a test failed or none ran, 2 for wrong usage, 130 after Ctrl-C."""
    install_packages()
    if slow:
        install_browser()
    argv = [sys.executable, "-m", "pytest"]
    argv += [] if slow else ["-m", "not slow", *SIDE_BY_SIDE]
    argv += ["-k", only] if only is not None else []
    files = Path(tempfile.mkdtemp(prefix="rackhand-tests-"))
    try:
        status = run_to_end([*argv, f"--basetemp={files / 'run'}", *shlex.split(args or "")])
    finally:
        _end_labs(files)
    if status in (0, NO_TESTS):
        shutil.rmtree(files, ignore_errors=True)
    else:
        sys.stderr.write(f"the tests' files: {files}\n")
    return {INTERRUPTED: 130, WRONG_USAGE: 2, NO_TESTS: 1}.get(status, status)


def _end_labs(files: Path) -> None:
    """Of tests that could not end theirs: an interrupted run ends its processes without their fixtures."""
    for config in list(files.rglob(f"{sshd.HOST}.conf")):
        host.down(ROOT, state=config.parent)
