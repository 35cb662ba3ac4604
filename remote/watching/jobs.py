"""A job as it stands: the progress.json of the output that is worked on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from rackhand.contract.job import AT_WORK, PROGRESS_FILE
from rackhand.contract.watch import JobSample, WatchedJob
from remote.output.state import observe_progress

HELD = (*AT_WORK, "suspended", "starting")
"""Of a generator that holds its output."""


def observe_job(job: WatchedJob) -> JobSample:
    """Of the output where a generator works, else of the one that was written last. `progress` is None when there is
    none or it can't be read; it is replaced whole, so never torn."""
    seen = [_look(job.name, output) for output in (job.output, *job.others)]
    return max(seen, key=lambda found: found[0])[1]


def _look(name: str, output: str) -> tuple[tuple[bool, float], JobSample]:
    """The sample, behind its weight; of equals the first is taken: the job's own output when no run has written yet."""
    progress: dict[str, Any] | None = None
    with contextlib.suppress(OSError, ValueError):
        progress = observe_progress(Path(output))
    is_at_work = progress is not None and bool(progress.get("pid")) and progress.get("status") in HELD
    try:
        written = (Path(output) / PROGRESS_FILE).stat().st_mtime
    except OSError:
        return (is_at_work, float("-inf")), JobSample(name, output, progress)
    age_s = max(0.0, time.time() - written)
    return (is_at_work, written), JobSample(name, output, progress, round(age_s, 1))
