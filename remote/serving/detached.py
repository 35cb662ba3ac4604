"""Work that outlives the connection: done by a process of its own session, whose events come back through a pipe.

Whatever ends the caller (Ctrl-C over there, a cut connection, SIGKILL of this very process), the worker hears of it as
a pipe that nobody reads, and ends what it has begun. Locks belong to the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rackhand.contract import Failure, from_json, to_json
from remote.cli import Emit, VerbError

END = "worker_ends"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Caller:
    """Who waits for the worker. `gone` is set when nobody does any more, or the worker was told to end."""

    def __init__(self, pipe: int) -> None:
        self.gone = threading.Event()
        self._pipe = pipe
        self._poll = select.poll()
        self._poll.register(pipe, 0)

    def tell(self, event: dict[str, Any]) -> None:
        """Says nothing more once the caller is gone."""
        if not self.is_gone():
            try:
                _write_all(self._pipe, json.dumps(event).encode() + b"\n")
            except OSError:
                self.gone.set()

    def is_gone(self) -> bool:
        if any(mask & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, mask in self._poll.poll(0)):
            self.gone.set()
        return self.gone.is_set()


Work = Callable[[Caller], None]


def carry_out(work: Work, emit: Emit, log: Path) -> None:
    """Ends when `work` does; its events go to `emit`. `log` takes what a bug prints.

    Raises VerbError as `work` does, and one of kind `killed` where the worker ended without a word.
    """
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        _be_the_worker(work, told, log)
    os.close(told)
    os.waitpid(child, 0)
    try:
        for line in _lines(heard):
            event = json.loads(line)
            if event.get("event") != END:
                emit(event)
            elif event["failure"] is None:
                return
            else:
                failure = from_json(Failure, event["failure"])
                raise VerbError(failure.kind, failure.what, failure.hint)
    finally:
        os.close(heard)
    raise VerbError("killed", "the process that did the work was killed", "status says what stands still")


def _lines(heard: int) -> Iterator[bytes]:
    """BrokenPipeError as soon as nobody reads our own output any more."""
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    poll.register(1, 0)
    rest = b""
    while True:
        if any(fd == 1 and mask & (select.POLLERR | select.POLLHUP) for fd, mask in poll.poll()):
            raise BrokenPipeError
        piece = os.read(heard, 1 << 16)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _be_the_worker(work: Work, told: int, log: Path) -> NoReturn:
    """Forked twice: nobody's child, in a session of its own, with none of the caller's files but the zipapp."""
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _let_go_of_files(told, log)
        caller = Caller(told)
        for number in SIGNALS:
            signal.signal(number, lambda _number, _frame: caller.gone.set())
        failure = _perform(work, caller)
        caller.tell({"event": END, "failure": None if failure is None else to_json(failure)})
        status = 0
    finally:
        os._exit(status)


def _perform(work: Work, caller: Caller) -> Failure | None:
    try:
        work(caller)
    except VerbError as error:
        return error.failure
    except OSError as error:
        return Failure("os_error", f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except Exception as error:  # noqa: BLE001  a bug of ours: told as one
        traceback.print_exc()
        sys.stderr.flush()
        return Failure("failed", f"an error in rackhand itself: {type(error).__name__}: {error}")
    return None


def _let_go_of_files(told: int, log: Path) -> None:
    """The caller's other pipes end when it does, and not when the worker does."""
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(errors, 2)
    for link in list(Path("/proc/self/fd").iterdir()):
        fd = int(link.name)
        with contextlib.suppress(OSError):
            if fd > 2 and fd != told and not str(link.readlink()).startswith("/memfd:rackhand"):
                os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
