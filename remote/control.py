"""control.json: which servers the generator may use. Written whole, read by generator and supervisors."""

from __future__ import annotations

import threading
from pathlib import Path

from remote.journal import replace_json
from remote.state import read_wishes


class Wishes:
    """The wishes of one container. One verb at a time writes them (run/servers.lock); threads may share this."""

    def __init__(self, home: Path) -> None:
        self._home, self._lock = home, threading.Lock()

    def put(self, url: str, wish: str) -> None:
        self.put_all({url: wish})

    def put_all(self, wishes: dict[str, str]) -> None:
        with self._lock:
            known = read_wishes(self._home)
            if any(known.get(url) != wish for url, wish in wishes.items()):
                replace_json(self._home / "control.json", {"servers": {**known, **wishes}})
