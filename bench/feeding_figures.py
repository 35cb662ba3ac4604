"""What a run's samples and records say of feeding. Pure; times are Unix seconds.

A sample is a line of bench/loads.py. A record's tokens are taken to come evenly between its sending and `created`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

CREATED_S = 0.5
"""`created` has whole seconds, cut off: the mean of what is missing."""

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """Of time, by the samples' clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def inside(self, samples: Sequence[Sample]) -> list[Sample]:
        return [sample for sample in samples if self.begin <= sample["time"] <= self.end]

    def share(self, begin: float, end: float) -> float:
        """The share of a time that lies in the window."""
        common = min(self.end, end) - max(self.begin, begin)
        return max(0.0, common) / max(1e-9, end - begin)


@dataclass(frozen=True, slots=True)
class Fed:
    """One server over a window: `share` of its cap at work by its gauges, `counted` by its counters (tokens a step);
    `queue` is the mean, `empty` the share of looks that found none waiting."""

    cap: int
    share: float
    counted: float
    queue: float
    empty: float
    decoded: float


def fed(samples: Sequence[Sample], window: Window, server: int) -> Fed:
    """ValueError when it wasn't seen in the window."""
    seen = [found for sample in window.inside(samples) if (found := sample["servers"][server])]
    if len(seen) < 2:
        raise ValueError(f"server {server} gave no figures")
    steps, decoded = (seen[-1][name] - seen[0][name] for name in ("steps", "decoded"))
    cap = seen[-1]["cap"]
    return Fed(
        cap=cap,
        share=statistics.mean(found["running"] / found["cap"] for found in seen),
        counted=decoded / max(1.0, steps) / cap,
        queue=statistics.mean(found["queue"] for found in seen),
        empty=sum(found["queue"] == 0 for found in seen) / len(seen),
        decoded=decoded,
    )


def tokens_in(records: Iterable[dict[str, Any]], window: Window) -> float:
    """Output tokens that were made in the window, each record by the share of its time that lies in it."""
    total = 0.0
    for record in records:
        end = created(record)
        total += record["usage"]["completion_tokens"] * window.share(end - record["latency_s"], end)
    return total


def tokens_ended_in(records: Iterable[dict[str, Any]], window: Window) -> int:
    """Output tokens of the records that were finished in the window."""
    return sum(
        record["usage"]["completion_tokens"] for record in records if window.begin <= created(record) <= window.end
    )


def created(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["created"]).timestamp() + CREATED_S


def last_rise_s(samples: Sequence[Sample], window: Window, server: int) -> float:
    """Seconds from the window's begin to the last look at which the server held more requests than at the look
    before; 0 when it never did."""
    held = _held(samples, window, server)
    rises = [at for (_, before), (at, now) in itertools.pairwise(held) if now > before]
    return max(0.0, max(rises, default=window.begin) - window.begin)


def first_rise_s(samples: Sequence[Sample], window: Window, server: int) -> float:
    """Seconds from the window's begin to the first such look; the window's length when there is none."""
    held = _held(samples, window, server)
    return next((at for (_, before), (at, now) in itertools.pairwise(held) if now > before), window.end) - window.begin


def full_s(samples: Sequence[Sample], window: Window, server: int, cap: int) -> float | None:
    """Seconds from the window's begin until the server runs `cap` requests; None when it never does."""
    for sample in window.inside(samples):
        found = sample["servers"][server]
        if found and found["cap"] == cap and found["running"] == cap:
            return float(sample["time"] - window.begin)
    return None


def _held(samples: Sequence[Sample], window: Window, server: int) -> list[tuple[float, int]]:
    found = ((sample["time"], sample["servers"][server]) for sample in window.inside(samples))
    return [(at, load["running"] + load["queue"]) for at, load in found if load]
