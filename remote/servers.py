"""Call verb `servers`: every GPU's order at once, events as they happen, a result for each.

One such verb at a time in a container (run/servers.lock). When the control side goes away or interrupts, it stops
waiting: nothing new is stopped or started, what already starts goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.servers import Heartbeat, ServerResult, ServersRequest, Step, secrets_dir
from rackhand.engines import engine
from remote.cli import VerbError
from remote.serving.ask import read_api_key
from remote.serving.gpu_memory import Baselines
from remote.serving.journal import append_event
from remote.serving.order import Shop, Turn
from remote.serving.ports import reserve
from remote.serving.secret_files import put_secrets
from remote.serving.wishes import Wishes

HEARTBEAT_S = 5.0
CANCEL_GRACE_S = 3.0

Emit = Callable[[dict[str, Any]], None]


def call(data: Any, emit: Emit, _body: BinaryIO) -> None:
    request = from_json(ServersRequest, data)
    home = Path(request.home)
    (home / "run").mkdir(parents=True, exist_ok=True)
    with exclusive(home / "run" / "servers.lock", "another restart-servers or stop works on these servers"):
        put_secrets(Path(secrets_dir(request.home)), request.secrets)
        starts = [order.start for order in request.orders if order.start is not None]
        reserve(port for start in starts for port in (start.port, start.nccl_port) if port is not None)
        _serve(request, home, emit)


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


def _serve(request: ServersRequest, home: Path, emit: Emit) -> None:
    events: queue.Queue[Step | ServerResult] = queue.Queue()
    baselines = Baselines(home)
    baselines.learn_all(frozenset(order.uuid for order in request.orders if order.stop or order.adopt))
    shop = Shop(
        home,
        engine(request.orders[0].engine if request.orders else "sglang"),
        read_api_key(Path(secrets_dir(request.home))),
        Wishes(home),
        baselines,
        events.put,
        threading.Semaphore(request.at_once or max(1, len(request.orders))),
    )
    gap_s = 0.0 if request.at_once else request.start_gap_s
    turns = {order.gpu: Turn(shop, order, delay_s=i * gap_s) for i, order in enumerate(request.orders)}
    threads = {
        gpu: threading.Thread(target=_take, args=(gpu, turn, events), name=f"gpu{gpu}", daemon=True)
        for gpu, turn in turns.items()
    }
    for thread in threads.values():
        thread.start()
    try:
        _report(turns, events, emit)
    except (KeyboardInterrupt, BrokenPipeError):
        shop.cancelled.set()
        _let_go(turns, threads)
        with contextlib.suppress(BrokenPipeError, queue.Empty):
            _report(turns, events, emit, patience_s=CANCEL_GRACE_S)
        raise
    finally:
        append_event(home, "servers_verb_ends", gpus=sorted(turns), interrupted=shop.cancelled.is_set())


def _let_go(turns: dict[int, Turn], threads: dict[int, threading.Thread]) -> None:
    """The turns leave the wishes as they have to stay; those that wait for a server's answer don't do it in time."""
    deadline = time.monotonic() + CANCEL_GRACE_S
    for gpu, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            turns[gpu].let_go()


def _take(gpu: int, turn: Turn, events: queue.Queue[Step | ServerResult]) -> None:
    """A result comes whatever happens: without it the verb would wait for ever."""
    result = ServerResult(gpu, ok=False, step=turn.step, seconds=0.0, cause="an error in rackhand itself: see stderr")
    try:
        result = turn.run()
    finally:
        events.put(result)


def _report(
    turns: dict[int, Turn],
    events: queue.Queue[Step | ServerResult],
    emit: Emit,
    *,
    patience_s: float | None = None,
) -> None:
    """Until every turn has given its result. `patience_s` set: queue.Empty after so long without an event."""
    waiting = set(turns)
    while waiting:
        try:
            event = events.get(timeout=patience_s or HEARTBEAT_S)
        except queue.Empty:
            if patience_s is not None:
                raise
            _check_reader()
            steps = ", ".join(f"GPU {gpu} {turns[gpu].step}" for gpu in sorted(waiting))
            emit(to_json(Heartbeat(steps)))
            continue
        if isinstance(event, ServerResult):
            waiting.discard(event.gpu)
        emit(to_json(event))


def _check_reader() -> None:
    """BrokenPipeError when nobody reads our output any more, before anything is written."""
    poller = select.poll()
    poller.register(1, 0)
    if any(mask & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, mask in poller.poll(0)):
        raise BrokenPipeError
