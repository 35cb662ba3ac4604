"""The scheduler and detokenizer processes: titled as the real ones, holding the GPU memory, dying with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path
from typing import NamedTuple

from lab.gpu import state

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


class Child(NamedTuple):
    """A child process and the line to it: MiB to hold go there, an acknowledgement comes back."""

    name: str
    pid: int
    line: socket.socket


def start_child(name: str, directory: Path, gpu_uuid: str, *, orphan: bool = False) -> Child:
    """Forks a child titled sglang::NAME. `orphan`: it outlives its parent, as schedulers do in the import window."""
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(name, pid, ours)
    ours.close()
    status = 1
    try:
        _serve(name, theirs, directory, gpu_uuid, 0 if orphan else parent)
        status = 0
    finally:
        os._exit(status)


def put_memory(child: Child, mib: int) -> None:
    """Tells a child to hold `mib` MiB, and waits until its claim stands. ConnectionError when it has gone."""
    child.line.sendall(f"{mib}\n".encode())
    if not child.line.recv(16):
        raise ConnectionError(f"{child.name} (pid {child.pid}) has ended")


def _serve(name: str, line: socket.socket, directory: Path, gpu_uuid: str, parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if parent:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _put_title(libc, f"sglang::{name}")
    with line.makefile("rw") as orders:
        for order in orders:
            state.put_claim(directory, gpu_uuid, int(order))
            orders.write("held\n")
            orders.flush()
    while not parent:
        signal.pause()


def _put_title(libc: ctypes.CDLL, title: str) -> None:
    """Writes the title over argv, where /proc/PID/cmdline reads it, and into the kernel's 15-character name."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    if start and room > 0:
        text = title.encode()[: room - 1]
        ctypes.memmove(start, text + bytes(room - len(text)), room)
    libc.prctl(PR_SET_NAME, title.encode(), 0, 0, 0)
