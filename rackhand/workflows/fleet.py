"""Open each host's road, run a function on all hosts in parallel, collect what came of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from rackhand import inventory
from rackhand.agent import Session
from rackhand.errors import RackhandError
from rackhand.inventory import Host, ProxmoxLxc
from rackhand.report import Outcome, Report, Row, State
from rackhand.transport import Transport
from rackhand.transport.via import Via, pct

Say = Callable[[str, str], None]
"""Progress: where, text. Called from several threads."""
CHANNELS = 8
"""Of one connection; see transport.ssh."""
PATIENCE_S = 5.0
"""How long interrupted hosts may take to say how far they came."""


@dataclass
class Task:
    """One host at work: its road, and what has come of it so far, which stands also when the work ends in an error.
    `stopping` is set before the roads are closed under it."""

    host: Host
    transport: Transport
    say_to: Say
    stopping: threading.Event = field(default_factory=threading.Event)
    outcomes: list[Outcome] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    error: RackhandError | None = None
    finished: bool = False
    session: Session = field(init=False)
    """With the host, for all that is asked of it; closed when the work is done."""

    def __post_init__(self) -> None:
        self.session = Session(self.transport)

    def say(self, text: str) -> None:
        self.say_to(self.host.where, text)

    def add(self, what: str, state: State = "done", detail: str = "") -> None:
        self.outcomes.append(Outcome(what, state, detail))


Work = Callable[[Task], None]
Open = Callable[[Host], Transport]


class Roads:
    """Open connections: one for each SSH destination, and more where its containers need more channels at once than
    one has: else they could wait for each other without end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[inventory.Ssh, int], Transport] = {}
        self._taken: Counter[inventory.Ssh] = Counter()

    def open(self, host: Host) -> Transport:
        """The road to `host`; connects when the first command runs."""
        outer = self._connection(host.road.ssh, host.name, _channels(host))
        return pct(outer, host.road.vmid, host.where) if isinstance(host.road, ProxmoxLxc) else outer

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()

    def _connection(self, ssh: inventory.Ssh, name: str, channels: int) -> Transport:
        from rackhand.transport.ssh import Ssh

        with self._lock:
            if self._taken[ssh] % CHANNELS + channels > CHANNELS:
                self._taken[ssh] += CHANNELS - self._taken[ssh] % CHANNELS
            key = (ssh, self._taken[ssh] // CHANNELS)
            self._taken[ssh] += channels
            return self._connections.setdefault(key, Ssh(ssh, name))


def _channels(host: Host) -> int:
    """At once: the session, and beside it a file's way and pct push, or a command when the session gave no answer."""
    return 3 if host.put == "push" else 2


def run(verb: str, hosts: Sequence[Host], work: Work, *, say: Say, roads: Roads | None = None) -> Report:
    """`work` on every host at once, however many: a watch never ends. One host's failure leaves the others going.

    Ctrl-C, or a SIGTERM raised as a KeyboardInterrupt with `signum`, closes the roads: commands in
    flight end or lose their caller, and each row tells how far it came. A second one ends the wait for that.
    """
    roads = roads or Roads()
    stopping = threading.Event()
    tasks = [Task(host, roads.open(host), say, stopping) for host in hosts]
    caught: int | None = None
    pool = ThreadPoolExecutor(max(1, len(tasks)), thread_name_prefix="host")
    futures: list[Future[None]] = []
    try:
        for task in tasks:
            futures.append(pool.submit(_attempt, work, task))  # noqa: PERF401  an interrupt keeps those begun
        _wait_for(futures)
    except KeyboardInterrupt as stop:
        caught = getattr(stop, "signum", signal.SIGINT)
        stopping.set()
        say(verb, "interrupted: closing the connections")
        with contextlib.suppress(KeyboardInterrupt):
            roads.close()
            wait(futures, timeout=PATIENCE_S)
    finally:
        stopping.set()
        roads.close()
        pool.shutdown(wait=caught is None, cancel_futures=True)
    if caught is None:
        for future in futures:
            future.result()
    return Report(verb, tuple(_row(task) for task in tasks), caught)


def _attempt(work: Work, task: Task) -> None:
    """An error after the roads were closed is the interrupt's doing and not the host's."""
    try:
        work(task)
        task.finished = True
    except RackhandError as error:
        if not task.stopping.is_set():
            task.error = _of_its_own(error, task)
    finally:
        task.session.close()


def _of_its_own(error: RackhandError, task: Task) -> RackhandError:
    """A connection that hosts share has the first one's name."""
    if isinstance(task.transport, Via) and error.where == task.transport.inner.where:
        error.where = task.host.name
    return error


def _wait_for(futures: Sequence[Future[None]]) -> None:
    """In slices: a wait without a time limit keeps Python from running signal handlers on some platforms."""
    left: set[Future[None]] = set(futures)
    while left:
        left = wait(left, timeout=1.0).not_done


def _row(task: Task) -> Row:
    interrupted = not task.finished and task.error is None
    noise = str(task.session.noise)
    return Row(
        task.host.where, tuple(task.outcomes), dict(task.facts), task.error, interrupted=interrupted, noise=noise
    )
