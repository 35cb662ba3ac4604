"""Log lines on stderr, `[YYYY-MM-DD HH:MM:SS] text`, each in one write."""

from __future__ import annotations

import os
import time

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Log:
    """Writes lines at or above its level; `access` has a level of its own, as uvicorn's has."""

    def __init__(self, level: str = "info", http_level: str | None = None) -> None:
        self._level = LEVELS.get(level, 20)
        self._http_level = LEVELS.get(http_level or level, 20)

    def info(self, text: str) -> None:
        if self._level <= LEVELS["info"]:
            raw(f"{_stamp()}{text}\n")

    def warning(self, text: str) -> None:
        if self._level <= LEVELS["warning"]:
            raw(f"{_stamp()}{text}\n")

    def error(self, text: str) -> None:
        if self._level <= LEVELS["error"]:
            raw(f"{_stamp()}{text}\n")

    def uvicorn(self, text: str, *, error: bool = False) -> None:
        """A line of uvicorn's own: `INFO:     ...` or `ERROR:    ...`."""
        if error or self._http_level <= LEVELS["info"]:
            raw(f"{_stamp()}{'ERROR:    ' if error else 'INFO:     '}{text}\n")


def raw(text: str) -> None:
    """Text without a stamp: tracebacks, progress bars, warnings."""
    data = text.encode()
    while data:
        data = data[os.write(2, data) :]


def _stamp() -> str:
    if os.environ.get("SGLANG_LOG_MS") == "1":
        now = time.time()
        return time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}] "
    return time.strftime("[%Y-%m-%d %H:%M:%S] ")
