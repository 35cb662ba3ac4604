"""Servers: what is wanted and what was observed → one order for each GPU. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackhand import tmux
from rackhand.contract.servers import (
    FlagFacts,
    OwnServer,
    Process,
    ServerOrder,
    ServersState,
    Start,
    Stray,
    argv_digest,
)
from rackhand.engines import engine
from rackhand.errors import PreconditionError, UsageError
from rackhand.facts import Facts
from rackhand.inventory import Host, Server
from rackhand.scripts import log_file, script_file, serve_values, server_argv
from rackhand.template import render_script


@dataclass(frozen=True, slots=True)
class ServeGpus:
    """One call of the verb `servers`; `lines` say in words what it will do, GPU by GPU. `before` is the effective
    capacity (running requests) of each server that runs now, as far as it said it; `redo` the command line that does it
    again, with {gpus} for the GPUs."""

    orders: tuple[ServerOrder, ...]
    lines: tuple[str, ...]
    at_once: int = 0
    before: Mapping[int, int] = field(default_factory=dict)
    redo: str = ""


def plan_restart(
    host: Host,
    facts: Facts,
    servers: Sequence[Server],
    flags: Mapping[str, FlagFacts],
    *,
    adopt: bool = False,
    at_once: int = 0,
) -> ServeGpus:
    """Stop what runs on the GPUs of `servers`, start these. `flags` by interpreter, from the verb `probe`.

    UsageError with every flag that the installed version would refuse; PreconditionError when a server that somebody
    started by hand is in the way and `adopt` is not set.
    """
    check_flags(host, servers, flags, hint="nothing was stopped")
    state = facts.servers
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus}
    in_the_way = {server.gpu: _strays_of(state, uuids[server.gpu], server.port) for server in servers}
    if not adopt:
        _refuse_strays(host, tuple(stray for strays in in_the_way.values() for stray in strays))
    orders = tuple(
        _order(
            host,
            server,
            flags[server.spec.python],
            uuid=uuids[server.gpu],
            state=state,
            strays=in_the_way[server.gpu],
        )
        for server in servers
    )
    return ServeGpus(orders, tuple(_say(order) for order in orders), at_once, _capacities(state))


def plan_stop_servers(host: Host, facts: Facts, gpus: Sequence[int] | None = None) -> ServeGpus:
    """Stop every server of ours, or those on `gpus`, also where nvidia-smi can't read their GPU. `orders` is empty
    when none lives."""
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus if not gpu.fault}
    orders = tuple(
        ServerOrder(
            gpu=own.record.gpu,
            uuid=uuids.get(own.record.gpu, ""),
            url=f"http://127.0.0.1:{own.record.port}",
            stop=_targets(own),
            end_session=tmux.kill_session_argv(host.home, own.record.session),
            stop_timeout_s=_stop_timeout_s(host, own.record.gpu),
        )
        for own in facts.servers.own
        if own.living and (gpus is None or own.record.gpu in gpus)
    )
    return ServeGpus(orders, tuple(_say(order) for order in orders))


def strays_in_the_way(facts: Facts, servers: Sequence[Server]) -> tuple[Stray, ...]:
    """Server processes that somebody else started on the GPUs or ports of `servers`."""
    state, uuids = facts.servers, {gpu.index: gpu.uuid for gpu in facts.gpus}
    found = {stray for server in servers for stray in _strays_of(state, uuids[server.gpu], server.port)}
    return tuple(sorted(found, key=lambda stray: stray.process.pid))


def render_stray(stray: Stray) -> str:
    kind = "left over" if stray.orphan else "started by hand"
    port = f", port {stray.port}" if stray.port else ""
    return f"pid {stray.process.pid} ({kind}{port}, GPU {stray.gpu_uuid or 'unknown'}): {stray.command}"


_PYTHON = "set hosts.{}.servers.python to the interpreter that SGLang is installed for"


def check_flags(host: Host, servers: Sequence[Server], flags: Mapping[str, FlagFacts], *, hint: str) -> None:
    """UsageError with every flag that the installed version would refuse; PreconditionError when it can't be known."""
    problems: list[str] = []
    for server in servers:
        facts = flags.get(server.spec.python)
        if facts is None or facts.error:
            why = facts.error if facts else "it was not asked"
            raise PreconditionError(
                f"flags of {server.spec.python} unknown: {why}", where=host.where, hint=_PYTHON.format(host.name)
            )
        kind = engine(server.spec.engine)
        args = kind.translate(server.args, version=facts.version, known=frozenset(facts.options))
        for mistake in kind.check_flags(args, facts):
            text = f"{mistake.what}; {mistake.hint}" if mistake.hint else mistake.what
            problems += [] if text in problems else [text]
    if problems:
        raise UsageError("\n".join(problems), where=host.where, hint=hint)


def _strays_of(state: ServersState, uuid: str, port: int) -> tuple[Stray, ...]:
    return tuple(s for s in state.strays if s.gpu_uuid in (uuid, None) or s.port == port)


def _refuse_strays(host: Host, strays: tuple[Stray, ...]) -> None:
    if not strays:
        return
    listed = "\n  ".join(dict.fromkeys(render_stray(stray) for stray in strays))
    raise PreconditionError(
        f"servers that rackhand did not start are in the way:\n  {listed}\n",
        where=host.where,
        hint="--adopt stops them, or end them yourself",
    )


def _order(
    host: Host, server: Server, flags: FlagFacts, *, uuid: str, state: ServersState, strays: tuple[Stray, ...]
) -> ServerOrder:
    argv = server_argv(host, server, version=flags.version, known=frozenset(flags.options))
    deployed = server_argv(host, dataclasses.replace(server, args=server.spec.args))
    script, path = None, script_file(host, server.gpu)
    if argv != deployed:
        path = f"{host.home}/run/serve-gpu{server.gpu}.sh"
        script = render_script("serve.sh.j2", serve_values(host, server, argv))
    running = next((own for own in state.own if own.record.gpu == server.gpu), None)
    return ServerOrder(
        gpu=server.gpu,
        uuid=uuid,
        url=server.url,
        engine=server.spec.engine,
        stop=_targets(running) if running else (),
        end_session=tmux.kill_session_argv(host.home, server.session),
        stop_timeout_s=server.spec.stop_timeout_s,
        adopt=tuple(stray.process for stray in strays),
        start=Start(
            port=server.port,
            nccl_port=server.nccl_port,
            tmux=tmux.new_session_argv(host.home, server.session, ("/bin/bash", path, uuid), digest=argv_digest(argv)),
            record=f"{host.home}/run/gpu{server.gpu}.json",
            log=log_file(host, server),
            script_path=path,
            script=script,
            ready_timeout_s=server.spec.ready_timeout_s,
        ),
    )


def _capacities(state: ServersState) -> dict[int, int]:
    loads = {own.record.gpu: own.load for own in state.own if own.load is not None}
    return {gpu: load.capacity.max_running for gpu, load in loads.items() if load.capacity is not None}


def _targets(own: OwnServer) -> tuple[Process, ...]:
    return own.living


def _stop_timeout_s(host: Host, gpu: int) -> float:
    for spec in host.servers:
        if spec.gpus is None or gpu in spec.gpus:
            return spec.stop_timeout_s
    return 120.0


def _say(order: ServerOrder) -> str:
    steps: list[Any] = []
    if order.stop:
        steps.append(f"stop pid {order.stop[0].pid}")
    if order.adopt:
        steps.append("stop what was started by hand: pid " + ", ".join(str(p.pid) for p in order.adopt))
    if order.start:
        how = "with other flags than deployed" if order.start.script else "as deployed"
        steps.append(f"start on port {order.start.port} {how}")
    return f"GPU {order.gpu}: " + ", then ".join(steps)
