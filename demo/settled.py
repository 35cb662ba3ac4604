"""When a phase of the demo has come to rest: the requests asked for on every GPU, at a level rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rackhand.contract.watch import Sample
from rackhand.steady import course_of, last_seconds, total_of

WINDOW_S = 12.0
"""How long it must hold, and what the means are taken over."""
NEAR = 0.90
"""The share of the asked requests that every GPU must run in every sample of the window."""


def has_settled(samples: Sequence[Sample], *, asked: int | None, window_s: float = WINDOW_S) -> bool:
    """`asked` requests per server; None asks for what each server can hold. An unknown isn't full."""
    if course_of(samples, window_s=window_s) != "steady":
        return False
    return all(_is_full(sample, asked) for sample in last_seconds(samples, window_s))


def fullest(samples: Sequence[Sample], *, window_s: float = WINDOW_S) -> Sequence[Sample]:
    """Of all windows the one with the most requests running: what to measure where nothing ever settled."""
    ends = [at for at in range(1, len(samples) + 1) if samples[at - 1].time - samples[0].time >= window_s]
    windows = [last_seconds(samples[:at], window_s) for at in ends] or [samples]
    return max(windows, key=lambda window: sum(total_of(sample, "running") or 0.0 for sample in window))


def _is_full(sample: Sample, asked: int | None) -> bool:
    for gpu in sample.gpus:
        wanted = gpu.cap if asked is None else asked
        if wanted is None or gpu.running is None or gpu.running < NEAR * wanted:
            return False
    return bool(sample.gpus)
