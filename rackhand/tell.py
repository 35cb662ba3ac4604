"""What a verb says: progress on stderr while it runs, then its report on stdout, as lines or as one JSON object."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TextIO

from rackhand.render import screen
from rackhand.render.words import plain
from rackhand.report import Report


def progress(stream: TextIO | None = None) -> Callable[[str, str], None]:
    """A `say(where, text)` for all threads; one line each, so that it can be read in a log as well."""
    lock = threading.Lock()

    def say(where: str, text: str) -> None:
        with lock:
            print(plain(f"{where}: {text}"), file=stream or sys.stderr, flush=True)

    return say


def ask() -> Callable[[str], bool] | None:
    """A question with yes or no on the terminal, no by default; None when nobody sits there."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def confirm(question: str) -> bool:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return confirm


def tell(report: Report, *, as_json: bool, verbose: bool) -> int:
    """Print the report; returns the exit code that follows from it."""
    with screen(json=as_json, verbose=verbose) as out:
        out.report(report)
    return report.exit_code
