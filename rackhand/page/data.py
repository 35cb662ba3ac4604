"""What was recorded → the page's data: plain JSON, every number of the page in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rackhand.contract.watch import Sample
from rackhand.inventory import Baseline
from rackhand.page.against import against
from rackhand.page.charts import charts_of
from rackhand.page.marks import marks_of
from rackhand.page.recorded import Mark, Recorded
from rackhand.page.runs import FIGURES, gpu_table, runs_of, within_run
from rackhand.page.series import gpu_lines, gpus_of, host_lines, points_of, times_of
from rackhand.page.work import work_of

SHOWN_RUNS = 6
"""The newest ones stand in the table; all of them in the data."""


def page_data(recorded: Recorded) -> dict[str, Any]:
    """Times are Unix seconds of the container's clock. docs/report.md names the keys."""
    samples = [_only(sample, recorded.job) for sample in recorded.samples]
    points, gpus = points_of(samples), gpus_of(samples)
    host = host_lines(points)
    runs = runs_of(samples, recorded.runs, recorded.baselines, recorded.inventory)
    work = work_of(samples)
    return {
        "job": recorded.job,
        "where": recorded.where,
        "made": round(recorded.made),
        "from": samples[0].time if samples else None,
        "to": samples[-1].time if samples else None,
        "samples": len(samples),
        "every": recorded.every,
        "gpus": gpus,
        "time": times_of(points),
        "gpu": {str(gpu): gpu_lines(points, gpu) for gpu in gpus},
        "host": host,
        "charts": charts_of(gpus, host),
        "marks": _marks([*marks_of(samples), *recorded.marks]),
        "labels": _labels(recorded.baselines),
        "runs": runs,
        "comparison": against(samples, runs, recorded.runs),
        "last_run_gpus": _last_run_gpus(samples, runs),
        "work": work,
        "inventory": recorded.inventory,
    }


def shown_runs(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(data["runs"][-SHOWN_RUNS:])


def _only(sample: Sample, job: str) -> Sample:
    return replace(sample, jobs=tuple(one for one in sample.jobs if one.name == job))


def _labels(baselines: Sequence[Baseline]) -> dict[str, dict[str, Any]]:
    baseline = baselines[0].name if baselines else ""
    shown = {name: texts for name, texts in FIGURES.items() if baseline or name != "share_pct"}
    return {name: {"label": text.format(baseline=baseline), "digits": digits} for name, (text, digits) in shown.items()}


def _last_run_gpus(samples: Sequence[Sample], runs: Sequence[dict[str, Any]]) -> list[dict[str, float | None]]:
    if not runs:
        return []
    return gpu_table(within_run(samples, runs[-1]["from"], runs[-1]["to"]))


def _marks(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    ordered = sorted(marks, key=lambda mark: mark.time)
    return [{"number": number, **asdict(mark)} for number, mark in enumerate(ordered, 1)]
