"""run/turns.json: the GPUs on which a restart or a stop hasn't ended well, and the command that does it again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rackhand.contract import from_json, to_json
from rackhand.contract.servers import WAITING, OpenTurn
from remote import processes
from remote.serving.journal import read_json, replace_json


class Turns:
    """Those of one worker. A turn that ended well is forgotten; so is an older one of the same GPU. Thread-safe."""

    def __init__(self, home: Path, gpus: Iterable[int], redo: str) -> None:
        self._path, self._lock = _path(home), threading.Lock()
        worker, now = processes.identify(os.getpid()), round(time.time(), 3)
        self._turns = {turn.gpu: replace(turn, working=False) for turn in observe_turns(home)}
        self._turns |= {gpu: OpenTurn(gpu, WAITING, now, redo, worker=worker) for gpu in gpus}
        self._write()

    def note(self, gpu: int, step: str) -> None:
        with self._lock:
            self._turns[gpu] = replace(self._turns[gpu], step=step)
            self._write()

    def end(self, gpu: int, cause: str | None) -> None:
        """`cause` None: it ended well."""
        with self._lock:
            if cause is None:
                del self._turns[gpu]
            else:
                self._turns[gpu] = replace(self._turns[gpu], cause=cause, worker=None)
            self._write()

    def _write(self) -> None:
        """What a full disk refuses is a note less; the servers go on."""
        try:
            replace_json(self._path, {"turns": [to_json(turn) for turn in self._turns.values()]})
        except OSError:
            return


def observe_turns(home: Path) -> tuple[OpenTurn, ...]:
    """By GPU; `working` says whether its worker lives."""
    listed = read_json(_path(home)).get("turns")
    found = []
    for data in listed if isinstance(listed, list) else ():
        try:
            turn = from_json(OpenTurn, data)
        except ValueError:
            continue
        found.append(replace(turn, working=turn.worker is not None and processes.lives(turn.worker)))
    return tuple(sorted(found, key=lambda turn: turn.gpu))


def _path(home: Path) -> Path:
    return home / "run" / "turns.json"
