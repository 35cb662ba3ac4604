"""How much of a scheduler's time goes into prefill, from its decode and prefill lines.

A decode line comes every so many decode steps (`--decode-log-interval`), whatever was prefilled between them. So the
time of a step, prefill included, is running / rate, and over lines with k prefill batches since the line before it is
a + b k: a straight line, fitted by least squares. The share is b times the mean k over the mean time of a step.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

WINDOW_S = 300.0
LEAST_LINES = 10
EQUAL_RUNNING = 0.2
"""A step of a fuller batch takes longer: lines with another number of requests than the last one's, by more than this
share of it, don't count."""
RENEWED_S = 10.0


class PrefillShare:
    """Of one rank, over the last WINDOW_S."""

    def __init__(self) -> None:
        self._batches = 0
        self._lines: deque[tuple[float, int, int, float]] = deque(maxlen=256)
        self._told: tuple[float, float | None] | None = None

    def note_prefill(self) -> None:
        self._batches += 1

    def note_decode(self, at: float, running: float, rate: float | None) -> None:
        """`rate` None: the line counts a pause in, and with it the batches before it."""
        batches, self._batches = self._batches, 0
        if rate and running:
            self._lines.append((at, int(running), batches, running / rate))

    def share(self, now: float) -> float | None:
        """From 0 to 1; None with too few lines, or when as many batches stand before each of them. It is fitted anew
        every RENEWED_S."""
        if self._told is None or not 0 <= now - self._told[0] < RENEWED_S:
            self._told = now, self._fitted(now)
        return self._told[1]

    def _fitted(self, now: float) -> float | None:
        if not self._lines:
            return None
        usual = self._lines[-1][1]
        near = [
            (batches, step_s)
            for at, running, batches, step_s in self._lines
            if at >= now - WINDOW_S and abs(running - usual) <= EQUAL_RUNNING * usual
        ]
        if len(near) < LEAST_LINES:
            return None
        mean_k, mean_s = fmean(k for k, _ in near), fmean(s for _, s in near)
        spread = sum((k - mean_k) ** 2 for k, _ in near)
        if not spread:
            return None if mean_k else 0.0
        slope = sum((k - mean_k) * (s - mean_s) for k, s in near) / spread
        return min(1.0, max(0.0, slope * mean_k / mean_s))
