"""What was predicted and what came out, kept on this machine: a SQLite file that only grows.

It decides nothing: no verb reads it to know what is true of a host.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackhand.errors import RackhandError

SCHEMA = 1
"""Of the file (PRAGMA user_version). A higher one is left alone."""
BUSY_S = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS comparison (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    host TEXT NOT NULL,
    gpu INTEGER NOT NULL,
    differs INTEGER NOT NULL,
    inputs TEXT NOT NULL,
    predicted TEXT NOT NULL,
    effective TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """One started server. `at` is UTC, ISO 8601; `inputs` are what the prediction was made from (model, GPU, version,
    flags); `differs` says that a value is off by more than 3 %."""

    at: str
    host: str
    gpu: int
    differs: bool
    inputs: Mapping[str, Any]
    predicted: Mapping[str, Any]
    effective: Mapping[str, Any]


def history_path(environ: Mapping[str, str]) -> Path:
    """$XDG_STATE_HOME/rackhand/history.sqlite; without the variable ~/.local/state/rackhand/history.sqlite."""
    home = environ.get("XDG_STATE_HOME") or ""
    base = Path(home) if home.startswith("/") else Path(environ.get("HOME") or "/tmp", ".local/state")  # noqa: S108
    return base / "rackhand" / "history.sqlite"


def put_compared(path: Path, rows: list[Compared]) -> None:
    """Append; all rows or none. RackhandError when the file can't be written or is a newer rackhand's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as file, file:
            _check(file, path)
            file.execute(_TABLES)
            file.execute(f"PRAGMA user_version = {SCHEMA}")
            file.executemany("INSERT INTO comparison VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", map(_values, rows))
    except (OSError, sqlite3.Error) as error:
        raise _unwritten(path, error) from None


def read_compared(path: Path) -> list[Compared]:
    """Every row, oldest first; none where there is no file yet. RackhandError as `put_compared`."""
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as file:
            _check(file, path)
            found = file.execute(
                "SELECT at, host, gpu, differs, inputs, predicted, effective FROM comparison ORDER BY id"
            ).fetchall()
    except sqlite3.Error as error:
        raise _unwritten(path, error) from None
    return [_row(*row) for row in found]


def _row(at: str, host: str, gpu: int, differs: int, *parts: str) -> Compared:
    inputs, predicted, effective = map(json.loads, parts)
    return Compared(at, host, gpu, bool(differs), inputs, predicted, effective)


def _check(file: sqlite3.Connection, path: Path) -> None:
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        raise RackhandError(f"has format {version}, this rackhand knows {SCHEMA}", where=str(path), hint="update it")


def _values(row: Compared) -> tuple[object, ...]:
    texts = (json.dumps(dict(part), sort_keys=True) for part in (row.inputs, row.predicted, row.effective))
    return (row.at, row.host, row.gpu, int(row.differs), *texts)


def _unwritten(path: Path, error: Exception) -> RackhandError:
    return RackhandError(f"the history can't be kept: {error}", where=str(path), hint="set XDG_STATE_HOME")
