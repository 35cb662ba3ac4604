"""A row of figures as a row of characters, a block for each stretch of time. Zero-based; unknown is a gap."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:-=+*#"

Points = Sequence[tuple[float, float | None]]
"""When, and the figure; in order of time."""


def spark(values: Sequence[float | None], top: float, *, ramp: str = BLOCKS) -> str:
    """One character a value: the lowest is from 0 on, the highest ends at `top`."""
    return "".join(" " if value is None else _level(value, top, ramp) for value in values)


def cells(points: Points, *, until: float, seconds: float, count: int) -> list[float | None]:
    """The means of `count` equal stretches of the `seconds` before `until`; None where nothing is known."""
    found: list[list[float]] = [[] for _ in range(count)]
    for time, value in points:
        if value is not None and 0 <= until - time <= seconds:
            found[max(0, count - 1 - int((until - time) * count / seconds))].append(value)
    return [fmean(values) if values else None for values in found]


def _level(value: float, top: float, ramp: str) -> str:
    share = value / top if top > 0 else 0.0
    return ramp[max(0, min(len(ramp) - 1, int(share * len(ramp))))]
