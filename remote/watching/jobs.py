"""A job's progress.json, as it stands."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rackhand.contract.watch import JobSample, WatchedJob

LARGEST = 256 * 1024


def observe_job(job: WatchedJob) -> JobSample:
    """`progress` is None when the file isn't there or isn't a JSON object; it is replaced whole, so never torn."""
    output = max((job.output, *job.others), key=_written_at)
    path = _path(output)
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST)
        age_s = max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return JobSample(job.name, output)
    return JobSample(job.name, output, _object(text), round(age_s, 1))


def _path(output: str) -> Path:
    return Path(output) / "progress.json"


def _written_at(output: str) -> float:
    """Unix seconds; of equals the first is taken, so the job's own output when no run has written yet."""
    try:
        return _path(output).stat().st_mtime
    except OSError:
        return -1.0


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
