"""Call verb `servers`: every GPU's order at once, events as they happen, a result for each.

One such verb at a time in a container (run/servers.lock, held by the worker, which outlives the connection). When the
control side goes away, turns that have begun are ended: a GPU that was stopped is started. No other is begun, and
a server that loads is left to itself. What isn't done stands in run/turns.json.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.servers import Heartbeat, ServerResult, ServersRequest, Step, secrets_dir
from rackhand.engines import engine
from remote.cli import Emit, VerbError
from remote.serving.ask import read_api_key
from remote.serving.detached import Caller, carry_out
from remote.serving.gpu_memory import Baselines
from remote.serving.journal import append_event
from remote.serving.order import Shop, Turn
from remote.serving.ports import reserve
from remote.serving.secret_files import put_secrets
from remote.serving.turns import Turns
from remote.serving.wishes import Wishes

HEARTBEAT_S = 5.0
LOOK_S = 0.5
"""Between two looks whether somebody waits."""


def call(data: Any, emit: Emit, _body: BinaryIO) -> None:
    request = from_json(ServersRequest, data)
    home = Path(request.home)
    (home / "run").mkdir(parents=True, exist_ok=True)
    carry_out(lambda caller: _work(request, home, caller), emit, home / "run" / "servers.stderr")


def _work(request: ServersRequest, home: Path, caller: Caller) -> None:
    with exclusive(home / "run" / "servers.lock", "another restart-servers or stop works on these servers"):
        put_secrets(Path(secrets_dir(request.home)), request.secrets)
        starts = [order.start for order in request.orders if order.start is not None]
        reserve(port for start in starts for port in (start.port, start.nccl_port) if port is not None)
        _serve(request, home, caller)


@contextlib.contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """Holds an flock on `path`; VerbError `busy` when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise VerbError("busy", busy, "wait for it, or see rackhand status") from None
    finally:
        os.close(descriptor)


def _serve(request: ServersRequest, home: Path, caller: Caller) -> None:
    events: queue.Queue[Step | ServerResult] = queue.Queue()
    baselines = Baselines(home)
    baselines.learn_all(frozenset(order.uuid for order in request.orders if order.stop or order.adopt))
    open_turns = Turns(home, (order.gpu for order in request.orders), request.redo)

    def say(step: Step) -> None:
        open_turns.note(step.gpu, step.step)
        events.put(step)

    shop = Shop(
        home,
        engine(request.orders[0].engine if request.orders else "sglang"),
        read_api_key(Path(secrets_dir(request.home))),
        Wishes(home),
        baselines,
        say,
        threading.Semaphore(request.at_once or max(1, len(request.orders))),
        alone=caller.gone,
    )
    gap_s = 0.0 if request.at_once else request.start_gap_s
    turns = {order.gpu: Turn(shop, order, delay_s=i * gap_s) for i, order in enumerate(request.orders)}
    for gpu, turn in turns.items():
        threading.Thread(target=_take, args=(gpu, turn, open_turns, events), name=f"gpu{gpu}", daemon=True).start()
    _report(turns, events, caller)
    append_event(home, "servers_verb_ends", gpus=sorted(turns), interrupted=caller.is_gone())


def _take(gpu: int, turn: Turn, open_turns: Turns, events: queue.Queue[Step | ServerResult]) -> None:
    """A result comes whatever happens: without it the verb would wait for ever."""
    result = ServerResult(gpu, ok=False, step=turn.step, seconds=0.0, cause="an error in rackhand itself: see stderr")
    try:
        result = turn.run()
    finally:
        open_turns.end(gpu, None if result.ok or turn.went_on else result.cause)
        events.put(result)


def _report(turns: dict[int, Turn], events: queue.Queue[Step | ServerResult], caller: Caller) -> None:
    """Until every turn has given its result."""
    waiting, beat = set(turns), time.monotonic() + HEARTBEAT_S
    while waiting:
        try:
            event = events.get(timeout=LOOK_S)
        except queue.Empty:
            if not caller.is_gone() and time.monotonic() >= beat:
                steps = ", ".join(f"GPU {gpu} {turns[gpu].step}" for gpu in sorted(waiting))
                caller.tell(to_json(Heartbeat(steps)))
                beat = time.monotonic() + HEARTBEAT_S
            continue
        if isinstance(event, ServerResult):
            waiting.discard(event.gpu)
        caller.tell(to_json(event))
