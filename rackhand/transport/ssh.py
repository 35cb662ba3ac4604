"""Commands over one SSH connection: raw bytes on session channels, never a pty."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Generator, Iterator
from typing import Literal

import paramiko

from rackhand import inventory
from rackhand.command import Argv, Completed
from rackhand.errors import DeadlineError, TransportError, UnreachableError
from rackhand.transport import Limits, Stdin
from rackhand.transport.connect import AGAIN, CHANNEL_S, FROZEN, Link, connect
from rackhand.transport.pump import CHUNK, Pump
from rackhand.transport.ssh_config import Target, resolve

CHANNELS = 8
"""At once on one connection: sshd's MaxSessions is 10 unless set, and a refused channel is an error."""


class Ssh:
    """One host. The connection is opened by the first command and shared by all."""

    def __init__(self, ssh: inventory.Ssh, where: str) -> None:
        self._ssh, self._where = ssh, where
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(CHANNELS)
        self._link: Link | None = None
        self._target: Target | None = None
        self._closed = threading.Event()

    @property
    def where(self) -> str:
        return self._where

    @property
    def target(self) -> Target:
        """Resolved without connecting."""
        if self._target is None:
            self._target = resolve(self._ssh, self._where)
        return self._target

    @property
    def user(self) -> str:
        """Who is logged in there."""
        return self.target.user

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        with self._channel(argv) as running:
            return Pump(running, argv, self._where, stdin).collect(deadline_s)

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", limits: Limits | None = None
    ) -> Generator[bytes, None, Completed]:
        with self._channel(argv) as running:
            return (yield from Pump(running, argv, self._where, stdin).lines(limits or Limits()))

    def close(self) -> None:
        """Also while another thread connects: that connection is closed as soon as it stands."""
        self._closed.set()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    @contextlib.contextmanager
    def _channel(self, argv: Argv) -> Iterator[_Session]:
        with self._slots:
            transport = self._open().get_transport()
            try:
                channel = transport.open_session(timeout=CHANNEL_S)  # type: ignore[union-attr]
                channel.settimeout(CHANNEL_S)
                channel.exec_command(shlex.join(argv))
                channel.settimeout(None)
            except (paramiko.SSHException, OSError, EOFError, AttributeError) as error:
                raise self._broken(error) from error
            session = _Session(channel, self._where)
            try:
                yield session
            finally:
                session.kill()

    def _broken(self, error: Exception) -> TransportError:
        if isinstance(error, paramiko.ChannelException):
            what, hint = (
                "sshd refuses another session",
                "is MaxSessions below 8 there, or was exec forbidden for this key?",
            )
            return TransportError(what, where=self._where, hint=hint, detail=str(error))
        if isinstance(error, TimeoutError) or "imeout" in str(error):
            return DeadlineError(f"sshd started no command within {CHANNEL_S:.0f} s", where=self._where, hint=FROZEN)
        return UnreachableError("the connection was cut", where=self._where, hint=AGAIN, detail=str(error))

    def _open(self) -> paramiko.SSHClient:
        with self._lock:
            if self._closed.is_set():
                raise UnreachableError("the connection was closed", where=self._where)
            if self._link is None or not self._link.is_up:
                if self._link is not None:
                    self._link.close()
                self._link = connect(self._ssh, self.target, self._where, self._closed)
            link = self._link
        if self._closed.is_set():
            link.close()
            raise UnreachableError("the connection was closed", where=self._where)
        return link.client


class _Session:
    """A paramiko channel as pump.Running."""

    def __init__(self, channel: paramiko.Channel, where: str) -> None:
        self._channel, self._where = channel, where

    def write(self, data: bytes) -> None:
        self._channel.sendall(data)

    def end_input(self) -> None:
        self._channel.shutdown_write()

    def read(self, source: Literal["stdout", "stderr"]) -> bytes:
        return self._channel.recv(CHUNK) if source == "stdout" else self._channel.recv_stderr(CHUNK)

    def wait(self, timeout_s: float) -> int | None:
        if not self._channel.status_event.wait(timeout_s):
            return None
        status: int = self._channel.exit_status
        if status >= 0:
            return status
        transport = self._channel.get_transport()
        if not transport.is_active():
            raise UnreachableError("the connection was cut", where=self._where, hint=AGAIN)
        return 137

    def kill(self) -> None:
        """Closes the channel in a thread: a frozen peer blocks even that."""
        if not self._channel.closed:
            closer = threading.Thread(target=self._close, daemon=True)
            closer.start()
            closer.join(1.0)

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()
