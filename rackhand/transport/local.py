"""Commands on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from io import RawIOBase
from typing import Literal, cast

from rackhand.command import Argv, Completed
from rackhand.errors import PreconditionError, UnreachableError
from rackhand.transport import Limits, Stdin
from rackhand.transport.pump import CHUNK, Pump


class Local:
    """This machine. Commands run in a session of their own: Ctrl-C reaches rackhand, which ends them."""

    def __init__(self, where: str = "local") -> None:
        self._where = where
        self._running: set[_Process] = set()
        self._lock, self._closed = threading.Lock(), False

    @property
    def where(self) -> str:
        return self._where

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        return self._start(argv, stdin).collect(deadline_s)

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        return (yield from self._start(argv, stdin).lines(limits or Limits()))

    def close(self) -> None:
        """Ends what runs; nothing starts any more."""
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for process in running:
            process.kill()

    def _start(self, argv: Argv, stdin: Stdin) -> Pump:
        with self._lock:
            if self._closed:
                raise UnreachableError("the road was closed", where=self._where)
            try:
                process = _Process(argv, self._running)
            except FileNotFoundError as error:
                raise PreconditionError(f"no program {argv[0]}", where=self._where) from error
        return Pump(process, argv, self._where, stdin)


class _Process:
    def __init__(self, argv: Argv, registry: set[_Process]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._stdin = cast("RawIOBase", self._process.stdin)
        self._stdout = cast("RawIOBase", self._process.stdout)
        self._stderr = cast("RawIOBase", self._process.stderr)
        self._registry = registry
        registry.add(self)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._stdin.write(view) or 0 :]

    def end_input(self) -> None:
        self._stdin.close()

    def read(self, source: Literal["stdout", "stderr"]) -> bytes:
        pipe = self._stdout if source == "stdout" else self._stderr
        return pipe.read(CHUNK) or b""

    def wait(self, timeout_s: float) -> int | None:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def kill(self) -> None:
        self._registry.discard(self)
        if self._process.poll() is None:
            # A signal that comes between a shell's fork and its child's exec is lost on the child: so once more.
            for sig, patience_s in ((signal.SIGTERM, 0.3), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sig)
                if self.wait(patience_s) is not None:
                    break
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(OSError, ValueError):
                if not pipe.closed:
                    pipe.close()
