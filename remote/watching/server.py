"""One GPU and its server: log, endpoints, process and nvidia-smi made into one sample."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

from rackhand.contract.watch import LIVE, GpuSample, State, WatchedServer
from rackhand.engines import engine
from rackhand.engines.seen import Reading
from remote.serving.state import cause_of, read_record
from remote.watching.endpoints import Endpoints
from remote.watching.server_log import ServerLog
from remote.watching.smi import GpuReading

T = TypeVar("T")

STILL_S = 5.0
"""A server with nothing running and no decode line for this long decodes nothing, whatever its windows still say."""
STALLED_S = 60.0
"""Requests in flight and neither a batch line nor the counter moving for this long."""


class WatchedGpu:
    """Follows one server over its restarts: run/gpuN.json names its process and, after a restart, its log."""

    def __init__(
        self,
        server: WatchedServer,
        home: Path,
        *,
        interval_s: float,
        key: bytes | None,
        stop: threading.Event,
        with_lines: bool = False,
    ) -> None:
        self.server = server
        self._with_lines = with_lines
        self._flags: tuple[int | None, dict[str, str]] = (None, {})
        self._record_path = home / "run" / f"gpu{server.gpu}.json"
        self._engine = engine(server.engine)
        self._log = ServerLog(Path(server.log), self._engine)
        self._unread_before = self._retractions_before = self._skipped_before = 0
        self.endpoints = Endpoints(server.url, self._engine, interval_s=interval_s, key=key, stop=stop)

    def start(self) -> None:
        self.endpoints.start()

    def close(self) -> None:
        self._log.tail.close()

    @property
    def skipped_bytes(self) -> int:
        return self._skipped_before + self._log.tail.skipped_bytes

    def sample(self, gpu: GpuReading, wish: str) -> GpuSample:
        record = read_object(self._record_path)
        self._follow(str(record.get("log") or self.server.log))
        self._log.update()
        log, read = self._log, self.endpoints.reading()
        running = _first(read.running, log.total("#running-req"))
        state = self._state(record, wish, running)
        cause = self._cause(wish) if state in ("dead", "stopped") else ""
        state = "dead" if cause else state
        live = state in LIVE
        rate, source = self._rate(running) if live else (None, "")
        idle = running == 0 and not _is_younger(log.decode_at, STILL_S)
        return GpuSample(
            **vars(gpu),
            gpu=self.server.gpu,
            state=state,
            running=running if live else None,
            cap=_first(read.cap, log.cap) if live else None,
            queue=_first(read.queue, log.total("#queue-req")) if live else None,
            pending_tokens=_first(read.pending_tokens, log.pending_tokens()) if live else None,
            kv_usage=_round(self._kv_usage(read), 4) if live else None,
            mamba_usage=_round(_first(read.mamba_usage, log.highest("mamba usage")), 4) if live and not idle else None,
            tok_s=_round(rate, 2),
            tok_s_source=source,
            accept_len=_round(_first(read.accept_len, log.highest("accept len")), 2) if live and not idle else None,
            retractions=self._retractions_before + log.retractions,
            unread=self._unread_before + log.unread,
            decode_age_s=log.age_s(log.decode_at),
            trouble=log.trouble or self.endpoints.moved,
            slots=log.slots if live else None,
            graph=log.graph if live and not idle else None,
            still_s=self._still_s() if live else None,
            pid=record["pid"] if live and is_alive(record) else None,
            flags=self._tuning(record) if live else {},
            lines=log.batch_lines() if self._with_lines else (),
            kv_tokens=log.total("#full token", "#token") if live else None,
            decoded_tokens=read.decoded_tokens if live else None,
            prefill_share=_round(log.prefill_share(), 4) if live and not idle else None,
            cause=cause,
        )

    def _cause(self, wish: str) -> str:
        record = read_record(self._record_path)
        return "" if record is None else cause_of(record, wish)

    def begin_past(self, since: float) -> float | None:
        """Read the log again from `since` on. When the past begins that could be read, if that is later."""
        self._follow(str(read_object(self._record_path).get("log") or self.server.log))
        self._log.begin_past(since)
        return self._log.cut_at

    def past_sample(self, moment: float) -> GpuSample:
        """What the log said at `moment`, and nothing else. `unknown`: it said nothing of the server then."""
        log = self._log
        log.play_to(moment)
        fresh = log.is_fresh()
        state: State = "unknown"
        if fresh:
            state = "draining" if log.ending else "running"
        elif log.starting and not log.trouble:
            state = "loading"
        rate = log.tok_s() if fresh else None
        return GpuSample(
            self.server.gpu,
            state,
            running=log.total("#running-req"),
            cap=log.cap if fresh else None,
            queue=log.total("#queue-req"),
            pending_tokens=log.pending_tokens() if fresh else None,
            kv_usage=_round(log.highest("full token usage", "token usage"), 4),
            mamba_usage=_round(log.highest("mamba usage"), 4),
            tok_s=_round(rate, 2),
            tok_s_source="" if rate is None else "log",
            accept_len=_round(log.highest("accept len"), 2),
            retractions=log.retractions,
            unread=log.unread,
            decode_age_s=log.age_s(log.decode_at) if fresh else None,
            trouble=log.trouble,
            slots=log.slots if fresh else None,
            graph=log.graph,
            still_s=log.age_s(log.moved_at) if fresh else None,
            kv_tokens=log.total("#full token", "#token"),
        )

    def end_past(self) -> None:
        self._log.end_past()

    def _still_s(self) -> float | None:
        times = [at for at in (self._log.moved_at, self.endpoints.moved_at) if at is not None]
        return round(max(0.0, time.time() - max(times)), 1) if times else None

    def _tuning(self, record: dict[str, Any]) -> dict[str, str]:
        """Of the recorded process's command line; read once a process."""
        pid = record.get("pid")
        if not is_alive(record):
            return {}
        if self._flags[0] != pid:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
            except OSError:
                return {}
            self._flags = (pid, self._engine.parse_tuning(words))
        return self._flags[1]

    def _kv_usage(self, read: Reading) -> float | None:
        return _first(read.kv_usage, self._log.highest("full token usage", "token usage"))

    def _rate(self, running: int | None) -> tuple[float | None, str]:
        """The counter wins over the log; a server known to be idle decodes nothing."""
        if running == 0 and not _is_younger(self._log.decode_at, STILL_S):
            return 0.0, "idle"
        counted = self.endpoints.tok_s()
        if counted is not None:
            return counted, "counter"
        logged = self._log.tok_s()
        return logged, "" if logged is None else "log"

    def _state(self, record: dict[str, Any], wish: str, running: int | None) -> State:
        answer = self.endpoints.answer
        alive = is_alive(record)
        if answer == "ok":
            if wish == "draining" or self._log.ending:
                return "draining"
            if wish == "starting":
                return "loading"
            return "stalled" if running and self._is_still() else "running"
        if alive is None:
            return "unknown"
        if not alive:
            return "stopped" if record.get("asked") else "dead"
        if answer == "refused":
            return "loading"
        return "stalled" if self._has_fallen_silent() else "loading" if self._log.decode_at is None else "running"

    def _is_still(self) -> bool:
        still_s = self._still_s()
        return still_s is not None and still_s > STALLED_S

    def _has_fallen_silent(self) -> bool:
        answered = self.endpoints.answered_at
        return answered is not None and time.time() - answered > STALLED_S

    def _follow(self, log: str) -> None:
        if log != str(self._log.tail.path):
            self._unread_before += self._log.unread
            self._retractions_before += self._log.retractions
            self._skipped_before += self._log.tail.skipped_bytes
            self._log.tail.close()
            self._log = ServerLog(Path(log), self._engine)


def is_alive(record: dict[str, Any]) -> bool | None:
    """Whether the recorded process lives, known by pid and start time; None without a record."""
    pid, ticks = record.get("pid"), record.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return len(fields) > 19 and fields[0] not in ("Z", "X") and int(fields[19]) == ticks


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON object, empty when there is none."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _is_younger(at: float | None, limit_s: float) -> bool:
    return at is not None and time.time() - at < limit_s


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
