"""Is a starting server ready: its process, its log, its health, and one real generation."""

from __future__ import annotations

import time
from pathlib import Path

from rackhand.contract.servers import Load, Process, ServerOrder, ServerRecord, Start
from rackhand.engines import Engine
from remote import processes
from remote.serving.ask import ask
from remote.serving.probe import merge_loads, observe_capacity, observe_server
from remote.serving.state import read_record

HEALTH_TIMEOUT_S = 25.0
"""SGLang's own limit for its health check is 20 s."""
HEALTH_PERIOD_S = 1.0
"""Each answer is a line in the server's log."""
GENERATION_TIMEOUT_S = 120.0
LARGEST_LOG = 16 << 20
LAST_LINES = 12


class Readiness:
    """Watches one start from before its session exists; `pane` is the process of the pane."""

    def __init__(self, kind: Engine, order: ServerOrder, start: Start, key: str | None) -> None:
        self._kind, self._order, self._start, self._key = kind, order, start, key
        self._log = Path(start.log)
        self._offset = self._begin = self._log.stat().st_size if self._log.exists() else 0
        self._next_health = 0.0
        self.pane: Process | None = None
        self.stage = ""

    def read_stage(self) -> str | None:
        """A new stage since the last call, from the log's new lines."""
        found = [stage for line in self._new_lines() if (stage := self._kind.parse_stage(line))]
        if not found or found[-1] == self.stage:
            return None
        self.stage = found[-1]
        return self.stage

    def has_ended(self) -> bool:
        return self.pane is None or not processes.lives(self.pane)

    def explain(self) -> tuple[str, tuple[str, ...]]:
        """The first cause in this start's log, and the last lines."""
        record = self._record()
        lines = self._lines(self._begin, LARGEST_LOG)
        if record is None and lines:
            return f"its script failed: {lines[-1]}", tuple(lines[-LAST_LINES:])
        cause = self._kind.find_cause(lines, None if record is None else record.exit_status)
        return f"{cause.text}; {cause.hint}" if cause.hint else cause.text, tuple(lines[-LAST_LINES:])

    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._lines(self._begin, LARGEST_LOG)[-LAST_LINES:])

    def ask(self, deadline: float) -> tuple[str, Load | None]:
        """("", None): not yet. (trouble, None): healthy, but it does not generate. ("", load): ready."""
        if time.monotonic() < self._next_health:
            return "", None
        health = ask(self._order.url, self._kind.health_path, timeout_s=HEALTH_TIMEOUT_S, key=self._key)
        if health.moved:
            return f"{self._kind.health_path} answers {health.text}", None
        if health.status != 200:
            self._next_health = time.monotonic() + (0.0 if health.refused else HEALTH_PERIOD_S)
            return "", None
        left = max(1.0, min(GENERATION_TIMEOUT_S, deadline - time.monotonic()))
        probe = observe_server(self._kind, self._order.url, self._key, left)
        if not probe.healthy:
            return ("", None) if self.has_ended() else (f"health answers 200, but: {probe.text}", None)
        log = self._kind.parse_log_capacity(self._lines(self._begin, LARGEST_LOG))
        load = probe.load or observe_capacity(self._kind, self._order.url, self._key)
        return "", merge_loads(load, log) or Load(0, 0)

    def _record(self) -> ServerRecord | None:
        record = read_record(Path(self._start.record))
        ours = record is not None and self.pane is not None and record.supervisor == self.pane.pid
        return record if ours else None

    def _new_lines(self) -> list[str]:
        lines = self._lines(self._offset, 1 << 20)
        self._offset = max(self._offset, self._log.stat().st_size if self._log.exists() else 0)
        return lines

    def _lines(self, offset: int, limit: int) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(offset)
                return file.read(limit).decode("utf-8", "replace").splitlines()
        except OSError:
            return []
