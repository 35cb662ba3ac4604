"""A circuit breaker for one server: closed, open, or probing with one request. Pure; the caller brings the time."""

from __future__ import annotations

_THRESHOLD = 5
_WAIT_SHARE = 0.1
_MIN_WAIT_S = 1.0
_MAX_WAIT_S = 30.0


class Breaker:
    """Opens after 5 failures in a row, or at once by `trip`. Open, it lets one probe through after 1 s, then after a
    tenth of the time it has been open, 1 s to 30 s: no server is left out for much longer than it was away. A success
    closes it."""

    def __init__(self) -> None:
        self.open = False
        self._failures = 0
        self._probing = False
        self._opened_at = 0.0
        self._probe_at = 0.0

    def may_send(self, now: float) -> bool:
        return not self.open or (not self._probing and now >= self._probe_at)

    def note_sent(self) -> bool:
        """True when this request is the probe."""
        self._probing = self._probing or self.open
        return self.open

    def note_success(self) -> bool:
        """True when it was open. A request that was sent before it opened closes it too: the server answers."""
        was_open = self.open
        self.open = self._probing = False
        self._failures = 0
        return was_open

    def note_failure(self, now: float, *, probe: bool) -> bool:
        """True when this failure opened it."""
        if self.open:
            if probe:
                self._probing = False
                wait_s = _WAIT_SHARE * (now - self._opened_at)
                self._probe_at = now + min(_MAX_WAIT_S, max(_MIN_WAIT_S, wait_s))
            return False
        self._failures += 1
        if self._failures < _THRESHOLD:
            return False
        self.trip(now)
        return True

    def trip(self, now: float) -> None:
        self.open = True
        self._probing = False
        self._opened_at = now
        self._probe_at = now + _MIN_WAIT_S

    def forget(self) -> None:
        """What opened it is over, the server was started anew: it closes, and opens again at the next failure."""
        if self.open:
            self.open = self._probing = False
            self._failures = _THRESHOLD - 1

    def note_gone(self, *, probe: bool) -> None:
        """A request ended without a verdict: it was cancelled."""
        if probe:
            self._probing = False
