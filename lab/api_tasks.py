"""Tasks of the PVE API: work in the background under a UPID, with a log and an exit status."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from lab.place import NODE
from lab.pve import PveError

Work = Callable[[], "tuple[str, ...] | None"]
"""Gives its warnings, if it has some."""


class NoTask(Exception):  # noqa: N818 -- no error of a task
    """A UPID that is none, or none of this server's; the text is Proxmox's."""


UPID = re.compile(r"UPID:[\w.-]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s]+:[^:\s]*:[^:\s]+:", re.ASCII)


class Task:
    """One background job. `exitstatus` is None while it runs, then OK, WARNINGS: N or the error's text."""

    def __init__(self, kind: str, vmid: int, user: str, work: Work) -> None:
        self.kind, self.vmid, self.user = kind, vmid, user
        self.starttime = int(time.time())
        self.pstart = time.monotonic_ns() // 10_000_000
        self.exitstatus: str | None = None
        self.log: list[str] = []
        self.upid = f"UPID:{NODE}:{os.getpid():08X}:{self.pstart:08X}:{self.starttime:08X}:{kind}:{vmid}:{user}:"
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self, work: Work) -> None:
        try:
            warnings = work() or ()
        except PveError as error:
            self.log.append(f"TASK ERROR: {error}")
            self.exitstatus = str(error)
        except Exception as error:  # noqa: BLE001 -- a task ends with a status, whatever happened
            self.log.append(f"TASK ERROR: {error!r}")
            self.exitstatus = f"unexpected: {error!r}"
        else:
            self.log.extend(f"WARN: {text}" for text in warnings)
            self.log.append(f"TASK WARNINGS: {len(warnings)}" if warnings else "TASK OK")
            self.exitstatus = f"WARNINGS: {len(warnings)}" if warnings else "OK"

    def status(self) -> dict[str, Any]:
        found = {
            "upid": self.upid,
            "node": NODE,
            "pid": os.getpid(),
            "pstart": self.pstart,
            "starttime": self.starttime,
            "type": self.kind,
            "id": str(self.vmid),
            "user": self.user.partition("!")[0],
            "tokenid": self.user.partition("!")[2],
            "status": "running" if self.exitstatus is None else "stopped",
        }
        return found if self.exitstatus is None else {**found, "exitstatus": self.exitstatus}

    def lines(self) -> list[dict[str, Any]]:
        texts = self.log or ["no content"]
        return [{"n": number, "t": text} for number, text in enumerate(texts, start=1)]


class Tasks:
    """The tasks of this server, by UPID."""

    def __init__(self) -> None:
        self._found: dict[str, Task] = {}
        self._lock = threading.Lock()

    def start(self, kind: str, vmid: int, user: str, work: Work) -> str:
        with self._lock:
            task = Task(kind, vmid, user, work)
            while task.upid in self._found:
                time.sleep(0.01)
                task = Task(kind, vmid, user, work)
            self._found[task.upid] = task
        task.start()
        return task.upid

    def get(self, upid: str) -> Task:
        with self._lock:
            task = self._found.get(upid)
        if not UPID.fullmatch(upid):
            raise NoTask("unable to parse worker upid")
        if task is None:
            raise NoTask("no such task")
        return task
