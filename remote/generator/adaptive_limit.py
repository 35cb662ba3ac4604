"""How many requests a server may hold that doesn't say what it can run. Pure; the caller brings the time.

Doubles by halves while each window of completions shows more tokens a second; then one more a window while the time
a token doesn't rise (additive increase), and a fifth less when it rises by half, when requests queue, or when the
server answers that it is busy (multiplicative decrease).
"""

from __future__ import annotations

_START = 8
_FLOOR = 2
_GROWTH = 1.5
_WORTH = 1.12
"""Tokens a second that a window with half as much again in flight must bring."""

_WINDOW_REQUESTS = 3
"""Completions a window, times the limit: fewer would be noise, as lengths differ by ten times."""

_STEADY = 1.15
_RISEN = 1.5
_DECREASE = 0.8
_HELPED = 0.9
_BUSY_PAUSE_S = 2.0


class AdaptiveLimit:
    def __init__(self) -> None:
        self.value = _START
        self._growing = True
        self._rate = 0.0
        self._settled_s = 0.0
        self._before_cut_s = self._at_cut_s = 0.0
        self._busy_at = float("-inf")
        self._began: float | None = None
        self._done = self._tokens = 0
        self._seconds = 0.0

    def note_completion(self, now: float, latency_s: float, tokens: int, in_flight: int) -> None:
        """`in_flight` with this one. Windows in which the limit wasn't reached say nothing about it."""
        if in_flight < self.value:
            self._began = None
            return
        if self._began is None:
            self._begin(now)
            return
        self._done += 1
        self._tokens += max(1, tokens)
        self._seconds += latency_s
        if self._done >= _WINDOW_REQUESTS * self.value and now > self._began:
            self._end_window(self._tokens / (now - self._began), self._seconds / self._tokens)
            self._begin(now)

    def note_queue(self, now: float, waiting: int, *, aim: int) -> None:
        """The server says how many of its requests wait."""
        if waiting > 2 * aim:
            self._decrease(now)

    def note_busy(self, now: float) -> None:
        """It answered 429 or 503."""
        self._decrease(now)

    def _begin(self, now: float) -> None:
        self._began = now
        self._done = self._tokens = 0
        self._seconds = 0.0

    def _end_window(self, rate: float, s_per_token: float) -> None:
        if self._growing and rate >= _WORTH * self._rate:
            self._rate, self._settled_s = rate, s_per_token
            self.value = int(self.value * _GROWTH)
        elif self._growing:
            self._growing = False
            self.value = max(_FLOOR, round(self.value / _GROWTH))
        elif not self._settled_s:
            self._settled_s = s_per_token
        elif self._before_cut_s:
            # These were mostly sent before the cut.
            self._at_cut_s, self._before_cut_s = max(s_per_token, self._before_cut_s), 0.0
        elif self._at_cut_s and s_per_token > _HELPED * self._at_cut_s:
            # Fewer requests didn't make it faster: it is slower by itself.
            self._at_cut_s, self._settled_s = 0.0, s_per_token
            self.value = round(self.value / _DECREASE)
        elif s_per_token > _RISEN * self._settled_s:
            self._at_cut_s, self._before_cut_s = 0.0, s_per_token
            self.value = max(_FLOOR, int(self.value * _DECREASE))
        elif self._at_cut_s:
            self._at_cut_s = 0.0
        elif s_per_token <= _STEADY * self._settled_s:
            self.value += 1

    def _decrease(self, now: float) -> None:
        if now - self._busy_at >= _BUSY_PAUSE_S:
            self._busy_at = now
            self._growing = False
            self.value = max(_FLOOR, int(self.value * _DECREASE))
            self._began = None
