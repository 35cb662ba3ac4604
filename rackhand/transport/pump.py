"""One running command, fed and drained: stdin, stdout and stderr each in a thread, so that none blocks another."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Literal, Protocol

from rackhand.command import Argv, Completed
from rackhand.errors import DeadlineError, TransportError
from rackhand.transport import Limits, Stdin

CHUNK = 64 * 1024
STDERR_KEPT = 64 * 1024
MOST_BYTES = 256 * 1024 * 1024
"""Of one line, or of the whole output where it is collected: more is no answer, and would fill this machine."""
GRACE_S = 0.5
"""How long a command whose output is no longer wanted may take to end by itself."""


class Running(Protocol):
    """A started command. Reads and writes block; `kill` makes all of them return."""

    def write(self, data: bytes) -> None: ...

    def end_input(self) -> None: ...

    def read(self, source: Literal["stdout", "stderr"]) -> bytes: ...

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None when it hasn't ended by then. Raises TransportError when the road broke."""
        ...

    def kill(self) -> None: ...


class Pump:
    """Runs one command over `running`. Used once, by `lines` or by `collect`."""

    def __init__(self, running: Running, argv: Argv, where: str, stdin: Stdin) -> None:
        self._running, self._argv, self._where = running, argv, where
        self._started = self._alive = time.monotonic()
        self._out: queue.Queue[bytes] = queue.Queue(maxsize=64)
        self._err = bytearray()
        self._status = -1
        self._input_error: Exception | None = None
        self._closing = threading.Event()
        chunks = (stdin,) if isinstance(stdin, bytes) else stdin
        self._threads = [
            threading.Thread(target=work, args=args, daemon=True, name=f"{name} {where}")
            for name, work, args in (
                ("stdin", self._feed, (chunks,)),
                ("stdout", self._drain_stdout, ()),
                ("stderr", self._drain_stderr, ()),
            )
        ]
        for thread in self._threads:
            thread.start()

    def collect(self, deadline_s: float) -> Completed:
        out = bytearray()
        with contextlib.closing(self._chunks(Limits(deadline_s, deadline_s))) as chunks:
            for chunk in chunks:
                out += chunk
                self._check_size(len(out))
        return self._completed(bytes(out))

    def lines(self, limits: Limits) -> Generator[bytes, None, Completed]:
        rest = bytearray()
        with contextlib.closing(self._chunks(limits)) as chunks:
            for chunk in chunks:
                head, newline, tail = chunk.rpartition(b"\n")
                if newline:
                    yield from (bytes(rest) + head).split(b"\n")
                    rest.clear()
                rest += tail
                self._check_size(len(rest))
        if rest:
            yield bytes(rest)
        return self._completed(b"")

    def _check_size(self, size: int) -> None:
        if size > MOST_BYTES:
            self._closing.set()
            what = f"{self._name()} said more than {MOST_BYTES >> 20} MiB where an answer was expected"
            raise TransportError(what, where=self._where, hint="run it by hand to see what it says")

    def _completed(self, stdout: bytes) -> Completed:
        return Completed(self._argv, self._status, stdout, bytes(self._err), time.monotonic() - self._started)

    def _chunks(self, limits: Limits) -> Generator[bytes, None, None]:
        """What stdout gives, to its end; then `_status` is set."""
        limits.begin(self._started)
        try:
            while True:
                try:
                    chunk = self._out.get(timeout=0.25)
                except queue.Empty:
                    self._check_time(limits)
                    continue
                self._raise_input_error()
                if not chunk:
                    self._await_status(limits)
                    return
                self._alive = time.monotonic()
                yield chunk
                self._check_time(limits)
        finally:
            self._close()

    def _await_status(self, limits: Limits) -> None:
        while (status := self._running.wait(0.25)) is None:
            self._check_time(limits)
        self._status = status
        self._threads[2].join(GRACE_S)

    def _check_time(self, limits: Limits) -> None:
        self._raise_input_error()
        now = time.monotonic()
        if limits.deadline_s is not None and now > limits.since + limits.deadline_s:
            what = f"no end of {self._name()} within {limits.deadline_s:.0f} s"
        elif now - max(self._alive, limits.since) > limits.silence_s:
            what = f"no sign of life from {self._name()} for {limits.silence_s:.0f} s"
        else:
            return
        self._closing.set()
        raise DeadlineError(
            what,
            where=self._where,
            hint="it may still be running there; see whether the machine or the container is frozen or overloaded",
            detail=bytes(self._err).decode(errors="replace"),
        )

    def _name(self) -> str:
        words = self._argv[:4]
        return " ".join(words) if all(len(word) < 40 for word in words) else words[0]

    def _raise_input_error(self) -> None:
        if self._input_error is not None:
            raise self._input_error

    def _close(self) -> None:
        if not self._closing.is_set():
            with contextlib.suppress(Exception):
                self._running.wait(GRACE_S)
        self._closing.set()
        self._running.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                self._out.get_nowait()
        for thread in self._threads:
            thread.join(GRACE_S)

    def _feed(self, chunks: Iterable[bytes]) -> None:
        try:
            for piece in _pieces(chunks):
                if self._closing.is_set():
                    return
                try:
                    self._running.write(piece)
                except OSError:
                    return
                self._alive = time.monotonic()
        except Exception as error:  # noqa: BLE001  whatever the source of the input raises belongs to the caller
            self._input_error = error
            return
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        with contextlib.suppress(OSError):
            self._running.end_input()

    def _drain_stdout(self) -> None:
        while chunk := self._read("stdout"):
            while not self._closing.is_set():
                with contextlib.suppress(queue.Full):
                    self._out.put(chunk, timeout=0.25)
                    break
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._out.put(b"", timeout=0.25)
                return

    def _drain_stderr(self) -> None:
        while chunk := self._read("stderr"):
            self._err += chunk
            del self._err[:-STDERR_KEPT]

    def _read(self, source: Literal["stdout", "stderr"]) -> bytes:
        try:
            return self._running.read(source)
        except (OSError, ValueError):
            return b""


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for at in range(0, len(chunk), CHUNK):
            yield chunk[at : at + CHUNK]
