"""The verb `servers` over a road: orders in, events out as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rackhand.again import fill_gpus
from rackhand.agent import Session
from rackhand.arguments import gpu_ranges
from rackhand.contract import from_json, to_json
from rackhand.contract.servers import (
    STOPPED,
    ServerOrder,
    ServerResult,
    ServersRequest,
    Step,
)
from rackhand.errors import TransportError
from rackhand.inventory import Host
from rackhand.plan.servers import ServeGpus
from rackhand.report import Outcome

SILENCE_S = 60.0
"""The verbs send a heartbeat every 5 s."""
SLACK_S = 120.0
READY, FAILED = "ready", "failed"
"""Steps that only this side knows: a result came."""


def serve_gpus(
    session: Session,
    host: Host,
    action: ServeGpus,
    *,
    secrets: Mapping[str, str],
    steps: dict[int, Step],
    say: Callable[[str], None],
) -> tuple[Outcome, ...]:
    """Every GPU's order carried out; one that fails leaves the others going. `steps` gets the last step of each."""

    def on_step(step: Step) -> None:
        steps[step.gpu] = step
        if step.step in (READY, STOPPED, FAILED):
            return
        text = step.text.removeprefix(f"{step.step} ")
        say(f"GPU {step.gpu}: {step.step}{': ' if text else ''}{text}")

    results = start_servers(session, host, action, secrets=secrets, on_step=on_step)
    outcomes: list[Outcome] = []
    for order in action.orders:
        outcomes += _outcomes(order, results[order.gpu], action.before.get(order.gpu))
    return tuple(outcomes)


def start_servers(
    session: Session,
    host: Host,
    action: ServeGpus,
    *,
    secrets: Mapping[str, str],
    on_step: Callable[[Step], None],
) -> dict[int, ServerResult]:
    """One call for all GPUs; a result for each. A road that breaks in the middle raises TransportError."""
    orders = action.orders
    request = ServersRequest(host.home, orders, dict(secrets), action.at_once, redo=action.redo)
    results: dict[int, ServerResult] = {}
    for event in session.call(
        "servers",
        to_json(request),
        python=host.python,
        deadline_s=_deadline_s(orders, action.at_once),
        silence_s=SILENCE_S,
    ):
        if event.get("event") == "step":
            on_step(from_json(Step, event))
        elif event.get("event") == "result":
            result = from_json(ServerResult, event)
            results[result.gpu] = result
            on_step(Step(result.gpu, result.step if result.ok else FAILED, result.cause))
    missing = [str(order.gpu) for order in orders if order.gpu not in results]
    if missing:
        raise TransportError(f"no result for GPU {', '.join(missing)}", where=host.where)
    return results


def _outcomes(order: ServerOrder, result: ServerResult, before: int | None) -> list[Outcome]:
    """A GPU whose old server was stopped and whose new one failed has an outcome for each."""
    name = f"GPU {order.gpu}"
    if result.ok and order.start is None:
        return [Outcome(f"{name}: stopped")]
    if result.ok:
        after = result.capacity.max_running if result.capacity else None
        change = f"{'-' if before is None else before} → {'unknown' if after is None else after} running at most"
        return [Outcome(f"{name}: ready in {result.seconds:.0f} s, {change}")]
    stopped = [Outcome(f"{name}: stopped pid {order.stop[0].pid}")] if order.stop and result.step != "stopping" else []
    state = "still running, " if result.running else ""
    return [
        *stopped,
        Outcome(f"{name}: {state}failed while {result.step}: {result.cause}", "failed", "\n".join(result.lines)),
    ]


def outcomes_when_cut(action: ServeGpus, steps: Mapping[int, Step], *, goes_on: bool = True) -> tuple[Outcome, ...]:
    """What is known after the road broke: what each GPU had done, how far it came, and the command for those that were
    not begun. `goes_on`: what was begun is ended inside; False: whoever did the work is gone too."""
    outcomes: list[Outcome] = []
    unbegun, undone = [], []
    for order in action.orders:
        step, name = steps.get(order.gpu), f"GPU {order.gpu}"
        if step is None:
            unbegun.append(order.gpu)
            continue
        if step.step in (READY, STOPPED):
            outcomes.append(Outcome(f"{name}: {step.step}"))
            continue
        targets = [*order.stop[:1], *order.adopt]
        if targets and step.step != "draining":
            pids = ", ".join(str(process.pid) for process in targets)
            outcomes.append(Outcome(f"{name}: {'told to end:' if step.step == 'stopping' else 'stopped'} pid {pids}"))
        elif step.step in ("starting", "loading"):
            outcomes.append(Outcome(f"{name}: a server was started"))
        if step.step == FAILED or not goes_on:
            undone.append(order.gpu)
        after = step.text if step.step == FAILED else "what had begun goes on inside" if goes_on else "nobody goes on"
        outcomes.append(Outcome(f"{name}: last seen {step.step}; {after}", "failed", step.text))
    for gpus, what in ((undone, "not done"), (unbegun, "not begun")):
        if gpus and action.redo:
            where = f"GPU {gpu_ranges(gpus)}"
            outcomes.append(Outcome(f"{where}: {what}; run: {fill_gpus(action.redo, gpus)}", "failed"))
    return tuple(outcomes)


def _deadline_s(orders: Sequence[ServerOrder], at_once: int) -> float:
    """The longest that any order may take, times the number of rounds, and some slack."""
    longest = max(
        (o.stop_timeout_s * (1 + bool(o.adopt)) + o.memory_timeout_s + (o.start.ready_timeout_s if o.start else 0))
        for o in orders
    )
    rounds = -(-len(orders) // at_once) if at_once else 1
    return longest * rounds + SLACK_S
