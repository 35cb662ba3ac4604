"""Run the development programs of this environment."""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program(name: str) -> str:
    """The path of a program that the environment's packages brought, e.g. ruff."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def run_to_end(argv: Sequence[str]) -> int:
    """Run in the checkout with this terminal, and wait for the end whatever signal comes, so that it can clean up.

    Ctrl-C reaches the program by itself; SIGTERM and SIGHUP are handed on as SIGINT. Returns the exit status, or
    128 + the signal when one came.
    """
    came: list[int] = []

    def hand_on(signum: int, _frame: object) -> None:
        came.append(signum)
        if signum != signal.SIGINT or not sys.stdin.isatty():
            running.send_signal(signal.SIGINT)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    running = subprocess.Popen(list(argv), cwd=ROOT)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        status = running.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + came[0] if came else status
