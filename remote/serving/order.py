"""One GPU's turn in a restart: stop, see its memory come back, start, wait until it generates."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rackhand.contract.servers import (
    ACTIVE,
    DRAINING,
    STARTING,
    STOPPED,
    WAITING,
    Process,
    ServerOrder,
    ServerResult,
    Start,
    Step,
)
from rackhand.engines import Engine
from remote import processes
from remote.serving import ports
from remote.serving.gpu_memory import Baselines, Sampler, is_back, name_holders
from remote.serving.readiness import Readiness
from remote.serving.state import find_strays
from remote.serving.wishes import Wishes

POLL_S = 0.2
CHILD_GRACE_S = 5.0


class OrderError(Exception):
    """Why one GPU's order ended early; `running` says that its server still runs, `loading` that it still loads."""

    def __init__(
        self, cause: str, lines: tuple[str, ...] = (), *, running: bool = False, loading: bool = False
    ) -> None:
        super().__init__(cause)
        self.cause, self.lines, self.running, self.loading = cause, lines, running or loading, loading


@dataclass
class Shop:
    """What the turns share: state files, the sampler, the gate that lets so many GPUs be out of service at a time, and
    whether nobody waits any more (`alone`)."""

    home: Path
    kind: Engine
    key: str | None = field(repr=False)
    wishes: Wishes
    baselines: Baselines
    say: Callable[[Step], None]
    gate: threading.Semaphore
    alone: threading.Event
    sampler: Sampler = field(default_factory=Sampler)


class Turn:
    """`run` gives the result and never raises for what a server, a GPU or a disk does. `went_on`: nobody waited any
    more for a server that loads."""

    def __init__(self, shop: Shop, order: ServerOrder, *, delay_s: float = 0.0) -> None:
        self._shop, self._order, self._delay_s = shop, order, delay_s
        self.step, self._began = WAITING, time.monotonic()
        self.went_on = False

    def run(self) -> ServerResult:
        try:
            return self._run()
        except OrderError as failed:
            self._give_up(running=failed.running, loading=failed.loading)
            return self._result(ok=False, cause=failed.cause, lines=failed.lines, running=failed.running)
        except OSError as error:
            self._give_up(running=True)
            return self._result(ok=False, cause=f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
        except subprocess.SubprocessError as error:
            self._give_up(running=True)
            return self._result(ok=False, cause=str(error))

    def _give_up(self, *, running: bool, loading: bool = False) -> None:
        """A server that is gone is not wanted any more: what ended while it was wanted would count as a crash. One
        that nobody waits for any longer is wanted: a generator takes it once it answers."""
        if loading or not running:
            with contextlib.suppress(OSError):
                self._shop.wishes.put(self._order.url, ACTIVE if loading else STOPPED)

    def _run(self) -> ServerResult:
        order = self._order
        with self._shop.gate:
            if self._shop.alone.is_set():
                raise OrderError("not begun: the connection to the operator ended before", running=True)
            self._began = time.monotonic()
            self._stop()
            if order.uuid:
                self._await_memory()
            if order.start is None:
                self._shop.wishes.put(order.url, STOPPED)
                return self._result(ok=True, step="stopped")
            time.sleep(self._delay_s)
            return self._start(order.start)

    def _stop(self) -> None:
        order = self._order
        if order.stop or order.adopt:
            self._shop.wishes.put(order.url, DRAINING)
        if order.stop:
            self._end(order.stop, "own server")
        for process in order.adopt:
            self._end((process,), "started by hand")
        if order.end_session:
            subprocess.run(order.end_session, capture_output=True, timeout=30, check=False)

    def _end(self, targets: tuple[Process, ...], text: str) -> None:
        """SIGTERM to the main process alone, SIGKILL after the deadline, then its children that stayed."""
        main = targets[0]
        remembered = {*targets[1:], *processes.descendants(main.pid)} if processes.lives(main) else set(targets[1:])
        self._say("stopping", f"{text}: pid {main.pid}")
        processes.send_signal(main, signal.SIGTERM)
        processes.send_signal(main, signal.SIGCONT)  # one that was stopped by a signal takes none until it goes on
        if not self._await(lambda: not processes.lives(main), self._order.stop_timeout_s):
            self._say("stopping", f"pid {main.pid} still there after {self._order.stop_timeout_s:.0f} s: SIGKILL")
            remembered |= set(processes.descendants(main.pid))
            processes.send_signal(main, signal.SIGKILL)
            self._await(lambda: not processes.lives(main), CHILD_GRACE_S)
        self._await(lambda: not any(processes.lives(p) for p in remembered), CHILD_GRACE_S)
        for process in remembered:
            processes.send_signal(process, signal.SIGKILL)
        left = [p.pid for p in (main, *remembered) if processes.lives(p) and not processes.await_end(p, CHILD_GRACE_S)]
        if left:
            raise OrderError(f"pid {left[0]} does not end, even by SIGKILL", running=True)

    def _await_memory(self) -> None:
        order, baseline = self._order, self._shop.baselines.read().get(self._order.uuid)
        gpu = self._shop.sampler.gpu(order.uuid)
        if gpu is not None and gpu.used_mib is None and not gpu.is_faulty:
            self._say("memory", f"not checked: nvidia-smi says {gpu.unread} instead of it")
            return
        used = gpu.used_mib if gpu else None
        if used is None or not is_back(used, baseline):
            self._say("memory", f"{'?' if used is None else used} MiB in use, waiting for {baseline or 0} MiB")

        def back() -> bool:
            now = self._used_mib()
            return now is not None and is_back(now, baseline)

        if not self._await(back, order.memory_timeout_s):
            used = self._used_mib()
            if used is None:
                gpu = self._shop.sampler.gpu(order.uuid)
                why = f"says {gpu.unread} of it" if gpu else "shows no such GPU"
                raise OrderError(f"the memory of {order.uuid} can't be read: nvidia-smi {why}; look at the driver")
            leftovers = tuple(
                f"pid {s.process.pid} ({s.command[:60]})"
                for s in find_strays(self._shop.kind, set())
                if s.gpu_uuid in (order.uuid, None)
            )
            idle = "unknown" if baseline is None else f"{baseline} MiB"
            raise OrderError(
                f"memory did not come back in {order.memory_timeout_s:.0f} s: {used} MiB in use, idle baseline "
                f"{idle}; {name_holders(order.uuid, leftovers)}"
            )
        used = self._used_mib()
        if used is not None:
            self._shop.baselines.learn(order.uuid, used)

    def _used_mib(self) -> int | None:
        gpu = self._shop.sampler.gpu(self._order.uuid)
        return gpu.used_mib if gpu else None

    def _start(self, start: Start) -> ServerResult:
        for key, port in (("port", start.port), ("nccl_port", start.nccl_port)):
            if port is not None:
                self._await_port(key, port)
        if start.script is not None:
            put_script(Path(start.script_path), start.script)
        self._say("starting")
        self._shop.wishes.put(self._order.url, STARTING)
        ready = Readiness(self._shop.kind, self._order, start, self._shop.key)
        done = subprocess.run(start.tmux, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0 or not done.stdout.strip().isdigit():
            raise OrderError(f"tmux: {(done.stderr or done.stdout).strip() or 'no pane'}")
        ready.pane = processes.identify(int(done.stdout.strip()))
        return self._await_ready(ready, start)

    def _await_port(self, key: str, port: int) -> None:
        if self._await(lambda: ports.is_free(port), ports.LISTENER_GRACE_S):
            return
        if holder := ports.listening(port):
            raise OrderError(f"port {port} is taken: {holder} listens on it; end it, or set servers.{key}")
        self._say("port", f"{port} is the local port of a connection; waiting until it ends")
        if not self._await(lambda: ports.is_free(port), ports.CONNECTION_GRACE_S):
            raise OrderError(
                f"port {port} is the local port of a connection that stays (ss -tanp shows it); set servers.{key} "
                "to one outside net.ipv4.ip_local_port_range, or end that process"
            )

    def _await_ready(self, ready: Readiness, start: Start) -> ServerResult:
        deadline = time.monotonic() + start.ready_timeout_s
        while time.monotonic() < deadline:
            if stage := ready.read_stage():
                self._say("loading", stage)
            if ready.has_ended():
                cause, lines = ready.explain()
                raise OrderError(cause, lines)
            trouble, load = ready.ask(deadline)
            if trouble:
                raise OrderError(trouble, ready.last_lines(), running=True)
            if load is not None:
                self._shop.wishes.put(self._order.url, ACTIVE)
                return self._result(ok=True, step="ready", capacity_of=load)
            if self._shop.alone.wait(POLL_S):
                self.went_on = True
                raise OrderError("nobody waits for it any more; it goes on loading", loading=True)
        what = f"not ready after {start.ready_timeout_s:.0f} s ({ready.stage or 'no line in its log'}); it goes on"
        raise OrderError(what, ready.last_lines(), loading=True)

    def _await(self, true: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _say(self, step: str, text: str = "") -> None:
        self.step = step
        self._shop.say(Step(self._order.gpu, step, text))

    def _result(
        self,
        *,
        ok: bool,
        step: str | None = None,
        cause: str = "",
        lines: tuple[str, ...] = (),
        running: bool = False,
        capacity_of: object = None,
    ) -> ServerResult:
        self.step = step or self.step
        capacity = getattr(capacity_of, "capacity", None)
        seconds = round(time.monotonic() - self._began, 1)
        return ServerResult(self._order.gpu, ok, self.step, seconds, capacity, cause, lines, running or step == "ready")


def put_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)
