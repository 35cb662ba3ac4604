"""The command `session`: requests from stdin, each carried out by a fork of this process, one after another.

`python remote.pyz session NONCE PYTHON [REQUEST]`: PYTHON is what the control side calls this interpreter, REQUEST the
descriptor of a first request that another interpreter has read already. See rackhand.contract.

This process stays small: it has no thread, reads frames without buffering (what follows may be another process's), and
knows of a verb only how it ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from types import FrameType
from typing import Any, NoReturn

from rackhand.contract import Failure, to_json, wire
from remote.cli import CALLS, VerbError

IDLE_S = 30.0
STUCK_S = 600.0
"""A road that takes not even a sentinel for so long is given up."""
PIECE = 1 << 20
DETAIL_CHARS = 4000
"""Of a traceback, its end: less than a pipe holds, so that nobody waits for anybody."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: list[str]) -> int:
    nonce, python, *first = argv
    try:
        return Session(nonce, python).run(_take(int(first[0])) if first else None)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    except ValueError as error:
        sys.stderr.write(f"rackhand: garbled input: {error}\n")
        return 2


class Session:
    """One process's part of a session; another interpreter may go on with it."""

    def __init__(self, nonce: str, python: str) -> None:
        self._nonce, self._python = nonce, python
        self._child = 0
        self._signal = 0
        self._hung_up = False

    def run(self, request: bytes | None) -> int:
        """Until stdin ends, or a signal came: then the request at work is ended like the others, and is the last."""
        for number in SIGNALS:
            signal.signal(number, self._note_signal)
        while not self._hung_up and not self._signal:
            request = request if request is not None else self._next_request()
            if request is not None:
                self._answer(request)
            request = None
        return 128 + self._signal if self._signal else 0

    def _next_request(self) -> bytes | None:
        """Its JSON; None when there won't be one."""
        stdin = select.poll()
        stdin.register(0, select.POLLIN)
        while not stdin.poll(IDLE_S * 1000):
            self._write(wire.tell(self._nonce, {"event": wire.IDLE}))
        head = _read_exactly(wire.HEAD_BYTES)
        size = wire.frame_size(head) if head else None
        data = _read_exactly(size) if size else b""
        self._hung_up = not data
        return data or None

    def _answer(self, request: bytes) -> None:
        """Carries out one request; the sentinel comes when its process is gone, and what it held with it."""
        order = json.loads(request)
        failure = None
        if order["python"] != self._python:
            failure = self._become(order["python"], request)
        body = _Body()
        if failure is None:
            failure = self._run_fork(order["verb"], order["request"], body)
        self._write(wire.end(self._nonce, failure))
        while body.is_open:
            body.read_piece()
        self._hung_up = self._hung_up or body.ended_early

    def _become(self, python: str, request: bytes) -> Any:
        """Goes on as another interpreter, or says why not."""
        handle = os.memfd_create("request", 0)
        os.write(handle, request)
        argv = [python, "-B", sys.argv[0], "session", self._nonce, python, str(handle)]
        try:
            os.execvp(python, argv)  # noqa: S606
        except OSError as error:
            os.close(handle)
            return to_json(Failure("no_python", f"{python}: {error.strerror}"))

    def _run_fork(self, verb: str, request: Any, body: _Body) -> Any:
        """The failure, or None. `verb` is imported first, so that the next fork needn't read it again."""
        with contextlib.suppress(Exception):
            importlib.import_module(CALLS[verb])
        stdin, to_stdin = os.pipe()
        said, to_said = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._child = os.fork()
        if not self._child:
            os.dup2(stdin, 0)
            for fd in (stdin, to_stdin, said):
                os.close(fd)
            _be_the_fork(verb, request, self._nonce, to_said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(stdin)
        os.close(to_said)
        answer = _relay(body, to_stdin, said)
        child, self._child = self._child, 0
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return _failure_of(answer, status)

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number
        if not self._child:
            raise SystemExit(128 + number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGTERM)

    def _write(self, data: bytes) -> None:
        """BrokenPipeError also when nothing was taken for STUCK_S."""
        stdout = select.poll()
        stdout.register(1, select.POLLOUT)
        if not stdout.poll(STUCK_S * 1000):
            raise BrokenPipeError
        _write_all(1, data)


class _Body:
    """The rest of a request on stdin. `ended_early`: stdin ended within it."""

    def __init__(self) -> None:
        self.is_open = True
        self.ended_early = False
        self._left = 0

    def read_piece(self) -> bytes:
        """What is there; nothing at the end, which `is_open` says, and after the head of a frame."""
        if not self._left:
            head = _read_exactly(wire.HEAD_BYTES)
            self._left = (wire.frame_size(head) if head else None) or 0
            self.is_open, self.ended_early = self._left > 0, not head
            return b""
        piece = os.read(0, min(self._left, PIECE))
        self._left -= len(piece)
        if not piece:
            self.is_open, self.ended_early = False, True
        return piece


def _relay(body: _Body, to: int, said_from: int) -> bytes:
    """The body to the fork, until it is gone; what it said at its end. Its pipe is closed where the body ends, by
    itself or with the road."""
    said = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(said_from, select.POLLIN)
    takes = True

    def close() -> None:
        nonlocal takes
        poll.unregister(0)
        os.close(to)
        takes = False

    try:
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if said_from in ready:
                piece = os.read(said_from, PIECE)
                said += piece
                if not piece:
                    return said
            elif takes:
                piece = body.read_piece()
                with contextlib.suppress(BrokenPipeError):
                    _write_all(to, piece)
                if not body.is_open:
                    close()
    finally:
        if takes:
            close()
        os.close(said_from)


def _failure_of(said: bytes, status: int) -> Any:
    if said:
        return json.loads(said)
    if status < 0:
        return to_json(Failure("killed", f"signal {-status}"))
    return to_json(Failure("crashed", f"status {status}"))


def _be_the_fork(verb: str, request: Any, nonce: str, said: int) -> NoReturn:
    """Threads that a verb leaves behind are not waited for: they end with the process."""
    status = 1
    try:
        failure = _perform(verb, request, nonce)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        _write_all(said, json.dumps(to_json(failure)).encode())
        status = 0
    finally:
        os._exit(status)


def _perform(verb: str, request: Any, nonce: str) -> Failure | None:
    writing = threading.Lock()

    def emit(event: dict[str, Any]) -> None:
        data = wire.tell(nonce, event)
        with writing:
            _write_all(1, data)

    try:
        for number in SIGNALS:
            signal.signal(number, _interrupt_once)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if verb not in CALLS:
            raise VerbError("usage", f"no verb {verb}")
        with os.fdopen(0, "rb", closefd=False) as body:
            importlib.import_module(CALLS[verb]).call(request, emit, body)
    except VerbError as error:
        return error.failure
    except KeyboardInterrupt:
        return Failure("interrupted", "interrupted")
    except BrokenPipeError:
        raise
    except OSError as error:
        return Failure("os_error", f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except subprocess.TimeoutExpired as error:
        program = error.cmd if isinstance(error.cmd, str) else str(error.cmd[0])
        what = f"{program} did not end within {error.timeout:.0f} s"
        return Failure("failed", what, "is the container overloaded?")
    except Exception as error:  # noqa: BLE001  a bug of ours: told as one, and the session goes on
        last = traceback.format_exception_only(error)[-1].strip()
        return Failure("crashed", "status 1", last[-500:], traceback.format_exc()[-DETAIL_CHARS:])
    return None


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """A group's signal comes twice, by the session too: the second must not interrupt the cleaning up."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _take(handle: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        file.seek(0)
        return file.read()


def _read_exactly(size: int) -> bytes:
    """So many bytes of stdin; none when it ends before."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
