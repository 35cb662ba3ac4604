"""When a phase runs steadily, and its means from then on. Pure: samples in, an average out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

WINDOW_S = 15.0
"""How long the figures must hold, and what the means are taken over."""
NEAR = 0.95
"""The share of the wanted running requests that every GPU must show."""
DRIFT = 0.03
"""How far the token rates of the window's halves may differ."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None is unknown. Usages are shares of 1."""

    running: float | None
    tok_s: float | None
    cap: float | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """All GPUs at `at_s`, and how many prompts this run of the job has finished."""

    at_s: float
    gpus: tuple[GpuReading, ...]
    completed: int | None = None

    def known(self, name: str) -> list[float]:
        values = (getattr(gpu, name) for gpu in self.gpus)
        return [float(value) for value in values if value is not None]

    def mean(self, name: str) -> float | None:
        """The mean over GPUs; None when any of them is unknown."""
        values = self.known(name)
        return fmean(values) if values and len(values) == len(self.gpus) else None


@dataclass(frozen=True, slots=True)
class Average:
    """Means per GPU over a window."""

    running: float
    tok_s: float
    cap: float
    kv_usage: float | None
    mamba_usage: float | None
    completions_per_s: float | None
    completed: int


def window_of(readings: Sequence[Reading], *, window_s: float = WINDOW_S) -> tuple[Reading, ...]:
    """The readings of the last `window_s`; empty while there are not that many seconds of them."""
    if not readings or readings[-1].at_s - readings[0].at_s < window_s:
        return ()
    start = readings[-1].at_s - window_s
    return tuple(reading for reading in readings if reading.at_s >= start)


def is_steady(window: Sequence[Reading], *, wanted: float) -> bool:
    """Every GPU runs the `wanted` requests all through the window, and the token rate neither climbs nor falls."""
    if len(window) < 4:
        return False
    rates = []
    for reading in window:
        running, rate = reading.known("running"), reading.mean("tok_s")
        if len(running) < len(reading.gpus) or min(running) < NEAR * wanted or not rate:
            return False
        rates.append(rate)
    half = len(rates) // 2
    early, late = fmean(rates[:half]), fmean(rates[-half:])
    return abs(late - early) <= DRIFT * late


def average(window: Sequence[Reading]) -> Average:
    """ValueError when running requests, token rate or cap are nowhere known."""

    def mean(name: str) -> float | None:
        values = [value for reading in window if (value := reading.mean(name)) is not None]
        return fmean(values) if values else None

    running, tok_s, cap = mean("running"), mean("tok_s"), mean("cap")
    if running is None or tok_s is None or cap is None:
        raise ValueError("no reading holds the running requests, the cap and the token rate of every GPU")
    counts = [(reading.at_s, reading.completed) for reading in window if reading.completed is not None]
    rate = None
    if len(counts) > 1 and counts[-1][0] > counts[0][0]:
        rate = (counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])
    completed = counts[-1][1] if counts else 0
    return Average(running, tok_s, cap, mean("kv_usage"), mean("mamba_usage"), rate, completed)
