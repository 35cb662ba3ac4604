"""The state files in {workspace}/rackhand: written whole and atomically, events appended line by line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from rackhand.contract import to_json
from rackhand.contract.servers import parse_record


def replace_json(path: Path, value: object) -> None:
    """`path` holds the old or the new JSON at any moment, never a part. Raises OSError (disk full, read-only)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(to_json(value)) + "\n")
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when it is missing, torn or something else."""
    try:
        return parse_record(path.read_text()) or {}
    except (OSError, UnicodeDecodeError):
        return {}


def append_event(home: Path, name: str, **fields: object) -> None:
    """One line of events.jsonl. A full disk loses the event, never the server."""
    line = json.dumps({"time": round(time.time(), 3), "event": name, **{k: to_json(v) for k, v in fields.items()}})
    with contextlib.suppress(OSError), (home / "events.jsonl").open("a") as file:
        file.write(line + "\n")
