"""Memory of the GPUs by UUID, and the idle baseline that says whether a server's memory came back.

An empty process list proves nothing inside a container: it may show nobody, or another namespace's pids.
"""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rackhand.contract.gpus import fault_in, mib, query_argv, split_rows, word
from rackhand.contract.servers import MEMORY_TOLERANCE_MIB
from remote import processes
from remote.each_gpu import rows_of_each
from remote.serving.journal import read_json, replace_json

UNKNOWN_IDLE_MIB = 600
"""Assumed idle use of a GPU that was first seen while a server ran on it and no process list accounts for that."""

_GPUS = query_argv(("index", "uuid", "memory.used"))
_APPS = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """`used_mib` is None where it can't be read; `unread` stands there. `is_faulty`: the GPU is out of order."""

    index: int
    uuid: str
    used_mib: int | None
    unread: str = ""
    is_faulty: bool = False


@dataclass(frozen=True)
class App:
    uuid: str
    pid: int
    used_mib: int


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Those that have a UUID."""
    rows = [row for row in split_rows(text)[0] if len(row) >= 3 and row[1].startswith("GPU-")]
    return tuple(_gpu(index, uuid, used, *rest) for index, uuid, used, *rest in rows)


def _gpu(index: str, uuid: str, used: str, *rest: str) -> Gpu:
    known, fault = mib(used), fault_in((used, *rest))
    return Gpu(int(index), uuid, known, "" if known is not None else word(used) or "nothing", is_faulty=bool(fault))


def parse_apps(text: str) -> tuple[App, ...]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return tuple(App(r[0], int(r[1]), int(r[2])) for r in rows if len(r) == 3 and r[1].isdigit() and r[2].isdigit())


def observe_gpus() -> tuple[Gpu, ...]:
    return parse_gpus(_run(_GPUS))


def observe_apps() -> tuple[App, ...]:
    return parse_apps(_run(_APPS))


def idle_mib(used_mib: int, accounted_mib: int, *, has_server: bool) -> int | None:
    """What stays when no server runs: what no process accounts for. None when that can't be told."""
    if has_server and accounted_mib == 0:
        return None
    return max(0, used_mib - accounted_mib)


class Baselines:
    """run/baseline.json: the lowest memory.used (MiB) of each GPU seen with no server of ours. Thread-safe."""

    def __init__(self, home: Path) -> None:
        self._path = home / "run" / "baseline.json"
        self._lock = threading.Lock()

    def read(self) -> dict[str, int]:
        return {uuid: value for uuid, value in read_json(self._path).items() if isinstance(value, int)}

    def learn(self, uuid: str, mib: int) -> None:
        with self._lock:
            known = self.read()
            if mib < known.get(uuid, mib + 1):
                replace_json(self._path, {**known, uuid: mib})

    def learn_all(self, busy: frozenset[str]) -> None:
        """At first sight of a GPU; `busy` are the UUIDs on which a server runs now."""
        known = self.read()
        apps: tuple[App, ...] | None = None
        for gpu in observe_gpus():
            if gpu.uuid in known:
                continue
            if gpu.used_mib is None:
                continue
            apps = observe_apps() if apps is None else apps
            accounted = sum(app.used_mib for app in apps if app.uuid == gpu.uuid)
            idle = idle_mib(gpu.used_mib, accounted, has_server=gpu.uuid in busy)
            if idle is not None:
                self.learn(gpu.uuid, idle)


class Sampler:
    """memory.used of all GPUs, asked at most every `period_s` however many threads want it."""

    def __init__(self, period_s: float = 0.5) -> None:
        self._period_s, self._lock = period_s, threading.Lock()
        self._at, self._seen = float("-inf"), dict[str, Gpu]()

    def gpu(self, uuid: str) -> Gpu | None:
        """None when nvidia-smi does not name this GPU, or nothing at all."""
        with self._lock:
            if time.monotonic() >= self._at + self._period_s:
                self._seen = {gpu.uuid: gpu for gpu in observe_gpus()}
                self._at = time.monotonic()
            return self._seen.get(uuid)


def is_back(used_mib: int, baseline_mib: int | None) -> bool:
    return used_mib <= (UNKNOWN_IDLE_MIB if baseline_mib is None else baseline_mib) + MEMORY_TOLERANCE_MIB


def name_holders(uuid: str, leftovers: tuple[str, ...]) -> str:
    """Who holds a GPU's memory: leftovers of this container, processes it lists, or somebody outside."""
    here = []
    for app in observe_apps():
        words = processes.cmdline(app.pid)
        if app.uuid == uuid and words:
            here.append(f"pid {app.pid} ({words[0][:40]}, {app.used_mib} MiB)")
    named = [*leftovers, *here]
    return "held by " + ", ".join(named) if named else "held by another container or a process of the host"


def _run(argv: tuple[str, ...]) -> str:
    """Its rows, also those before it fails or hangs at another GPU."""
    try:
        out = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False).stdout
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
    except OSError:
        return ""
    return rows_of_each(argv, out.decode(errors="replace"))
