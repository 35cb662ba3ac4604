"""report: a job's history as one HTML file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rackhand.errors import PreconditionError, RackhandError
from rackhand.inventory import Fleet, Job
from rackhand.masked import shown_inventory
from rackhand.page import Mark, Recorded, page_data, render_page
from rackhand.place import COMMAND
from rackhand.recording import Happening, Recording
from rackhand.report import Outcome, Report, Row
from rackhand.workflows.history import parse_since
from rackhand.workflows.record import open_recording

MOST_SAMPLES = 40_000
"""Of longer histories every second, third ... sample is read."""
KINDS = {"verdict": "diagnosis", "comparison": "comparison", "gap": "gap", "connection": "gap", "container": "trouble"}
"""A history's events → a page's marks; the others show in the samples themselves."""


def report(
    fleet: Fleet,
    environ: Mapping[str, str],
    job: Job,
    *,
    now: float,
    since: str | None = None,
    output: str | None = None,
) -> Report:
    """Write the page of `job` to `output`, or JOB.html here; an earlier one is replaced whole. `since` is an age
    (`12h`) or a local time. PreconditionError when the history holds no sample of that time."""
    host = fleet.host(job.host)
    path = Path(output or f"{job.name}.html")
    recording = open_recording(fleet, environ, job.name)
    try:
        recorded = _recorded(recording, fleet, job, now, parse_since(since, now))
    finally:
        recording.close()
    data = page_data(recorded)
    text = render_page(data)
    _write(path, text)
    what = f"wrote {path}, {len(text.encode()) / 1024:,.0f} KiB"
    facts = {
        "samples": f"{data['samples']:,}",
        "runs": str(len(data["runs"])),
        "events": str(len(data["marks"])),
    }
    return Report("report", (Row(host.where, (Outcome(what),), facts),))


def _recorded(recording: Recording, fleet: Fleet, job: Job, now: float, start: float) -> Recorded:
    host = fleet.host(job.host)
    every = 1 + recording.count(start) // MOST_SAMPLES
    samples = tuple(recording.samples(since=start, every=every))
    if not samples:
        hint = f"{COMMAND} history shows what there is"
        raise PreconditionError(f"the history of {job.name} has no sample of that time", where=host.where, hint=hint)
    return Recorded(
        job=job.name,
        where=host.where,
        samples=samples,
        made=now,
        every=every,
        runs=[run for run in recording.runs() if run.ended >= start],
        marks=[_mark(event) for event in recording.events(since=start) if event.kind in KINDS],
        inventory=shown_inventory(fleet, host, job),
        baselines=fleet.baselines,
    )


def _mark(event: Happening) -> Mark:
    gpu = "" if event.gpu is None else f"GPU {event.gpu}: "
    return Mark(event.time, KINDS[event.kind], gpu + event.text)


def _write(path: Path, text: str) -> None:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.absolute().parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise RackhandError(f"can't be written: {error.strerror}", where=str(path), hint="choose --output") from None
