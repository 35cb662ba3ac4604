"""Plain lines for generation.log. A terminal that went away stops nobody."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import datetime

_QUIET_S = 10.0


class LogLines:
    """`say` always prints; `say_seldom` prints at most one line in ten seconds for a key, and counts the rest."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._kept: dict[str, int] = {}

    def say(self, text: str) -> None:
        stamp = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(f"[{stamp}] {text}\n")
            sys.stdout.flush()

    def say_seldom(self, key: str, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(key, -_QUIET_S) < _QUIET_S:
            self._kept[key] = self._kept.get(key, 0) + 1
            return
        self._said[key] = now
        kept = self._kept.pop(key, 0)
        self.say(f"{text} ({kept} more like it)" if kept else text)
