"""The scheduler and detokenizer processes: titled as the real ones, holding the GPU memory, dying with their parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab.gpu import state

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
DEATHS_APART_MS = 300


class Child(NamedTuple):
    """A child process and the line to it: MiB to hold go there, an acknowledgement comes back."""

    name: str
    pid: int
    line: socket.socket


def start_children(directory: Path, gpu_uuid: str, *, orphan: bool = False) -> list[Child]:
    """Forks the scheduler, which holds the GPU memory, and the detokenizer, which witnesses its end.

    `orphan`: the scheduler outlives its parent, as a real one does in the window of its slow imports.
    """
    parent = os.getpid()
    scheduler = _fork("scheduler", lambda line: _hold(line, directory, gpu_uuid, 0 if orphan else parent))
    return [scheduler, _fork("detokenizer", lambda line: _witness(line, directory, scheduler))]


def _fork(name: str, work: Callable[[socket.socket], None]) -> Child:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(name, pid, ours)
    ours.close()
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _put_title(f"sglang::{name}")
        work(theirs)
        status = 0
    finally:
        os._exit(status)


def put_memory(child: Child, mib: int) -> None:
    """Tells a child to hold `mib` MiB, and waits until its claim stands. ConnectionError when it has gone."""
    child.line.sendall(f"{mib}\n".encode())
    if not child.line.recv(16):
        raise ConnectionError(f"{child.name} (pid {child.pid}) has ended")


def _hold(line: socket.socket, directory: Path, gpu_uuid: str, parent: int) -> None:
    if parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
    with line.makefile("rw") as orders:
        for order in orders:
            state.put_claim(directory, gpu_uuid, int(order))
            orders.write("held\n")
            orders.flush()
    while not parent:
        signal.pause()


def _witness(line: socket.socket, directory: Path, scheduler: Child) -> None:
    """Ends with its parent (the line closes), and says when the scheduler ended."""
    scheduler.line.close()
    watched = os.pidfd_open(scheduler.pid)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(line, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    if watched not in ready:
        poll.unregister(line)
        ready = {fd for fd, _ in poll.poll(DEATHS_APART_MS)}
    if watched in ready:
        state.put_gone(directory, scheduler.pid)
    line.recv(1)


def _put_title(title: str) -> None:
    """Writes the title over argv, where /proc/PID/cmdline reads it, and into the kernel's 15-character name."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    if start and room > 0:
        text = title.encode()[: room - 1]
        ctypes.memmove(start, text + bytes(room - len(text)), room)
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode(), 0, 0, 0)
