"""What was seen of a job, kept on this machine: samples, runs and events in one SQLite file a job.

It decides nothing: no verb reads it to know what is true of a host. A run is a stretch of samples between changes of
server flags or of the generator's process. docs/history.md has the schema.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rackhand.contract.watch import GpuSample, HostSample, JobSample, Sample
from rackhand.errors import RackhandError
from rackhand.outcomes import outcomes_of

SCHEMA = 3
BUSY_S = 10.0
KEEP_ALL_S = 14 * 86400.0
"""Older samples are thinned to one a minute."""
KEEP_S = 180 * 86400.0
GPU_COLUMNS = (
    "state", "running", "cap", "queue", "pending_tokens", "kv_usage", "mamba_usage", "tok_s", "tok_s_source",
    "accept_len", "util_pct", "power_w", "memory_used_mib", "memory_total_mib", "temperature_c", "retractions",
    "unread", "trouble", "slots", "graph", "still_s", "pid", "cause",
)  # fmt: skip
HOST_COLUMNS = ("cpu_pct", "iowait_pct", "cpu_pressure_pct", "io_pressure_pct", "disk_free_gib")
JOB_COLUMNS = (
    "status", "total", "completed", "completed_before", "failed", "rate_per_sec", "eta_hours", "total_output_tokens",
    "avg_output_tokens", "tokens_per_s", "in_flight", "pid",
)  # fmt: skip
_TABLES = f"""
CREATE TABLE IF NOT EXISTS run (id INTEGER PRIMARY KEY, host TEXT NOT NULL, began REAL NOT NULL, flags TEXT NOT NULL,
    sent REAL, generator INTEGER, inventory TEXT NOT NULL DEFAULT '{{}}');
CREATE TABLE IF NOT EXISTS sample (id INTEGER PRIMARY KEY, time REAL NOT NULL, host TEXT NOT NULL, run INTEGER,
    {", ".join(HOST_COLUMNS)}, rebuilt INTEGER NOT NULL DEFAULT 0, UNIQUE (host, time));
CREATE TABLE IF NOT EXISTS gpu (sample INTEGER NOT NULL, gpu INTEGER NOT NULL, throttle TEXT NOT NULL,
    {", ".join(GPU_COLUMNS)}, PRIMARY KEY (sample, gpu)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (sample INTEGER NOT NULL, name TEXT NOT NULL, {", ".join(JOB_COLUMNS)},
    PRIMARY KEY (sample, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcome (sample INTEGER NOT NULL, name TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (sample, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, time REAL NOT NULL, host TEXT NOT NULL, gpu INTEGER,
    kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS sample_run ON sample (run, time);
"""
_FROM_1 = (
    "ALTER TABLE run ADD COLUMN inventory TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE sample ADD COLUMN rebuilt INTEGER NOT NULL DEFAULT 0",
)
"""What makes a file of format 1 one of format 2."""
_FROM_2 = ("ALTER TABLE gpu ADD COLUMN cause",)
"""Of format 2 one of format 3."""
_JOBS = f"""SELECT name, outcome.data, {", ".join(JOB_COLUMNS)} FROM job LEFT JOIN outcome USING (sample, name)"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Run:
    """`began` and `ended` are the container's Unix seconds; `flags` those of the servers, by GPU; `sent` is the
    generator's requests in flight per server, `generator` its pid; both None without one. `inventory` is what the
    inventory said of host and job when it began, without secrets; empty in older histories."""

    id: int
    host: str
    began: float
    ended: float
    samples: int
    flags: Mapping[str, Mapping[str, str]]
    sent: float | None
    generator: int | None
    inventory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Happening:
    """`kind`: verdict, state, run, gap, rebuilt, clock, comparison, connection or container; history adds job."""

    time: float
    host: str
    gpu: int | None
    kind: str
    text: str
    data: Mapping[str, Any]


def recordings_dir(environ: Mapping[str, str], inventory: Path) -> Path:
    """$XDG_STATE_HOME/rackhand/INVENTORY-DIGEST, without the variable under ~/.local/state; the digest is that of the
    inventory's path, so that two checkouts share nothing."""
    home = environ.get("XDG_STATE_HOME") or ""
    base = Path(home) if home.startswith("/") else Path(environ.get("HOME") or "/", ".local/state")
    path = inventory.resolve()
    return base / "rackhand" / f"{path.stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def recording_file(directory: Path, name: str) -> Path:
    return directory / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.sqlite"


class Recording:
    """One job's file. RackhandError when it can't be opened or is a newer rackhand's. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._pen: IO[str] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA:
                what = f"has format {version}, this rackhand knows {SCHEMA}"
                raise RackhandError(what, where=str(path), hint="update it")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            if version != SCHEMA:
                self._bring_up()
        except (OSError, sqlite3.Error) as error:
            what = f"the history can't be opened: {error}"
            raise RackhandError(what, where=str(path), hint=_hint(error)) from None

    def _bring_up(self) -> None:
        """Make the tables, or those of an older format the present one's; another process may be at it too."""
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            steps = {1: (*_FROM_1, *_FROM_2), 2: _FROM_2}.get(version, ())
            for words in (*steps, *_TABLES.split(";")):
                self._file.execute(words)
            self._file.execute(f"PRAGMA user_version = {SCHEMA}")

    def take_pen(self) -> bool:
        """True when nobody else writes here: only the holder may put. Held until close."""
        pen = self.path.with_suffix(".pen").open("a")
        try:
            fcntl.flock(pen, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pen.close()
            return False
        self._pen = pen
        return True

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._file.close()
        if self._pen is not None:
            self._pen.close()

    def put_run(
        self,
        host: str,
        began: float,
        flags: Mapping[str, Any],
        sent: float | None,
        pid: int | None,
        *,
        inventory: Mapping[str, Any] | None = None,
    ) -> int:
        with self._lock:
            values = (host, began, json.dumps(flags, sort_keys=True), sent, pid, json.dumps(inventory or {}))
            words = "INSERT INTO run (host, began, flags, sent, generator, inventory) VALUES (?,?,?,?,?,?)"
            return int(self._file.execute(words, values).lastrowid or 0)

    def renew_run(self, run: int, flags: Mapping[str, Any], sent: float | None) -> None:
        """What was the start of a run goes on as that run: its samples stay with it, its flags are the present ones."""
        with self._lock:
            words = "UPDATE run SET flags = ?, sent = ? WHERE id = ?"
            self._file.execute(words, (json.dumps(flags, sort_keys=True), sent, run))

    def put_sample(self, host: str, sample: Sample, run: int | None) -> bool:
        """False when this very sample is there already."""
        head = (sample.time, host, run, sample.rebuilt, *(getattr(sample.host, name) for name in HOST_COLUMNS))
        columns = ", ".join(("time", "host", "run", "rebuilt", *HOST_COLUMNS))
        with self._lock, self._file:
            self._file.execute("BEGIN")
            words = f"INSERT OR IGNORE INTO sample ({columns}) VALUES ({_marks(head)})"  # noqa: S608
            done = self._file.execute(words, head)
            if not done.rowcount:
                return False
            at = done.lastrowid
            gpus = [(at, g.gpu, " ".join(g.throttle), *(getattr(g, c) for c in GPU_COLUMNS)) for g in sample.gpus]
            jobs = [(at, j.name, *(_scalar((j.progress or {}).get(c)) for c in JOB_COLUMNS)) for j in sample.jobs]
            found = [(j.name, outcomes_of(j.progress)) for j in sample.jobs if j.progress]
            outcomes = [(at, name, json.dumps(data)) for name, data in found if data]
            for table, rows in (("gpu", gpus), ("job", jobs), ("outcome", outcomes)):
                if rows:
                    self._file.executemany(f"INSERT INTO {table} VALUES ({_marks(rows[0])})", rows)  # noqa: S608
        return True

    def adopt_rebuilt(self, host: str, run: int) -> None:
        """Rebuilt samples after the last one of `run` are of that run: what came before and after them is."""
        last = "SELECT max(time) FROM sample WHERE host = ? AND run = ?"
        words = f"UPDATE sample SET run = ? WHERE host = ? AND rebuilt AND run IS NULL AND time > ({last})"  # noqa: S608
        with self._lock:
            self._file.execute(words, (run, host, host, run))

    def put_event(self, event: Happening) -> None:
        values = (event.time, event.host, event.gpu, event.kind, event.text, json.dumps(dict(event.data)))
        with self._lock:
            words = "INSERT INTO event (time, host, gpu, kind, text, data) VALUES (?,?,?,?,?,?)"
            self._file.execute(words, values)

    def runs(self) -> list[Run]:
        """Oldest first; those without samples are left out."""
        words = """SELECT run.id, run.host, run.began, max(sample.time), count(*), flags, sent, generator, inventory
            FROM run JOIN sample ON sample.run = run.id GROUP BY run.id ORDER BY run.id"""
        return [Run(*row) for row in ((*r[:5], json.loads(r[5]), *r[6:8], json.loads(r[8])) for r in self._rows(words))]

    def last_samples(self, run: Run, *, within_s: float) -> list[Sample]:
        """Those of the run's last `within_s` seconds; the runs of a job of days don't fit in memory."""
        return list(self.samples(run=run.id, since=run.ended - within_s))

    def samples(self, *, run: int | None = None, since: float = 0.0, every: int = 1) -> Iterator[Sample]:
        """In order of time, of one run or all, every `every`-th; what the file doesn't keep is unknown. Of the servers
        in a job's progress only the sum of their outcomes is kept."""
        where = "time >= ? AND (? IS NULL OR run = ?) AND id % ? = 0"
        words = f"SELECT id, time, rebuilt, {', '.join(HOST_COLUMNS)} FROM sample WHERE {where} ORDER BY time"  # noqa: S608
        heads = self._rows(words, (since, run, run, every))
        for at, time, rebuilt, *host in heads:
            gpus = self._rows(f"SELECT gpu, throttle, {', '.join(GPU_COLUMNS)} FROM gpu WHERE sample = ?", (at,))  # noqa: S608
            jobs = self._rows(f"{_JOBS} WHERE job.sample = ?", (at,))
            yield Sample(
                time,
                -1 if rebuilt else 0,
                rebuilt=bool(rebuilt),
                gpus=tuple(_gpu(*row) for row in gpus),
                jobs=tuple(_job(*row) for row in jobs),
                host=HostSample(**dict(zip(HOST_COLUMNS, host, strict=True))),
            )

    def job_samples(self, *, since: float = 0.0) -> Iterator[tuple[str, Sample]]:
        """The host and what the samples hold of jobs, without the GPUs: a job of days has hundreds of thousands."""
        words = f"""SELECT time, host, name, NULL, {", ".join(JOB_COLUMNS)} FROM job
            JOIN sample ON sample.id = job.sample WHERE time >= ? AND NOT rebuilt ORDER BY time"""  # noqa: S608
        for time, host, *row in self._rows(words, (since,)):
            yield host, Sample(time, 0, jobs=(_job(*row),))

    def events(self, *, since: float = 0.0) -> list[Happening]:
        words = "SELECT time, host, gpu, kind, text, data FROM event WHERE time >= ? ORDER BY time, id"
        rows = self._rows(words, (since,))
        return [Happening(*row) for row in ((*r[:5], json.loads(r[5])) for r in rows)]

    def newest(self) -> float | None:
        rows = self._rows("SELECT max(time) FROM sample")
        return rows[0][0] if rows else None

    def count(self, since: float = 0.0) -> int:
        """How many samples there are."""
        return int(self._rows("SELECT count(*) FROM sample WHERE time >= ?", (since,))[0][0])

    def prune(self, now: float) -> None:
        """Samples older than KEEP_ALL_S: the first of each minute stays; older than KEEP_S: nothing does."""
        old = """SELECT id FROM sample WHERE time < ? OR (time < ? AND id NOT IN
            (SELECT min(id) FROM sample WHERE time < ? GROUP BY host, CAST(time / 60 AS INTEGER)))"""
        bounds = (now - KEEP_S, now - KEEP_ALL_S, now - KEEP_ALL_S)
        with self._lock, self._file:
            self._file.execute("BEGIN")
            for table, column in (("gpu", "sample"), ("job", "sample"), ("outcome", "sample"), ("sample", "id")):
                self._file.execute(f"DELETE FROM {table} WHERE {column} IN ({old})", bounds)  # noqa: S608
            self._file.execute("DELETE FROM event WHERE time < ?", (now - KEEP_S,))

    def _rows(self, words: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._file.execute(words, values).fetchall()
            except sqlite3.Error as error:
                what = f"the history can't be read: {error}"
                raise RackhandError(what, where=str(self.path), hint=_hint(error)) from None


def _hint(error: Exception) -> str:
    broken = ("malformed", "not a database", "no such", "has no column")
    if any(word in str(error) for word in broken):
        return "move it away, record and tail-metrics begin another"
    return "try again" if "locked" in str(error) else "set XDG_STATE_HOME"


def _marks(row: Sequence[object]) -> str:
    return ", ".join("?" * len(row))


def _scalar(value: object) -> object:
    return value if isinstance(value, (int, float, str)) else None


def _gpu(gpu: int, throttle: str, *values: Any) -> GpuSample:
    named = dict(zip(GPU_COLUMNS, values, strict=True))
    named["cause"] = named["cause"] or ""
    named["graph"] = None if named["graph"] is None else bool(named["graph"])
    return GpuSample(gpu=gpu, throttle=tuple(throttle.split()), **named)


def _job(name: str, outcomes: str | None, *values: Any) -> JobSample:
    progress = {key: value for key, value in zip(JOB_COLUMNS, values, strict=True) if value is not None}
    progress |= json.loads(outcomes) if outcomes else {}
    return JobSample(name, "", progress or None)
