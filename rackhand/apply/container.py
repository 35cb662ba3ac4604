"""Start a stopped container: by the API where the inventory has one that answers, else by pct."""

from __future__ import annotations

import os
from collections.abc import Callable

from rackhand.errors import PreconditionError, RemoteError, UnreachableError
from rackhand.inventory import Api, Host, ProxmoxLxc
from rackhand.transport import Transport
from rackhand.transport.via import Via

LIMIT_S = 120.0


def start_container(transport: Transport, host: Host, say: Callable[[str], None]) -> None:
    """Returns when it runs, also when it did already. An API that can't be reached is done without; one that refuses
    is an error."""
    road = host.road
    if not isinstance(road, ProxmoxLxc) or not isinstance(transport, Via):
        raise PreconditionError("only a container can be started", where=host.where)
    if road.api is not None:
        say(f"starting container {road.vmid} through the API")
        try:
            _start_by_api(road, road.api, host.where)
        except UnreachableError as error:
            say(f"{error.what}; doing without it")
        else:
            return
    say(f"pct start {road.vmid}")
    done = transport.inner.exec(("pct", "start", str(road.vmid)), deadline_s=LIMIT_S)
    said = done.stderr.decode(errors="replace").strip()
    for line in said.splitlines() if not done.status else ():
        if line.startswith("WARN"):  # a start that warns has succeeded
            say(f"pct start {road.vmid}: {line}")
    if done.status and "already running" not in said:
        transport.checked(done)
        hint = f"on the Proxmox host, `pct start {road.vmid} --debug` shows more"
        last = said.splitlines()[-1] if said else f"status {done.status}"
        raise RemoteError(f"pct start failed: {last}", where=host.where, hint=hint, detail=said)


def _start_by_api(road: ProxmoxLxc, api: Api, where: str) -> None:
    from rackhand.proxmox import Node
    from rackhand.secrets import resolve

    Node(road, resolve(api.token, os.environ), where=where, limit_s=LIMIT_S).start(road.vmid)
