"""Roads to where commands run. A road is a prefix: Via(Ssh(host), pct words), Ssh(host), Local().

Commands are tuples of words until the wire; only the SSH boundary quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from rackhand.command import Argv, Completed


class Transport(Protocol):
    """One road. `where` names it in messages, e.g. `pve1/ct200`."""

    @property
    def where(self) -> str: ...

    def exec(self, argv: Argv, *, stdin: bytes | Iterable[bytes] = b"", deadline_s: float = 60.0) -> Completed:
        """Run to the end. Raises TransportError; a non-zero status is not an error here."""
        ...

    def stream(
        self,
        argv: Argv,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        deadline_s: float | None = None,
        silence_s: float = 60.0,
    ) -> Iterator[bytes]:
        """Lines of stdout (without the newline) as they come. No line for `silence_s`, or `deadline_s` passed:
        DeadlineError. Closing the iterator ends the far command."""
        ...

    def close(self) -> None: ...
