"""control.json as it is written: which servers the generator may use, and how many requests it sends to each.
`control_file` is how the generator reads it."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote.serving.journal import read_json, replace_json


class Wishes:
    """The wishes of one container. Verbs may write at once (run/control.lock), and threads share this."""

    def __init__(self, home: Path) -> None:
        self._home, self._lock = home, threading.Lock()

    def put(self, url: str, wish: str) -> None:
        self.put_all({url: wish})

    def put_all(self, wishes: dict[str, str]) -> None:
        def change(control: dict[str, Any]) -> None:
            control["servers"] = _texts(control.get("servers")) | wishes

        self._change(change)

    def put_concurrency(self, output: str, concurrency: str | None) -> None:
        """A number or auto, as text; None: what the generator's command line says."""

        def change(control: dict[str, Any]) -> None:
            others = {name: word for name, word in _texts(control.get("concurrency")).items() if name != output}
            control["concurrency"] = others if concurrency is None else others | {output: concurrency}

        self._change(change)

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        path, lock = self._home / "control.json", self._home / "run" / "control.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            before = read_json(path)
            after = dict(before)
            change(after)
            if after != before:
                replace_json(path, after)


def read_wishes(home: Path) -> dict[str, str]:
    return _texts(read_json(home / "control.json").get("servers"))


def _texts(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
