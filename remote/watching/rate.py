"""A counter of tokens, looked at again and again → tokens per second."""

from __future__ import annotations

from collections import deque
from statistics import fmean

WINDOW_S = 30.0
LEAST_SPAN_S = 20.0
"""Less than that, and the steps in which a counter is renewed cost more than 3 % of exactness."""


class CountedRate:
    """Looks of one server, `interval_s` apart. A window never reaches over a restart, nor back into idle time: a load
    begins at the first look with a request running. One thread takes the looks, any may ask for the rate."""

    def __init__(self, interval_s: float) -> None:
        self._window_s, self._least_span_s = max(WINDOW_S, 6 * interval_s), max(LEAST_SPAN_S, 3 * interval_s)
        self._counts: deque[tuple[float, float]] = deque(maxlen=256)
        self._last: float | None = None

    def forget(self) -> None:
        """The server is gone; another one counts from 0."""
        self._counts.clear()
        self._last = None

    def take(self, at: float, tokens: float, running: int | None) -> bool:
        """Whether the counter moved since the last look."""
        last, self._last = self._last, tokens
        is_idle = running == 0 and tokens == last
        if is_idle or (last is not None and tokens < last):
            self._counts.clear()
        if not is_idle:
            self._counts.append((at, tokens))
        return last is not None and tokens > last

    def tok_s(self) -> float | None:
        """The slope of the line fitted to what was counted in the last WINDOW_S.

        A fit, since a server renews its counter only every few dozen steps. None until LEAST_SPAN_S were seen.
        """
        seen = tuple(self._counts)
        if not seen:
            return None
        counts = [count for count in seen if count[0] >= seen[-1][0] - self._window_s]
        if len(counts) < 4 or counts[-1][0] - counts[0][0] < self._least_span_s:
            return None
        mean_t, mean_n = fmean(t for t, _ in counts), fmean(n for _, n in counts)
        spread = sum((t - mean_t) ** 2 for t, _ in counts)
        return max(0.0, sum((t - mean_t) * (n - mean_n) for t, n in counts) / spread)
