"""control.json as it is written: which servers the generator may use. `control_file` is how the generator reads it."""

from __future__ import annotations

import threading
from pathlib import Path

from remote.serving.journal import read_json, replace_json


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


def read_wishes(home: Path) -> dict[str, str]:
    servers = read_json(home / "control.json").get("servers")
    return {str(k): str(v) for k, v in servers.items()} if isinstance(servers, dict) else {}
