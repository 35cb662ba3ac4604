"""What a verb says: progress on stderr while it runs, then its report on stdout, as lines or as one JSON object."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from rackhand.report import Comparison, Outcome, Report, Row

MARKS = {"done": "", "unchanged": "", "planned": "would: ", "failed": "FAILED: "}


def progress(stream: TextIO | None = None) -> Callable[[str, str], None]:
    """A `say(where, text)` for all threads; one line each, so that it can be read in a log as well."""
    lock = threading.Lock()

    def say(where: str, text: str) -> None:
        with lock:
            print(f"{where}: {text}", file=stream or sys.stderr, flush=True)

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
    if as_json:
        print(json.dumps(report.as_json()))  # noqa: T201
    else:
        print(*report_lines(report, verbose=verbose), sep="\n")  # noqa: T201
    return report.exit_code


def report_lines(report: Report, *, verbose: bool) -> list[str]:
    """For a screen: what was done on each host, what was found there, and why it went no further."""
    lines = [line for row in report.rows for line in _row_lines(row, verbose=verbose)]
    failed = [row.where for row in report.rows if row.failed]
    if len(report.rows) > 1:
        lines.append(f"{report.verb}: {len(report.rows) - len(failed)} of {len(report.rows)} hosts all right")
    return lines


def _row_lines(row: Row, *, verbose: bool) -> Iterator[str]:
    for outcome in row.outcomes:
        yield f"{row.where}: {MARKS[outcome.state]}{outcome.what}"
        if outcome.detail and (verbose or _always_shown(outcome)):
            yield from (f"    {line}" for line in outcome.detail.rstrip().split("\n"))
    if row.facts:
        yield f"{row.where}: " + ", ".join(f"{name} {value}" for name, value in row.facts.items())
    if row.error is not None:
        yield f"{row.where}: FAILED: {str(row.error).removeprefix(f'{row.where}: ')}"
        if row.error.detail and verbose:
            yield from (f"    {line}" for line in row.error.detail.rstrip().split("\n"))
    if row.interrupted:
        yield f"{row.where}: interrupted; run it again to go on"


def _always_shown(outcome: Outcome) -> bool:
    return outcome.state in {"planned", "failed"}


def comparison_lines(table: Comparison) -> list[str]:
    """The table in plain columns, its notes below."""
    grid = [("", *table.phases), *((label, *cells) for label, cells in table.rows)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(grid[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in grid]
    rule = "-" * max(len(line) for line in lines)
    return [table.title, rule, *lines, rule, *table.notes]
