"""A Run → the page's data: plain JSON, every number of the page in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rackhand.contract.watch import Sample
from rackhand.page.charts import charts_of
from rackhand.page.marks import marks_of
from rackhand.page.phases import FIGURES, gpu_table, phases_of, within_stretch
from rackhand.page.run import Mark, Run
from rackhand.page.series import gpu_lines, gpus_of, host_lines, points_of, times_of
from rackhand.page.work import work_of

SHOWN_PHASES = 6
"""The newest ones stand in the table; all of them in the data."""
COMPARED = (
    "running", "tok_s_per_gpu", "tok_s_p10", "tok_s_p90", "tok_s_total", "completions_s", "output_tokens", "power_w",
    "tokens_per_joule",
)  # fmt: skip


def page_data(run: Run) -> dict[str, Any]:
    """Times are Unix seconds of the container's clock. docs/report.md names the keys."""
    samples = [_only(sample, run.job) for sample in run.samples]
    points, gpus = points_of(samples), gpus_of(samples)
    host = host_lines(points)
    phases = _numbered(phases_of(samples, run.stretches, run.baselines))
    work = work_of(samples)
    return {
        "job": run.job,
        "where": run.where,
        "made": round(run.made),
        "from": samples[0].time if samples else None,
        "to": samples[-1].time if samples else None,
        "samples": len(samples),
        "gpus": gpus,
        "time": times_of(points),
        "gpu": {str(gpu): gpu_lines(points, gpu) for gpu in gpus},
        "host": host,
        "charts": charts_of(gpus, host),
        "marks": _marks([*marks_of(samples), *run.marks]),
        "labels": _labels(run),
        "phases": phases,
        "ratio": _ratio(phases),
        "last_phase_gpus": _last_phase_gpus(samples, phases),
        "work": work,
        "inventory": run.inventory,
    }


def shown_phases(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(data["phases"][-SHOWN_PHASES:])


def _only(sample: Sample, job: str) -> Sample:
    return replace(sample, jobs=tuple(one for one in sample.jobs if one.name == job))


def _numbered(phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": f"phase {number}", **phase} for number, phase in enumerate(phases, 1)]


def _labels(run: Run) -> dict[str, dict[str, Any]]:
    baseline = run.baselines[0].name if run.baselines else ""
    shown = {name: texts for name, texts in FIGURES.items() if baseline or name != "share_pct"}
    return {name: {"label": text.format(baseline=baseline), "digits": digits} for name, (text, digits) in shown.items()}


def _ratio(phases: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """COMPARED figures of the newest phase over those of the one before."""
    if len(phases) < 2:
        return {}
    before, after = phases[-2]["figures"], phases[-1]["figures"]
    return {
        name: round(after[name] / before[name], 4) if before[name] and after[name] is not None else None
        for name in COMPARED
    }


def _last_phase_gpus(samples: Sequence[Sample], phases: Sequence[dict[str, Any]]) -> list[dict[str, float | None]]:
    if not phases:
        return []
    return gpu_table(within_stretch(samples, phases[-1]["from"], phases[-1]["to"]))


def _marks(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    ordered = sorted(marks, key=lambda mark: mark.time)
    return [{"number": number, **asdict(mark)} for number, mark in enumerate(ordered, 1)]
