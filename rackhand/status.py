"""One host's servers and jobs as the operator wants to see them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rackhand.contract.job import OVER, JobState, Progress
from rackhand.contract.servers import OwnServer, Stray
from rackhand.contract.watch import State
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Host, expand
from rackhand.plan.servers import render_stray
from rackhand.tmux import Pane

GpuState = State | Literal["by hand", "empty", "unreadable"]
"""The words of a watch, of which one look tells running, loading (alive, no answer), draining, stopped and dead; by
hand: a server runs that isn't rackhand's; empty: nothing was ever started; unreadable: no server runs there, and
nvidia-smi can't read the GPU or doesn't show it."""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One GPU; None is unknown. `wish` is control.json's, `fault` what nvidia-smi says of a GPU that it can't read,
    `unread` what it says instead of the memory of one that it can."""

    gpu: int
    state: GpuState
    running: int | None = None
    queued: int | None = None
    max_running: int | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    pid: int | None = None
    port: int | None = None
    wish: str | None = None
    exit_status: int | None = None
    fault: str = ""
    unread: str = ""
    cause: str = ""

    def __str__(self) -> str:
        parts = [self.state if self.exit_status is None else f"{self.state} (exit {self.exit_status})"]
        if self.running is not None:
            cap = "?" if self.max_running is None else self.max_running
            parts = [f"{self.state} {self.running}/{cap}", f"queue {self.queued}"]
        if self.fault:
            parts.append(f"nvidia-smi: {self.fault}")
        elif self.unread:
            parts.append(f"memory unknown ({self.unread})")
        parts += [self.cause] if self.cause else []
        if self.memory_used_mib is not None:
            total = "?" if self.memory_total_mib is None else f"{self.memory_total_mib / 1024:.1f}"
            parts.append(f"{self.memory_used_mib / 1024:.1f}/{total} GiB")
        parts += [f"port {self.port}"] if self.port is not None else []
        parts += [f"pid {self.pid}"] if self.pid is not None else []
        parts += [f"to be {self.wish}"] if self.wish not in (None, "active", "draining", "starting") else []
        return ", ".join(str(part) for part in parts)


def gpu_statuses(host: Host, facts: Facts) -> tuple[GpuStatus, ...]:
    """Every GPU that nvidia-smi shows or that a server of the inventory wants, by index."""
    state = facts.servers
    own = {server.record.gpu: server for server in state.own}
    seen = {gpu.index: gpu for gpu in facts.gpus}
    wanted = {server.gpu for server in expand(host, seen)}
    return tuple(
        _seen_by_smi(_status(gpu, seen.get(gpu), own.get(gpu), state.strays, state.wishes), seen.get(gpu), facts)
        for gpu in sorted({*seen, *own, *wanted})
    )


def _seen_by_smi(status: GpuStatus, gpu: GpuFacts | None, facts: Facts) -> GpuStatus:
    """With what can't be read. A GPU that nobody can see is not called empty."""
    fault = gpu.fault if gpu else "it doesn't show this GPU" if facts.gpus else "it shows no GPU"
    state = "unreadable" if fault and status.state == "empty" else status.state
    return replace(status, state=state, fault=fault, unread=gpu.unread if gpu and not fault else "")


def job_word(state: JobState, pane: Pane | None) -> str:
    """running, draining, paused with why, not running, done, stopped, or how its last generator ended."""
    progress = state.progress
    if state.pid is not None:
        return _at_work(progress, state.pid)
    if progress is not None and progress.status in OVER:
        return _with_message(progress) if progress.status in ("failed", "killed") else progress.status
    if pane is not None and pane.dead and pane.status:
        return f"ended with status {pane.status}"
    return "not running"


def _at_work(progress: Progress | None, pid: int) -> str:
    """A progress that another generator left says nothing of this one."""
    if progress is None or progress.pid != pid or progress.status not in ("draining", "paused", "suspended"):
        return "running"
    return _with_message(progress)


def _with_message(progress: Progress) -> str:
    return f"{progress.status} ({progress.message})" if progress.message else progress.status


def stray_lines(facts: Facts) -> tuple[str, ...]:
    return tuple(render_stray(stray) for stray in facts.servers.strays)


def _status(
    index: int, gpu: GpuFacts | None, own: OwnServer | None, strays: tuple[Stray, ...], wishes: dict[str, str]
) -> GpuStatus:
    used, total = (gpu.memory_used_mib, gpu.memory_total_mib) if gpu else (None, None)
    by_hand = [stray for stray in strays if gpu is not None and stray.gpu_uuid == gpu.uuid]
    if own is None or not own.alive:
        if by_hand:
            stray = by_hand[0]
            return GpuStatus(
                index,
                "by hand",
                memory_used_mib=used,
                memory_total_mib=total,
                pid=stray.process.pid,
                port=stray.port,
            )
        return _ended(index, own, used, total)
    wish = wishes.get(_url(own))
    load = None if wish == "starting" else own.load
    capacity = load.capacity if load else None
    return GpuStatus(
        index,
        "loading" if load is None else "draining" if wish == "draining" else "running",
        running=load.running if load else None,
        queued=load.queued if load else None,
        max_running=capacity.max_running if capacity else None,
        memory_used_mib=used,
        memory_total_mib=total,
        pid=own.record.pid,
        port=own.record.port,
        wish=wish,
    )


def _ended(index: int, own: OwnServer | None, used: int | None, total: int | None) -> GpuStatus:
    """A wish doesn't count: a server that failed at its start is wished stopped, so that nothing is sent there."""
    if own is None:
        return GpuStatus(index, "empty", memory_used_mib=used, memory_total_mib=total)
    was_asked = own.record.asked and not own.cause
    status = None if was_asked else own.record.exit_status
    state: GpuState = "stopped" if was_asked else "dead"
    return GpuStatus(index, state, memory_used_mib=used, memory_total_mib=total, exit_status=status, cause=own.cause)


def _url(own: OwnServer) -> str:
    return f"http://127.0.0.1:{own.record.port}"
