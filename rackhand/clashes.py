"""What two servers of one host may not share: a GPU, a port, a tmux session. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rackhand.inventory import Server


@dataclass(frozen=True, slots=True)
class Clash:
    """Two servers of one host that want the same thing; `key` and `other_key` are what each calls it in YAML."""

    server: Server
    key: str
    other: Server
    other_key: str
    value: int | str

    def __str__(self) -> str:
        if self.key == "gpus":
            return f"GPU {self.value} has two servers"
        here, there = f"{self.key} of GPU {self.server.gpu}", f"{self.other_key} of GPU {self.other.gpu}"
        return f"{self.value} is both {here} and {there}"


def clashes(servers: Iterable[Server]) -> Iterator[Clash]:
    """Every GPU, port and session that is claimed a second time."""
    taken: dict[tuple[str, int | str], tuple[Server, str]] = {}
    for server in servers:
        if (other := taken.setdefault(("gpu", server.gpu), (server, "gpus")))[0] is not server:
            yield Clash(server, "gpus", other[0], "gpus", server.gpu)
            continue
        for space, key, value in (
            ("port", "port" if server.spec.port is not None else "port_base", server.port),
            ("port", "nccl_port" if server.spec.nccl_port is not None else "nccl_port_base", server.nccl_port),
            ("session", "session_prefix", server.session),
        ):
            if (other := taken.setdefault((space, value), (server, key))) != (server, key):
                yield Clash(server, key, *other, value)
