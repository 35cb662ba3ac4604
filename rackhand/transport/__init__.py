"""Roads to where commands run. A road is a prefix: Via(Ssh(host), pct words), Ssh(host), Local().

Commands are tuples of words until the wire; only the SSH boundary quotes. `Ssh` lives in `transport.ssh` and is
imported where a connection is opened, since paramiko is slow to import.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from rackhand.command import Argv, Completed

Stdin = bytes | Iterable[bytes]


@dataclass(slots=True)
class Limits:
    """How long a command may take, and how long no line may come and no input be taken, in seconds from `since` (a
    monotonic time). They may be renewed while it runs. `has_begun`: the command was started, so the road stood."""

    deadline_s: float | None = None
    silence_s: float = 60.0
    since: float = field(default_factory=time.monotonic)
    has_begun: bool = False

    def begin(self, at: float) -> None:
        self.since, self.has_begun = at, True

    def renew(self, deadline_s: float | None, silence_s: float) -> None:
        self.deadline_s, self.silence_s, self.since = deadline_s, silence_s, time.monotonic()


class Transport(Protocol):
    """One road. `where` names it in messages, e.g. `pve1/ct200`."""

    @property
    def where(self) -> str: ...

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        """Run to the end. Raises TransportError; a non-zero status is not an error here."""
        ...

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        """Lines of stdout (without the newline) as they come; the generator's value is the end of the command, with
        an empty `stdout` and the last 64 KiB of `stderr`.

        DeadlineError when one of `limits` passed while a line was waited for. Closing the generator ends the command.
        """
        ...

    def close(self) -> None: ...
