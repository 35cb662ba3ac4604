"""Reports and comparisons as lines of text, for a screen or a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rackhand.errors import RackhandError
from rackhand.report import Comparison, Outcome, Report, Row

WIDTH = 80
MARKS = {"done": "", "unchanged": "", "planned": "would: ", "failed": "FAILED: "}


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
    yield from _fact_lines(row)
    if row.error is not None:
        yield f"{row.where}: FAILED: {_said(row.error, row.where)}"
        if row.error.detail and verbose:
            yield from (f"    {line}" for line in row.error.detail.rstrip().split("\n"))
    if verbose and row.noise:
        yield from (f"    {line}" for line in row.noise.split("\n"))
    if row.interrupted:
        yield f"{row.where}: interrupted; run it again to go on"


def _said(error: RackhandError, where: str) -> str:
    """Without its own `where` when that is the row's, or the machine that the row's container is on."""
    said = str(error)
    return said.removeprefix(f"{error.where}: ") if f"{where}/".startswith(f"{error.where}/") else said


def _fact_lines(row: Row) -> Iterator[str]:
    """All facts on one line where they fit, else one a line, in two columns where those fit."""
    if not row.facts:
        return
    line = f"{row.where}: " + ", ".join(f"{name} {value}" for name, value in row.facts.items())
    if len(line) <= WIDTH:
        yield line
        return
    wide = max(len(name) for name in row.facts)
    lines = [f"{row.where}: {name.ljust(wide)}  {value}" for name, value in row.facts.items()]
    narrow = [f"{row.where}: {name}  {value}" for name, value in row.facts.items()]
    yield from lines if max(map(len, lines)) <= WIDTH else narrow


def _always_shown(outcome: Outcome) -> bool:
    return outcome.state in {"planned", "failed"}


def fitting(widths: Sequence[int], width: int, *, drop: Sequence[int], gap: int = 2) -> list[int]:
    """The columns that fit into `width` with `gap` between them: those of `drop` go first, in its order. No cell is
    cut; what is not in `drop` stays, however narrow the screen is."""
    kept = list(range(len(widths)))
    for column in drop:
        if sum(widths[at] + gap for at in kept) - gap <= width:
            break
        kept.remove(column)
    return kept


def comparison_lines(table: Comparison, width: int | None = None) -> list[str]:
    """The table in plain columns, its notes below. The last columns are left out where `width` is too narrow."""
    grid = [("", *table.phases), *((label, *cells) for label, cells in table.rows)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(grid[0]))]
    kept = list(range(len(widths)))
    if width is not None:
        kept = fitting(widths, width, drop=range(len(widths) - 1, 1, -1))
    lines = ["  ".join(line[at].ljust(widths[at]) for at in kept).rstrip() for line in grid]
    rule = "-" * max(len(line) for line in lines)
    return [table.title, rule, *lines, rule, *table.notes]
