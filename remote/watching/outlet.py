"""The way out: samples written by a thread of its own, so that a road that takes nothing never stops the watch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

WAITING = 8
"""Samples kept for a slow reader; older ones are dropped and counted."""


class Outlet:
    """`drops` counts samples that nobody took. `closed` is set when the other side is gone."""

    def __init__(self, emit: Callable[[dict[str, Any]], None]) -> None:
        self.drops = 0
        self.closed = threading.Event()
        self._emit = emit
        self._waiting: deque[dict[str, Any]] = deque()
        self._ready = threading.Condition()
        self._ending = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="outlet")
        self._thread.start()

    def put(self, event: dict[str, Any]) -> None:
        with self._ready:
            if len(self._waiting) >= WAITING:
                self._waiting.popleft()
                self.drops += 1
            self._waiting.append(event)
            self._ready.notify_all()

    def put_when_taken(self, event: dict[str, Any], wait_s: float) -> bool:
        """Puts nothing in the place of anything: False when there was no room within `wait_s`."""
        with self._ready:
            if not self._ready.wait_for(lambda: len(self._waiting) < WAITING, wait_s):
                return False
            self._waiting.append(event)
            self._ready.notify_all()
            return True

    def blocked_s(self) -> float:
        """For how long the writer has been waiting for the other side to take a line."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def finish(self, timeout_s: float) -> bool:
        """Write what waits, then end; False when that took longer."""
        with self._ready:
            self._ending = True
            self._ready.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._ending:
                    self._ready.wait()
                if not self._waiting:
                    return
                event = self._waiting.popleft()
                self._ready.notify_all()
            self._busy_since = time.monotonic()
            try:
                self._emit(event)
            except (OSError, ValueError):
                self.closed.set()
                return
            self._busy_since = None
