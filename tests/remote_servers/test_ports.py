"""A connection may borrow the port of a server; only a listener has it for good."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.serving import ports


@pytest.fixture
def borrowed() -> Iterator[tuple[socket.socket, int]]:
    """A connection to a server, and the local port that the kernel lent it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            yield client, client.getsockname()[1]


def test_a_port_that_a_connection_borrowed_is_not_free_but_nobody_listens_on_it(
    borrowed: tuple[socket.socket, int],
) -> None:
    _, port = borrowed
    assert not ports.is_free(port)
    assert ports.listening(port) is None


def test_a_listener_is_named(borrowed: tuple[socket.socket, int]) -> None:
    client, _ = borrowed
    holder = ports.listening(client.getpeername()[1])
    assert holder is not None
    assert holder.startswith("pid ")


@pytest.mark.parametrize(
    ("environ", "before", "after"),
    [
        (b"container=lxc\0", "\n", "40000,40001"),
        (b"container=lxc\0", "8080,9000-9005\n", "8080,9000-9005,40000,40001"),
        (b"HOME=/\0", "8080\n", "8080\n"),
    ],
)
def test_ports_are_reserved_in_a_container_only_besides_what_is_reserved(
    tmp_path: Path, environ: bytes, before: str, after: str
) -> None:
    table = tmp_path / "sys/net/ipv4/ip_local_reserved_ports"
    table.parent.mkdir(parents=True)
    table.write_text(before)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/environ").write_bytes(environ)
    ports.reserve([40001, 40000, 40001], tmp_path)
    assert table.read_text() == after


def test_nothing_happens_where_the_setting_is_missing(tmp_path: Path) -> None:
    ports.reserve([40000], tmp_path)
    assert not list(tmp_path.iterdir())
