"""The TCP ports of a server that starts: free, listened on, or lent to an outgoing connection.

NCCL's ports (40000 ...) lie in the range from which Linux takes the local ports of connections. Such a connection,
and for a minute its TIME_WAIT, makes bind() fail, with SO_REUSEADDR too.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

LISTENER_GRACE_S = 5.0
CONNECTION_GRACE_S = 75.0
"""TIME_WAIT lasts 60 s."""

_LISTEN = "0A"


def reserve(ports: Iterable[int], proc: Path = Path("/proc")) -> None:
    """Keeps the kernel from lending `ports` to connections, besides those that are reserved already. In a container
    only: it has this setting to itself. Where it can't be written nothing happens."""
    table = proc / "sys/net/ipv4/ip_local_reserved_ports"
    with contextlib.suppress(OSError):
        if b"container=" in (proc / "1/environ").read_bytes():
            known = table.read_text().strip()
            table.write_text(",".join([*([known] if known else []), *map(str, sorted(set(ports)))]))


def is_free(port: int) -> bool:
    """A server on 127.0.0.1 could bind it now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def listening(port: int, proc: Path = Path("/proc")) -> str | None:
    """Who listens on the port: pid and name, "another process" when they can't be seen; None when nobody does."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(proc / "net" / table, port)}
    if not inodes:
        return None
    for link in proc.glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                pid = link.parts[-3]
                return f"pid {pid} ({(proc / pid / 'comm').read_text().strip()})"
    return "another process"


def _listeners(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
