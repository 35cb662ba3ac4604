"""Is a run ramping up, steady or draining, and what it does while steady: rules over samples. Pure.

The rule: over the last WINDOW_S seconds a straight line is fitted to the running requests and to the token rate of
all GPUs together. If neither line moves by more than STEADY_CHANGE of its mean over the window, the run is steady; if
the running requests climb (or the rate climbs with as many running), it is ramping; if they fall, it is draining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rackhand.contract.watch import LIVE, GpuSample, Sample

WINDOW_S = 30.0
LEAST_SAMPLES = 5
STEADY_CHANGE = 0.05

Course = Literal["unknown", "idle", "ramping", "steady", "draining"]


@dataclass(frozen=True, slots=True)
class PhaseMeans:
    """Means over a window and over the GPUs that have the figure; None where no sample has it. Usages are shares
    from 0 to 1; `completions_per_s` and `completed` are of all jobs of the host, in this run of theirs."""

    seconds: float
    cap_per_gpu: float | None
    running_per_gpu: float | None
    tok_s_per_gpu: float | None
    tok_s_total: float | None
    kv_usage: float | None
    mamba_usage: float | None
    completions_per_s: float | None
    completed: int | None


def course_of(samples: Sequence[Sample], *, window_s: float = WINDOW_S) -> Course:
    """By the rule above; unknown until LEAST_SAMPLES samples cover two thirds of the window."""
    window = last_seconds(samples, window_s)
    running = [(s.time, total) for s in window if (total := total_of(s, "running")) is not None]
    rates = [(s.time, total) for s in window if (total := total_of(s, "tok_s")) is not None]
    if len(running) < LEAST_SAMPLES or running[-1][0] - running[0][0] < window_s * 2 / 3:
        return "unknown"
    if not any(value for _, value in running):
        return "idle"
    change, rate_change = relative_change(running), relative_change(rates) if len(rates) >= LEAST_SAMPLES else 0.0
    if abs(change) <= STEADY_CHANGE:
        if abs(rate_change) <= STEADY_CHANGE:
            return "steady"
        return "ramping" if rate_change > 0 else "draining"
    return "ramping" if change > 0 else "draining"


def phase_means(samples: Sequence[Sample], *, window_s: float = WINDOW_S) -> PhaseMeans:
    """What the last `window_s` seconds show."""
    window = last_seconds(samples, window_s)
    totals = [total for s in window if (total := total_of(s, "tok_s")) is not None]
    counts = [(s.time, count) for s in window if (count := completed_of(s)) is not None]
    rate = None
    if len(counts) >= 2 and counts[-1][0] > counts[0][0]:
        rate = (counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])
    return PhaseMeans(
        seconds=window[-1].time - window[0].time if window else 0.0,
        cap_per_gpu=_mean_of(window, lambda gpu: gpu.cap),
        running_per_gpu=_mean_of(window, lambda gpu: gpu.running),
        tok_s_per_gpu=_mean_of(window, lambda gpu: gpu.tok_s),
        tok_s_total=sum(totals) / len(totals) if totals else None,
        kv_usage=_mean_of(window, lambda gpu: gpu.kv_usage),
        mamba_usage=_mean_of(window, lambda gpu: gpu.mamba_usage),
        completions_per_s=rate,
        completed=counts[-1][1] if counts else None,
    )


def last_seconds(samples: Sequence[Sample], window_s: float) -> Sequence[Sample]:
    """Those not older than `window_s` before the newest; samples come in order of time."""
    if not samples:
        return ()
    since = samples[-1].time - window_s
    return [sample for sample in samples if sample.time >= since]


def total_of(sample: Sample, name: Literal["running", "cap", "queue", "tok_s"]) -> float | None:
    """The sum over GPUs whose servers live; None when one of these can't be read, or none lives."""
    values = [getattr(gpu, name) for gpu in sample.gpus if gpu.state in LIVE]
    return float(sum(values)) if values and None not in values else None


def completed_of(sample: Sample) -> int | None:
    """Prompts that the jobs' present runs have finished; None when no job says."""
    found = [job.progress.get("completed") for job in sample.jobs if job.progress is not None]
    numbers = [count for count in found if isinstance(count, int)]
    return sum(numbers) if numbers else None


def relative_change(points: Sequence[tuple[float, float]]) -> float:
    """How much the fitted line rises from the first to the last point, as a share of the mean."""
    return relative_trend(points)[0]


def relative_trend(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """`relative_change` and its standard error, by the points' distances from the line."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread or not mean_y:
        return 0.0, 0.0
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    off = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = math.sqrt(off / (count - 2) / spread) if count > 2 else 0.0
    scale = (points[-1][0] - points[0][0]) / mean_y
    return slope * scale, error * scale


def _mean_of(window: Sequence[Sample], read: Callable[[GpuSample], float | None]) -> float | None:
    values = [value for sample in window for gpu in sample.gpus if (value := read(gpu)) is not None]
    return sum(values) / len(values) if values else None
