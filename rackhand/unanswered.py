"""Why a session gave no answer: its interpreter, its container, or a start-up file of a shell on the road."""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from rackhand.command import Completed
from rackhand.errors import (
    DeadlineError,
    NotRunningError,
    PreconditionError,
    RackhandError,
    RemoteError,
    TransportError,
)
from rackhand.transport import Transport
from rackhand.transport.via import Via

PROBE_S = 10.0
STARTUP_FILES = "~/.bashrc, /etc/profile.d, BASH_ENV and sshd's ForceCommand"
KEPT_LINES, KEPT_CHARS = 5, 200
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass
class Noise:
    """What somebody else wrote into our output: how many lines, and the first of them."""

    lines: int = 0
    kept: list[str] = field(default_factory=list)

    def note(self, line: bytes) -> None:
        text = _CONTROL.sub("", line[: 4 * KEPT_CHARS].decode(errors="replace")).strip()[:KEPT_CHARS]
        if text:
            self.lines += 1
            if len(self.kept) < KEPT_LINES:
                self.kept.append(text)

    def __str__(self) -> str:
        """Lines for --verbose; empty when there was none."""
        if not self.lines:
            return ""
        count = "1 line that isn't" if self.lines == 1 else f"{self.lines} lines that aren't"
        head = f"{count} rackhand's came in between and was skipped; a start-up file prints ({STARTUP_FILES}):"
        return "\n".join([head, *(f"| {text}" for text in self.kept)])


def explain_failure(error: Any, verb: str, python: str, where: str) -> RackhandError:
    """A sentinel's Failure as an exception."""
    kind, what, hint = error.get("kind", "failed"), error.get("what", "failed"), error.get("hint", "")
    detail = error.get("detail", "")
    if kind in ("missing", "usage", "busy", "disk_full", "read_only"):
        return PreconditionError(what, where=where, hint=hint, detail=detail)
    if kind == "no_python":
        return _no_python(python, where, what, runs="No such file" not in what and "Not a directory" not in what)
    if kind == "killed":
        return _killed(verb, where, what)
    if kind == "crashed":
        return TransportError(f"{verb} ended without an answer ({what})", where=where, hint=hint, detail=detail)
    return RemoteError(what, kind=kind, where=where, hint=hint, detail=detail)


def explain_end(
    done: Completed | None, verb: str, python: str, where: str, *, road: Transport | None, noise: Noise
) -> RackhandError:
    """Why a command ended without a sentinel: told by its stderr, since a hop's own statuses mean little. `road` is
    given where nothing of ours was said at all: then it is tried."""
    said = "" if done is None else done.stderr.decode(errors="replace").strip()
    if done is not None and done.status == 137:
        return _killed(verb, where, said)
    if re.search(r"/usr/bin/env: .*: (No such file|Not a directory)", said):
        return _no_python(python, where, said)
    if re.search(r"/usr/bin/env: .*: Permission denied", said):
        return _no_python(python, where, said, runs=True)
    if "memfd_create" in said or "rackhand needs Python" in said:
        hint = f"set {_setting(where)} to a newer one"
        return PreconditionError(f"{python} is older than Python 3.10", where=where, hint=hint, detail=said)
    if road is not None:
        with contextlib.suppress(DeadlineError):
            if (startup := _startup_fault(road, noise, said)) is not None:
                return startup
    status = "" if done is None else f" (status {done.status})"
    last = said.splitlines()[-1:] or [""]
    return TransportError(f"{verb} ended without an answer{status}", where=where, hint=last[0], detail=said)


def explain_deadline(error: DeadlineError, road: Transport, noise: Noise) -> RackhandError:
    """A command of which nothing was heard in time: is it the shell before it?"""
    try:
        return _startup_fault(road, noise, error.detail) or error
    except DeadlineError:
        error.hint = f"is the machine frozen, or does a start-up file of its shell never end ({STARTUP_FILES})?"
        return error


def _startup_fault(road: Transport, noise: Noise, said: str) -> PreconditionError | None:
    """None when the shell of the road passes a line on as it should, or can't be reached any more. DeadlineError when
    not even that ends."""
    shell = road.inner if isinstance(road, Via) else road
    word = secrets.token_hex(8)
    try:
        done = shell.exec(("cat",), stdin=f"{word}\n".encode(), deadline_s=PROBE_S)
    except DeadlineError:
        raise
    except RackhandError:
        return None
    if word.encode() in done.stdout:
        return None
    what = "the shell there doesn't run our commands as they are, or reads what is meant for them"
    said = "\n".join((said, done.stderr.decode(errors="replace"), done.stdout[:1000].decode(errors="replace")))
    hint = (
        f"a start-up file is the likely cause: {STARTUP_FILES}; what prints, reads, waits or exits belongs behind "
        "`case $- in *i*) ;; *) return ;; esac`"
    )
    return PreconditionError(what, where=shell.where, hint=hint, detail=f"{noise}\n{said}".strip())


def _killed(verb: str, where: str, detail: str) -> NotRunningError:
    hint = "was the container stopped, or out of memory? nothing half-written stays: run it again"
    return NotRunningError(f"{verb} was killed", where=where, hint=hint, detail=detail)


def _no_python(python: str, where: str, detail: str, *, runs: bool = False) -> PreconditionError:
    """`runs`: it is there, and can't be run."""
    if runs:
        return PreconditionError(f"{python} can't be run", where=where, hint=f"mend {_setting(where)}", detail=detail)
    return PreconditionError(f"no {python}", where=where, hint=f"set {_setting(where)} or install it", detail=detail)


def _setting(where: str) -> str:
    return f"hosts.{where.partition('/')[0]}.python"
