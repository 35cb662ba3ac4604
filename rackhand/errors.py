"""What can go wrong, sorted by what the operator should do.

    RackhandError            exit 1   failed, nothing done
    ├── UsageError           exit 2   a flag or an argument is wrong
    │   └── InventoryError   exit 2   the inventory is wrong: every mistake at once
    ├── PreconditionError    exit 4   something must be put right first; nothing was changed
    ├── TransportError       exit 1   the road to a host
    │   ├── UnreachableError          no connection, or it was cut
    │   ├── HostKeyError              unknown or changed host key
    │   ├── AuthError                 the key or the user was refused
    │   ├── DeadlineError             no answer in time; the far side may still be working
    │   └── NotRunningError           what was to answer was ended
    │       └── StoppedError  exit 4   the container is stopped: the verb never began
    └── RemoteError          exit 1   the container answered, and the answer is a failure

Exit 3 (done in part) is never raised: `report.Report` derives it from its rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass


class RackhandError(Exception):
    """One line for the operator: where, what, what next.

    `where` is a host path such as `pve1/ct200` or a file position such as `inventory/lab.yaml:12`;
    `detail` holds what only `--verbose` shows (output of a command, a nested error).
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "", detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.hint}" if self.hint else head


class UsageError(RackhandError):
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong in an inventory file; `line` counts from 1."""

    file: str
    line: int
    what: str
    hint: str = ""

    def __str__(self) -> str:
        tail = f"; {self.hint}" if self.hint else ""
        return f"{self.file}:{self.line}: {self.what}{tail}"


class InventoryError(UsageError):
    """Carries every mistake of the inventory, in file order."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes


class PreconditionError(RackhandError):
    exit_code = 4


class TransportError(RackhandError):
    """The road failed; whether the far side did anything is unknown unless a subclass says so."""


class UnreachableError(TransportError):
    pass


class HostKeyError(TransportError):
    pass


class AuthError(TransportError):
    pass


class DeadlineError(TransportError):
    pass


class NotRunningError(TransportError):
    pass


class StoppedError(NotRunningError):
    exit_code = 4


class RemoteError(RackhandError):
    """The container side refused or failed; `kind` is the machine-readable reason from the contract."""

    def __init__(self, what: str, *, kind: str = "failed", where: str = "", hint: str = "", detail: str = "") -> None:
        super().__init__(what, where=where, hint=hint, detail=detail)
        self.kind = kind


def nearest(name: str, known: Collection[str]) -> str:
    """What to say about a wrong name: `did you mean X?`, or the names there are."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there is: {', '.join(known) or 'none'}"
