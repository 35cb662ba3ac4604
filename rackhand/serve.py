"""The verbs `servers` and `probe` over a road: orders in, events out as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rackhand import agent
from rackhand.contract import from_json, to_json
from rackhand.contract.servers import (
    FlagFacts,
    Probe,
    ProbeRequest,
    ServerOrder,
    ServerResult,
    ServersRequest,
    Step,
)
from rackhand.errors import TransportError
from rackhand.inventory import Host
from rackhand.serving import interpreter
from rackhand.transport import Transport

SILENCE_S = 60.0
"""The verbs send a heartbeat every 5 s."""
SLACK_S = 120.0


def start_servers(
    transport: Transport,
    host: Host,
    orders: Sequence[ServerOrder],
    *,
    secrets: Mapping[str, str],
    at_once: int = 0,
    on_step: Callable[[Step], None],
) -> dict[int, ServerResult]:
    """One call for all GPUs; a result for each. A road that breaks in the middle raises TransportError."""
    request = ServersRequest(host.home, tuple(orders), dict(secrets), at_once)
    results: dict[int, ServerResult] = {}
    for event in agent.call(
        transport,
        "servers",
        to_json(request),
        python=interpreter(host),
        deadline_s=_deadline_s(orders, at_once),
        silence_s=SILENCE_S,
    ):
        if event.get("event") == "step":
            on_step(from_json(Step, event))
        elif event.get("event") == "result":
            result = from_json(ServerResult, event)
            results[result.gpu] = result
    missing = [str(order.gpu) for order in orders if order.gpu not in results]
    if missing:
        raise TransportError(f"no result for GPU {', '.join(missing)}", where=host.where)
    return results


def observe_flags(transport: Transport, host: Host, pythons: Sequence[str]) -> dict[str, FlagFacts]:
    """The flags that the engine of each interpreter knows, by interpreter."""
    request = ProbeRequest(host.home, pythons=tuple(pythons), env_script=f"{host.home}/env.sh")
    events = agent.call(transport, "probe", to_json(request), python=interpreter(host), deadline_s=600.0)
    found = [from_json(FlagFacts, event) for event in events if event.get("event") == "flags"]
    return {facts.python: facts for facts in found}


def observe_health(transport: Transport, host: Host, urls: Sequence[str], *, timeout_s: float = 60.0) -> list[Probe]:
    """One real generation from each server, asked now."""
    request = ProbeRequest(host.home, urls=tuple(urls), timeout_s=timeout_s)
    events = agent.call(transport, "probe", to_json(request), python=interpreter(host), deadline_s=timeout_s + SLACK_S)
    return [from_json(Probe, event) for event in events if event.get("event") == "probe"]


def _deadline_s(orders: Sequence[ServerOrder], at_once: int) -> float:
    """The longest that any order may take, times the number of rounds, and some slack."""
    longest = max(
        (o.stop_timeout_s * (1 + bool(o.adopt)) + o.memory_timeout_s + (o.start.ready_timeout_s if o.start else 0))
        for o in orders
    )
    rounds = -(-len(orders) // at_once) if at_once else 1
    return longest * rounds + SLACK_S
