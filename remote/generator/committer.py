"""The thread that makes finished prompts durable: group commits, and patience with a full disk.

The loop puts entries in; `on_safe` tells it which are synced. `full` is the back-pressure: a slow disk slows
requests, it doesn't grow buffers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from remote.output.ledger import Batch, Ledger

_GROUP_S = 0.1
_RETRY_S = 2.0
_BUFFER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A line for one of the ledger's files, with its newline. `reason`: its quality fault."""

    kind: Literal["record", "rejected", "failure"]
    index: int
    line: bytes
    input_tokens: int = 0
    output_tokens: int = 0
    reason: str = ""


class Committer:
    """Started inside a running loop. `on_safe` is called in the loop. `trouble` says why nothing can be written now;
    `failure` is what ended the thread: something that isn't a disk's trouble, so that the run can't go on."""

    def __init__(self, ledger: Ledger, on_safe: Callable[[list[Entry]], None]) -> None:
        self.trouble: str | None = None
        self.failure = ""
        self._ledger = ledger
        self._on_safe = on_safe
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._room.set()
        self._lock = threading.Condition()
        self._entries: list[Entry] = []
        self._bytes = 0
        self._stopping = False
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        with self._lock:
            self._entries.append(entry)
            self._bytes += len(entry.line)
            if self._bytes >= _BUFFER_BYTES:
                self._room.clear()
            if len(self._entries) == 1:
                self._lock.notify()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    @property
    def idle(self) -> bool:
        """Everything that was put in is synced, and `on_safe` knows."""
        return self._bytes == 0

    async def wait_for_room(self) -> None:
        await self._room.wait()

    async def stop(self, timeout_s: float) -> bool:
        """Commits what is left; False when the disk didn't take it in time, or the thread failed."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        await asyncio.to_thread(self._thread.join, timeout_s)
        if not self._thread.is_alive():
            return not self.failure
        self._give_up.set()
        await asyncio.to_thread(self._thread.join, 2 * _RETRY_S)
        return False

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._entries and not self._stopping:
                    self._lock.wait()
                if not self._entries:
                    return
                if not self._stopping:
                    self._lock.wait(_GROUP_S)
                entries, self._entries = self._entries, []
            try:
                if not self._commit(entries):
                    return
            except Exception as error:  # noqa: BLE001 (the feeder ends the run with it)
                self.failure = f"the output can't be written: {type(error).__name__}: {error}"
                return

    def _commit(self, entries: list[Entry]) -> bool:
        batch = Batch(
            records=[(e.index, e.line) for e in entries if e.kind == "record"],
            rejected=[(e.index, e.line) for e in entries if e.kind == "rejected"],
            failures=[(e.index, e.line) for e in entries if e.kind == "failure"],
        )
        while True:
            try:
                self._ledger.commit(batch)
                break
            except OSError as error:
                self.trouble = f"{error.strerror or error} ({error.filename or self._ledger.output})"
                if self._give_up.wait(_RETRY_S):
                    return False
        self.trouble = None
        self._loop.call_soon_threadsafe(self._safe, entries)
        return True

    def _safe(self, entries: list[Entry]) -> None:
        with self._lock:
            self._bytes -= sum(len(entry.line) for entry in entries)
            if self._bytes < _BUFFER_BYTES:
                self._room.set()
        self._on_safe(entries)
