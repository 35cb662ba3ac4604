"""Where sparklines stand: beside the table's numbers on a wide screen, below the table on a narrow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rackhand.contract.watch import Sample
from rackhand.render.sparks import Points, cells, spark
from rackhand.render.words import duration, number
from rackhand.trail import KEPT_S

SPANS_S = (60.0, 120.0, 300.0, KEPT_S)
"""A sparkline is as long as the first of these that holds all samples."""
WIDE = 112
"""From this many columns on, sparklines stand beside the numbers."""
NARROW = 40
"""Below this many there are none."""
TABLE = 78
"""Columns that the table takes without them."""
MOST_CELLS = 40


@dataclass(frozen=True, slots=True)
class Trends:
    """The figures of each GPU (tok/s, KV usage, mamba usage) over the last `seconds` before `until`; usages are shares
    from 0 to 1, `most` is the highest tok/s of all GPUs."""

    until: float
    seconds: float
    most: float
    gpus: tuple[tuple[int, tuple[Points, Points, Points]], ...]

    @property
    def span(self) -> str:
        return f"last {duration(self.seconds / 3600)}"


def trends_of(samples: Sequence[Sample]) -> Trends:
    """Of one host's samples in order of time; the GPUs are those of the newest."""
    last = samples[-1]
    seen = last.time - samples[0].time
    found: dict[int, tuple[list[tuple[float, float | None]], ...]] = {gpu.gpu: ([], [], []) for gpu in last.gpus}
    for sample in samples:
        for gpu in sample.gpus:
            for points, value in zip(found.get(gpu.gpu, ()), (gpu.tok_s, gpu.kv_usage, gpu.mamba_usage), strict=False):
                points.append((sample.time, value))
    rates = [gpu.tok_s for sample in samples for gpu in sample.gpus if gpu.tok_s is not None]
    return Trends(
        last.time,
        next((seconds for seconds in SPANS_S if seconds >= seen), KEPT_S),
        max(rates, default=0.0),
        tuple((gpu, (rate, kv, mamba)) for gpu, (rate, kv, mamba) in found.items()),
    )


def beside(trends: Trends, width: int, ramp: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of three more columns, and their cells in each row; nothing where `width` is below WIDE."""
    if width < WIDE:
        return (), [() for _ in trends.gpus]
    count = min(MOST_CELLS, (width - TABLE) // 3 - 1)
    names = (f"0-{number(trends.most)}", "KV 0-1", "mamba 0-1")
    return names, [_sparks(trends, points, count, ramp) for _, points in trends.gpus]


def below(trends: Trends, width: int, ramp: str) -> list[str]:
    """Lines with two GPUs each where they fit, under one that tells the scales; none beside a wide table."""
    if not trends.gpus or not NARROW <= width < WIDE:
        return []
    in_line = 2 if width >= TABLE and len(trends.gpus) > 1 else 1
    count = (width // in_line - 7) // 3
    rows = [f"{gpu:<2} {' '.join(_sparks(trends, points, count, ramp))}" for gpu, points in trends.gpus]
    lines = ["  ".join(rows[at : at + in_line]).rstrip() for at in range(0, len(rows), in_line)]
    return [f"{trends.span}: tok/s 0-{number(trends.most)}, KV 0-1, mamba 0-1", *lines]


def _sparks(trends: Trends, points: Sequence[Points], count: int, ramp: str) -> tuple[str, ...]:
    tops = (trends.most, 1.0, 1.0)
    return tuple(
        spark(cells(one, until=trends.until, seconds=trends.seconds, count=count), top, ramp=ramp)
        for one, top in zip(points, tops, strict=True)
    )
