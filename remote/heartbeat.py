"""A sign of life from a call verb that reads for long."""

from __future__ import annotations

import time

from rackhand.contract import to_json
from rackhand.contract.servers import Heartbeat
from remote.cli import Emit

_HEARTBEAT_S = 5.0


class Beat:
    """Called as often as one likes: emits a Heartbeat every few seconds at most. None emits nothing."""

    def __init__(self, emit: Emit | None, waiting_for: str) -> None:
        self._emit = emit
        self._waiting_for = waiting_for
        self._due = time.monotonic() + _HEARTBEAT_S

    def __call__(self, waiting_for: str = "") -> None:
        if self._emit is not None and time.monotonic() >= self._due:
            self._emit(to_json(Heartbeat(waiting_for or self._waiting_for)))
            self._due = time.monotonic() + _HEARTBEAT_S
