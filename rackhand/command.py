"""Commands as tuples of words, and what became of them. Nothing here quotes: only the SSH boundary does."""

from __future__ import annotations

from dataclasses import dataclass

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended. `status` is its exit status as the road reports it; `seconds` is wall time."""

    argv: Argv
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
