"""Roads to where commands run. A road is a prefix: Via(Ssh(host), pct words), Ssh(host), Local().

Commands are tuples of words until the wire; only the SSH boundary quotes. `Ssh` lives in `transport.ssh` and is
imported where a connection is opened, since paramiko is slow to import.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from rackhand.command import Argv, Completed

Stdin = bytes | Iterable[bytes]


class Transport(Protocol):
    """One road. `where` names it in messages, e.g. `pve1/ct200`."""

    @property
    def where(self) -> str: ...

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        """Run to the end. Raises TransportError; a non-zero status is not an error here."""
        ...

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float | None = None, silence_s: float = 60.0
    ) -> Generator[bytes, None, Completed]:
        """Lines of stdout (without the newline) as they come; the generator's value is the end of the command, with
        an empty `stdout` and the last 64 KiB of `stderr`.

        DeadlineError when `deadline_s` passed, or when for `silence_s` no line came and no input was taken.
        Closing the generator ends the command.
        """
        ...

    def close(self) -> None: ...
