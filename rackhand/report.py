"""What was done and measured, as data, and the exit code that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rackhand.contract.checks import PromptsCheck, Verified
from rackhand.errors import RackhandError

State = Literal["done", "unchanged", "planned", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing that was done, found right, planned (--dry-run) or failed. `detail` may have lines, e.g. a diff."""

    what: str
    state: State = "done"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One host. `facts` are what the operator wants to see of it, in order; `error` is why it went no further;
    `noise` is what --verbose shows of the road."""

    where: str
    outcomes: tuple[Outcome, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    error: RackhandError | None = None
    interrupted: bool = False
    noise: str = ""

    @property
    def did_something(self) -> bool:
        return any(outcome.state == "done" for outcome in self.outcomes)

    @property
    def failed(self) -> bool:
        return self.error is not None or any(outcome.state == "failed" for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a verb. `signal` is the one that interrupted it."""

    verb: str
    rows: tuple[Row, ...]
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0 all done · 1 failed, nothing done · 2 usage · 3 done in part · 4 a precondition unmet · 128 + signal."""
        if self.signal is not None:
            return 128 + self.signal
        failed = [row for row in self.rows if row.failed]
        if not failed:
            return 0
        if len(failed) < len(self.rows) or any(row.did_something for row in failed):
            return 3
        codes = {1 if row.error is None else row.error.exit_code for row in failed}
        return codes.pop() if len(codes) == 1 else 1

    def as_json(self) -> dict[str, Any]:
        """Plain JSON for --json; what --verbose shows stays out."""
        return {"verb": self.verb, "exit_code": self.exit_code, "hosts": [_row_json(row) for row in self.rows]}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measured columns of several phases side by side. `rows` hold (label, one text per phase); `notes` stand below."""

    title: str
    phases: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What prompts.check or verify found, and where; `noise` is what --verbose shows of the road."""

    where: str
    found: PromptsCheck | Verified
    noise: str = ""

    @property
    def exit_code(self) -> int:
        """3 when there is something to put right: bad lines; a ledger that is wrong, bad completions, or lines that
        could not be read."""
        if isinstance(self.found, PromptsCheck):
            return 3 if self.found.bad_lines else 0
        faults = {reason: count for reason, count in self.found.faults.items() if reason != "length"}
        return 3 if self.found.problems or faults or self.found.bad_lines else 0


def _row_json(row: Row) -> dict[str, Any]:
    error = None
    if row.error is not None:
        error = {"kind": type(row.error).__name__, "what": row.error.what, "hint": row.error.hint}
    outcomes = [{"what": o.what, "state": o.state, "detail": o.detail} for o in row.outcomes]
    return {
        "where": row.where,
        "outcomes": outcomes,
        "facts": dict(row.facts),
        "error": error,
        "interrupted": row.interrupted,
    }
