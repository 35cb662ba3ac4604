"""compare: two runs of a job's history side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rackhand.compare import COMPARED_S, changed_gpus, compare
from rackhand.errors import PreconditionError, UsageError
from rackhand.inventory import Fleet
from rackhand.place import COMMAND
from rackhand.recording import Run
from rackhand.render.verdicts import changed_flags, comparison_of, when
from rackhand.report import Comparison
from rackhand.workflows.record import open_recording


def compare_runs(fleet: Fleet, environ: Mapping[str, str], job: str, names: Sequence[str]) -> Comparison:
    """`names` are two runs' numbers, `last` and `last-1` for the newest; none: the last two. PreconditionError when
    there are no two runs, or one has no steady window."""
    recording = open_recording(fleet, environ, job)
    try:
        runs = recording.runs()
        a, b = chosen_runs(runs, names, where=str(recording.path))
        found = compare(
            *(recording.last_samples(run, within_s=COMPARED_S) for run in (a, b)),
            changed=changed_gpus(a.flags, b.flags),
        )
    finally:
        recording.close()
    if found.seconds <= 0:
        what = f"run {a.id} or run {b.id} of {job} was never steady for half a minute"
        raise PreconditionError(
            what, where=str(recording.path), hint=f"{COMMAND} history lists the runs; record for longer"
        )
    table = comparison_of(found, (f"run {a.id}", f"run {b.id}"), changed=changed_flags(a, b), baselines=fleet.baselines)
    return replace(table, title=f"run {a.id} of {when(a.began)}, run {b.id} of {when(b.began)}")


def chosen_runs(runs: Sequence[Run], names: Sequence[str], *, where: str = "") -> tuple[Run, Run]:
    if len(runs) < 2:
        hint = f"another begins when flags or concurrency change while {COMMAND} record or tail-metrics watches"
        raise PreconditionError(f"compare takes two runs, the history has {len(runs)}", where=where, hint=hint)
    known = {str(run.id): run for run in runs} | {f"last-{back}": run for back, run in enumerate(reversed(runs))}
    known["last"] = runs[-1]
    wanted = list(names) or ["last-1", "last"]
    unknown = [name for name in wanted if name not in known]
    if len(wanted) != 2 or unknown:
        what = f"no run {', '.join(unknown)}" if unknown else "compare takes two runs or none"
        raise UsageError(what, hint=f"there is {', '.join(str(run.id) for run in runs)}, last, last-1")
    return known[wanted[0]], known[wanted[1]]
