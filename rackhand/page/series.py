"""Samples → the lines of the charts: at most MOST_POINTS points, each the means of the samples of an equal span. Pure.

None is unknown, and a break in the line. Where the recording has a gap, a point of unknowns stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rackhand.contract.watch import LIVE, GpuSample, Sample

MOST_POINTS = 900
GAP = 5.0
"""A pause of so many usual intervals is a gap in the recording."""

DIGITS = {
    "tok_s": 1,
    "running": 2,
    "cap": 1,
    "queue": 1,
    "kv_usage": 4,
    "mamba_usage": 4,
    "power_w": 1,
    "util_pct": 1,
    "temperature_c": 1,
    "memory_used_mib": 0,
}
"""A GPU's series → decimals kept. The first six are its server's, and unknown while no server lives."""
OF_SERVER = frozenset({"tok_s", "running", "cap", "queue", "kv_usage", "mamba_usage"})
OF_JOBS = {"completed": 0, "failed": 0, "retries": 0, "completions_s": 3, "client_tok_s": 1}

Line = list[float | None]
Points = Sequence[Sequence[Sample]]


def points_of(samples: Sequence[Sample], most: int = MOST_POINTS) -> Points:
    """The samples of each point, in order of time; an empty point is a gap."""
    if len(samples) < 2:
        return [[sample] for sample in samples]
    start, span = samples[0].time, samples[-1].time - samples[0].time
    usual = median(b.time - a.time for a, b in pairwise(samples))
    if len(samples) <= most or span <= 0:
        groups = [[sample] for sample in samples]
    else:
        bins: dict[int, list[Sample]] = {}
        for sample in samples:
            bins.setdefault(min(most - 1, int((sample.time - start) / span * most)), []).append(sample)
        groups = [bins[number] for number in sorted(bins)]
        usual = max(usual, span / most)
    return list(_with_gaps(groups, GAP * usual))


def _with_gaps(groups: Sequence[list[Sample]], longest_s: float) -> Iterator[list[Sample]]:
    for before, group in zip([None, *groups], groups, strict=False):
        if before is not None and group[0].time - before[-1].time > longest_s > 0:
            yield []
        yield group


def times_of(points: Points) -> list[float]:
    """The middle of each point, Unix seconds; a gap's is half-way to the next point."""
    times = [fmean((group[0].time, group[-1].time)) if group else 0.0 for group in points]
    for number, group in enumerate(points):
        if not group:
            times[number] = fmean((times[number - 1], times[number + 1]))
    return [round(time, 3) for time in times]


def gpu_lines(points: Points, gpu: int) -> dict[str, Line]:
    """One GPU's line for each of DIGITS."""
    rows = [[g for sample in group for g in sample.gpus if g.gpu == gpu] for group in points]
    return {name: [_mean([_read(g, name) for g in row], digits) for row in rows] for name, digits in DIGITS.items()}


def host_lines(points: Points) -> dict[str, Line]:
    """All GPUs together: tok_s, queue and power_w are sums, the others means over GPUs with a live server; then the
    jobs' counters, over all of their runs, and rates."""
    lines: dict[str, Line] = {}
    for name in ("tok_s", "queue", "power_w"):
        lines[name] = [_mean([_sum(sample, name) for sample in group], DIGITS[name]) for group in points]
    for name in ("running", "cap", "kv_usage", "mamba_usage"):
        lines[name] = [_mean([_read(g, name) for s in group for g in s.gpus], DIGITS[name]) for group in points]
    return lines | _job_lines(points)


def gpus_of(samples: Sequence[Sample]) -> list[int]:
    return sorted({gpu.gpu for sample in samples for gpu in sample.gpus})


def _job_lines(points: Points) -> dict[str, Line]:
    read: dict[str, Callable[[dict[str, Any]], object]] = {
        "completed": lambda p: p.get("completed_before", 0) + p.get("completed", 0),
        "failed": lambda p: p.get("failed_before", 0) + p.get("failed", 0),
        "retries": lambda p: p.get("retries"),
        "completions_s": lambda p: p.get("rate_per_sec"),
        "client_tok_s": lambda p: p.get("tokens_per_s"),
    }
    lines: dict[str, Line] = {name: [] for name in OF_JOBS}
    for group in points:
        progresses = [job.progress for job in group[-1].jobs if job.progress] if group else []
        for name, digits in OF_JOBS.items():
            values = [value for p in progresses if isinstance(value := read[name](p), int | float)]
            lines[name].append(round(float(sum(values)), digits) if values else None)
    return lines


def _read(gpu: GpuSample, name: str) -> float | None:
    if name in OF_SERVER and gpu.state not in LIVE:
        return None
    value: float | None = getattr(gpu, name)
    return value


def _sum(sample: Sample, name: str) -> float | None:
    values = [value for gpu in sample.gpus if (value := _read(gpu, name)) is not None]
    return float(sum(values)) if values else None


def _mean(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), digits) if known else None
