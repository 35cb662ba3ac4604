"""One SSH connection opened, or the reason why not, in words that help."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fabric
import paramiko

from rackhand import inventory
from rackhand.errors import DeadlineError, RackhandError, UnreachableError
from rackhand.transport import host_keys, identity
from rackhand.transport.host_cert import SUFFIX
from rackhand.transport.proxy import Proxy
from rackhand.transport.ssh_config import Target

KEEPALIVE_S = 15
CHANNEL_S = 30.0
"""How long sshd may take to open a channel."""
ATTEMPTS = 3
"""sshd's MaxStartups drops bursts of new connections at random: such a drop is tried again."""
SILENT = ("banner", "No existing session")
"""How paramiko says that sshd didn't speak in time: the second when its thread gave up just before the caller asked."""
FROZEN = "is the machine frozen or overloaded?"
AGAIN = "try again; what was running there may still be"
_opening = threading.BoundedSemaphore(8)

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass(frozen=True, slots=True)
class Link:
    """An open connection, with the command that carries it if there is one."""

    client: paramiko.SSHClient
    proxy: Proxy | None = None

    @property
    def is_up(self) -> bool:
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()

    def close(self) -> None:
        self.client.close()
        if self.proxy is not None:
            self.proxy.close()


def connect(ssh: inventory.Ssh, target: Target, where: str, stop: threading.Event) -> Link:
    """An open connection. Raises a TransportError that says what to do; `stop` ends the attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _opening:
                return _attempt(ssh, target, where)
        except UnreachableError as error:  # noqa: PERF203
            if attempt == ATTEMPTS or stop.is_set() or not isinstance(error.__cause__, _Dropped):
                raise
            stop.wait(0.4 * attempt)
    raise UnreachableError("no connection", where=where)


def _attempt(ssh: inventory.Ssh, target: Target, where: str) -> Link:
    strategy = {"transport_factory": _clients(target, where), "auth_strategy": identity.Keys(target, where)}
    proxy = Proxy(target.proxy_command) if target.proxy_command else None
    connection = _connection(target, ssh.connect_timeout_s, proxy, strategy)
    link = Link(connection.client, proxy)
    link.client.set_missing_host_key_policy(host_keys.Policy(target, ssh.host_keys, where))
    started = time.monotonic()
    try:
        connection.open()
    except Exception as error:  # noqa: BLE001  fabric, paramiko and sockets raise all kinds
        problem = _why(error, target, where, limit_s=ssh.connect_timeout_s, waited_s=time.monotonic() - started)
        link.client.close()
        if proxy is not None and isinstance(problem, (UnreachableError, DeadlineError)) and (said := proxy.said()):
            problem.hint, problem.detail = said.splitlines()[-1], f"{said}\n{problem.detail}"
        link.close()
        raise problem from problem.__cause__ or error
    except BaseException:
        link.close()
        raise
    if (transport := link.client.get_transport()) is not None:
        transport.set_keepalive(KEEPALIVE_S)
        _tune(transport.sock)
    return link


class _Client(paramiko.Transport):
    """Offers host key algorithms in ssh's order, where paramiko puts certificates last; keeps sshd's last words."""

    offered: tuple[str, ...] = ()
    farewell = ""

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.offered

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()


def _clients(target: Target, where: str) -> Callable[..., paramiko.Transport]:
    plain = paramiko.Transport._preferred_keys  # type: ignore[attr-defined]  # noqa: SLF001  nothing public says what paramiko can do
    offered = host_keys.algorithms(target, (*(f"{name}{SUFFIX}" for name in plain), *plain), where)

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        client = _Client(sock, **options)
        client.offered = offered
        return client

    return make


def _connection(target: Target, limit_s: float, proxy: Proxy | None, strategy: Mapping[str, Any]) -> Any:
    options = {
        **strategy,
        "banner_timeout": limit_s,
        "auth_timeout": limit_s,
        "channel_timeout": CHANNEL_S,
        **({"sock": proxy.socket} if proxy else {}),
    }
    return fabric.Connection(
        target.host,
        target.user,
        target.port,
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        gateway=False,
        connect_timeout=limit_s,
        connect_kwargs=options,
        forward_agent=False,
    )


class _Dropped(Exception):  # noqa: N818  a mark, never raised
    """The connection ended before SSH was spoken."""


def _why(error: Exception, target: Target, where: str, *, limit_s: float, waited_s: float) -> RackhandError:
    place, text = f"{target.host} port {target.port}", str(error) or type(error).__name__
    if isinstance(error, RackhandError):
        return error
    if isinstance(error, socket.gaierror):
        hint = "mend ssh in the inventory, or the Host entry in ssh_config"
        return UnreachableError(f"no address for {target.host}", where=where, hint=hint, detail=text)
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        reason = "; ".join(sorted({str(getattr(e, "strerror", e)) for e in error.errors.values()}))
        return UnreachableError(f"{place}: {reason}", where=where, hint="is the host up, and sshd running?")
    if waited_s >= limit_s and any(sign in text for sign in SILENT):
        return DeadlineError(f"{place} took the connection, but sshd said nothing", where=where, hint=FROZEN)
    if isinstance(error, TimeoutError) or "imeout" in text or "timed out" in text:
        what = f"no connection to {place} within {limit_s:.0f} s"
        return UnreachableError(what, where=where, hint="is the host up, and the road to it open?", detail=text)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        hint = "see HostKeyAlgorithms in ssh_config, and sshd_config there"
        return UnreachableError(f"{place}: no algorithm in common", where=where, hint=hint, detail=text)
    if isinstance(error, (paramiko.SSHException, EOFError, ConnectionError)):
        problem = UnreachableError(f"{place} broke off: {text}", where=where, hint=AGAIN, detail=repr(error))
        problem.__cause__ = _Dropped(text)
        return problem
    return UnreachableError(f"{place}: {text}", where=where, detail=repr(error))


def _tune(sock: Any) -> None:
    """TCP_NODELAY makes a command on an open connection 5 to 10 times faster; the other one notices a dead network."""
    if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
