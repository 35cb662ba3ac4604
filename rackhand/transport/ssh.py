"""Commands over one SSH connection: raw bytes on session channels, never a pty."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import fabric
import paramiko

from rackhand import inventory
from rackhand.command import Argv, Completed
from rackhand.errors import AuthError, DeadlineError, TransportError, UnreachableError
from rackhand.transport import Stdin, host_keys
from rackhand.transport.pump import CHUNK, Pump
from rackhand.transport.ssh_config import Target, resolve

KEEPALIVE_S = 15
CHANNELS = 8
"""At once on one connection: sshd's MaxSessions is 10 unless set, and a refused channel is an error."""
ATTEMPTS = 3
"""sshd's MaxStartups drops bursts of new connections at random: such a drop is tried again."""
_opening = threading.BoundedSemaphore(8)
_channel_s = 30.0

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Ssh:
    """One host. The connection is opened by the first command and shared by all."""

    def __init__(self, ssh: inventory.Ssh, where: str) -> None:
        self._ssh, self._where = ssh, where
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(CHANNELS)
        self._client: paramiko.SSHClient | None = None
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

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        with self._channel(argv) as running:
            return Pump(running, argv, self._where, stdin).collect(deadline_s)

    def stream(
        self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float | None = None, silence_s: float = 60.0
    ) -> Generator[bytes, None, Completed]:
        with self._channel(argv) as running:
            return (yield from Pump(running, argv, self._where, stdin).lines(deadline_s, silence_s))

    @contextlib.contextmanager
    def stage(self, data: Iterable[bytes]) -> Iterator[str]:
        """Sends `data` by SFTP into /tmp; at the end removed even when the sending or the caller failed."""
        path = f"/tmp/rackhand-{secrets.token_hex(12)}"  # noqa: S108  opened with "x": never somebody else's file
        with self._slots, contextlib.closing(self._open().open_sftp()) as sftp:
            sftp.get_channel().settimeout(_channel_s)  # type: ignore[union-attr]
            try:
                with _said_by_sftp(self._where, path), sftp.open(path, "wx") as file:
                    file.chmod(0o600)
                    file.set_pipelined(True)
                    for chunk in data:
                        file.write(chunk)
                yield path
            finally:
                with contextlib.suppress(OSError, paramiko.SSHException):
                    sftp.remove(path)

    def close(self) -> None:
        """Also while another thread connects: that connection is closed as soon as it stands."""
        self._closed.set()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextlib.contextmanager
    def _channel(self, argv: Argv) -> Iterator[_Session]:
        with self._slots:
            transport = self._open().get_transport()
            try:
                channel = transport.open_session(timeout=_channel_s)  # type: ignore[union-attr]
                channel.settimeout(_channel_s)
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
            return DeadlineError(f"sshd started no command within {_channel_s:.0f} s", where=self._where, hint=_FROZEN)
        return UnreachableError("the connection was cut", where=self._where, hint=_AGAIN, detail=str(error))

    def _open(self) -> paramiko.SSHClient:
        with self._lock:
            if self._closed.is_set():
                raise UnreachableError("the connection was closed", where=self._where)
            transport = None if self._client is None else self._client.get_transport()
            if self._client is None or transport is None or not transport.is_active():
                with _opening:
                    client = self._connect_with_retries()
                if self._closed.is_set():
                    client.close()
                    raise UnreachableError("the connection was closed", where=self._where)
                self._client = client
            return self._client

    def _connect_with_retries(self) -> paramiko.SSHClient:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._connect()
            except UnreachableError as error:  # noqa: PERF203
                if attempt == ATTEMPTS or self._closed.is_set() or not isinstance(error.__cause__, _Dropped):
                    raise
                time.sleep(0.4 * attempt)
        raise UnreachableError("no connection", where=self._where)

    def _connect(self) -> paramiko.SSHClient:
        target, limit_s = self.target, self._ssh.connect_timeout_s
        connection = self._connection(target, limit_s)
        client: paramiko.SSHClient = connection.client
        client.set_missing_host_key_policy(host_keys.Policy(target, self._ssh.host_keys, self._where))
        plain = target.host if target.port == 22 else f"[{target.host}]:{target.port}"
        for key in host_keys.known_keys(target):
            client.get_host_keys().add(plain, key.get_name(), key)
        started = time.monotonic()
        try:
            connection.open()
        except Exception as error:  # noqa: BLE001  fabric, paramiko, sockets and proxies raise all kinds
            client.close()
            problem = self._why(error, target, limit_s, time.monotonic() - started)
            raise problem from problem.__cause__ or error
        if (transport := client.get_transport()) is not None:
            transport.set_keepalive(KEEPALIVE_S)
            _tune(transport.sock)
        return client

    def _connection(self, target: Target, limit_s: float) -> Any:
        known = _agent_key(target.key_files) if target.only_key_files and target.agent else None
        options = {
            "key_filename": [str(file) for file in target.key_files if file.is_file()],
            "allow_agent": target.agent and not target.only_key_files,
            "look_for_keys": False,
            "banner_timeout": limit_s,
            "auth_timeout": limit_s,
            "channel_timeout": _channel_s,
            **({"pkey": known} if known else {}),
        }
        config = fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True)
        through = f"sh -c {shlex.quote('exec ' + target.proxy_command)}" if target.proxy_command else False
        return fabric.Connection(
            target.host, target.user, target.port, config=config, gateway=through,
            connect_timeout=limit_s, connect_kwargs=options, forward_agent=False,
        )  # fmt: skip

    def _why(self, error: Exception, target: Target, limit_s: float, waited_s: float) -> Exception:
        place, text = f"{target.host} port {target.port}", str(error) or type(error).__name__
        if isinstance(error, TransportError):
            return error
        if isinstance(error, paramiko.BadHostKeyException):
            return host_keys.changed(target, error, self._where)
        if isinstance(error, paramiko.ssh_exception.AuthenticationException):
            return self._why_refused(error, target)
        if isinstance(error, socket.gaierror):
            hint = "mend ssh in the inventory, or the Host entry in ssh_config"
            return UnreachableError(f"no address for {target.host}", where=self._where, hint=hint, detail=text)
        if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
            reason = "; ".join(sorted({str(getattr(e, "strerror", e)) for e in error.errors.values()}))
            return UnreachableError(f"{place}: {reason}", where=self._where, hint="is the host up, and sshd running?")
        if "banner" in text and waited_s >= limit_s:
            return DeadlineError(f"{place} took the connection, but sshd said nothing", where=self._where, hint=_FROZEN)
        if isinstance(error, TimeoutError) or "imeout" in text or "timed out" in text:
            what = f"no connection to {place} within {limit_s:.0f} s"
            return UnreachableError(
                what, where=self._where, hint="is the host up, and the road to it open?", detail=text
            )
        if isinstance(error, (paramiko.SSHException, EOFError, ConnectionError)):
            problem = UnreachableError(f"{place} broke off: {text}", where=self._where, hint=_AGAIN, detail=repr(error))
            problem.__cause__ = _Dropped(text)
            return problem
        return UnreachableError(f"{place}: {text}", where=self._where, detail=repr(error))

    def _why_refused(self, error: Exception, target: Target) -> AuthError:
        files = [str(file) for file in target.key_files if file.is_file()]
        locked = [file for file in files if _is_locked(Path(file))]
        if locked and not target.agent:
            hint = f"unlock {locked[0]} in an agent: ssh-add {locked[0]}"
        elif locked:
            hint = f"{locked[0]} has a passphrase: ssh-add {locked[0]}"
        else:
            hint = (
                f"offered: {', '.join(files) or 'no key file'}; put the public key into {target.user}'s authorized_keys"
            )
        what = f"{target.user}@{target.host} was refused"
        return AuthError(what, where=self._where, hint=hint, detail=str(error))


class _Dropped(Exception):  # noqa: N818  a mark, never raised
    """The connection ended before SSH was spoken."""


_FROZEN = "is the machine frozen or overloaded?"
_AGAIN = "try again; what was running there may still be"


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
            raise UnreachableError("the connection was cut", where=self._where, hint=_AGAIN)
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


def _tune(sock: Any) -> None:
    """TCP_NODELAY makes a command on an open connection 5 to 10 times faster; the other one notices a dead network."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def _agent_key(files: tuple[Path, ...]) -> paramiko.PKey | None:
    """The agent's key whose public half lies beside one of `files`: what IdentitiesOnly allows."""
    wanted = set()
    for file in files:
        public = file if file.suffix == ".pub" else file.with_name(file.name + ".pub")
        with contextlib.suppress(OSError, IndexError):
            wanted.add(public.read_text().split()[1])
    if not wanted:
        return None
    return next((key for key in paramiko.Agent().get_keys() if key.get_base64() in wanted), None)


def _is_locked(file: Path) -> bool:
    try:
        paramiko.PKey.from_path(file)
    except (paramiko.PasswordRequiredException, TypeError):
        return True
    except Exception:  # noqa: BLE001  only a passphrase is asked about here
        return False
    return False


@contextlib.contextmanager
def _said_by_sftp(where: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, paramiko.SSHException, EOFError) as error:
        hint = "is /tmp of the Proxmox host full or read-only? put: stream needs no room there"
        raise TransportError(
            f"can't write {path}: {str(error) or type(error).__name__}", where=where, hint=hint
        ) from error
