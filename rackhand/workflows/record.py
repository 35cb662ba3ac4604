"""Samples as they come → the histories of the host's jobs. One process writes a history; any other looks on."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Self

from rackhand.contract.watch import Sample
from rackhand.errors import RackhandError
from rackhand.inventory import Fleet, Host
from rackhand.masked import shown_inventory
from rackhand.place import COMMAND
from rackhand.recording import Happening, Recording, recording_file, recordings_dir
from rackhand.workflows.track import Say, Track

AGAIN_S = 60.0
"""A history that couldn't be written, or that another writes, is tried again after so long."""


class Recorder:
    """Puts samples of any host into its histories. What goes wrong there is said once and stops no table;
    it is tried again after AGAIN_S."""

    def __init__(
        self,
        fleet: Fleet,
        environ: Mapping[str, str],
        *,
        say: Say,
        interval_s: float,
        another_may_write: bool = False,
    ) -> None:
        """With `another_may_write` it isn't said that another process writes a history."""
        self._fleet, self._say, self._interval_s, self._another_may_write = fleet, say, interval_s, another_may_write
        self._directory = recordings_dir(environ, fleet.path)
        self._hosts: dict[str, dict[str, Track | None]] = {}
        self._again_at: dict[str, float] = {}
        self._missed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def take(self, host: Host, sample: Sample) -> None:
        tracks = self._tracks(host)
        for name, track in tracks.items():
            if track is not None and not self._is_taken(track, sample):
                track.recording.close()
                tracks[name] = None

    def note(self, host: Host, time: float, kind: str, text: str) -> None:
        """Something that no sample tells: the road, or a container that is stopped."""
        for track in self._tracks(host).values():
            if track is not None:
                with suppress(RackhandError, sqlite3.Error):
                    track.recording.put_event(Happening(time, host.where, None, kind, text, {}))

    def newest(self, host: Host) -> float | None:
        """Until when all histories of the host go, its Unix seconds; None while one is empty, or none is written."""
        with suppress(RackhandError):
            times = [track.recording.newest() for track in self._tracks(host).values() if track is not None]
            return min((time for time in times if time is not None), default=None) if None not in times else None
        return None

    def _tracks(self, host: Host) -> dict[str, Track | None]:
        with self._lock:
            tracks = self._hosts.setdefault(host.where, dict.fromkeys(names_of(self._fleet, host)))
            if None in tracks.values() and monotonic() >= self._again_at.get(host.where, 0.0):
                self._again_at[host.where] = monotonic() + AGAIN_S
                tracks |= {name: self._open(host, name) for name, track in tracks.items() if track is None}
            return tracks

    def _is_taken(self, track: Track, sample: Sample) -> bool:
        try:
            track.take(sample)
        except (RackhandError, OSError, sqlite3.Error) as error:
            self._miss(track.where, track.name, _unwritten(track.name, error))
            return False
        if (track.where, track.name) in self._missed:
            self._missed.discard((track.where, track.name))
            self._say(track.where, f"the history of {track.name} is written now")
        return True

    def _miss(self, where: str, name: str, text: str) -> None:
        """Said once, until the history is written again."""
        if (where, name) not in self._missed:
            self._missed.add((where, name))
            self._say(where, text)

    def shown(self, show: Callable[[Host, Sample], None]) -> Callable[[Host, Sample], None]:
        """`show`, and the history beside it."""

        def both(host: Host, sample: Sample) -> None:
            show(host, sample)
            self.take(host, sample)

        return both

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for tracks in self._hosts.values():
            for track in tracks.values():
                if track is not None:
                    track.recording.close()

    def _open(self, host: Host, name: str) -> Track | None:
        try:
            recording = Recording(recording_file(self._directory, name))
            has_pen = recording.take_pen()
        except (RackhandError, OSError, sqlite3.Error) as error:
            self._miss(host.where, name, _unwritten(name, error))
            return None
        if not has_pen:
            recording.close()
            text = f"the history of {name} is being written by another record or tail-metrics"
            if not self._another_may_write:
                self._miss(host.where, name, text)
            return None
        job = next((job for job in self._fleet.jobs_on(host) if job.name == name), None)
        shown = shown_inventory(self._fleet, host, job)
        return Track(host.where, name, recording, self._interval_s, self._say, shown)


def _unwritten(name: str, error: Exception) -> str:
    return f"the history of {name} isn't written, tried again each minute: {error}"


def names_of(fleet: Fleet, host: Host) -> list[str]:
    """The histories of a host: those of its jobs; its own when it has none."""
    return [job.name for job in fleet.jobs_on(host)] or [f"host-{host.name}"]


def open_recording(fleet: Fleet, environ: Mapping[str, str], name: str) -> Recording:
    """For reading. RackhandError when there is none yet."""
    path = recording_file(recordings_dir(environ, fleet.path), name)
    if not path.exists():
        hint = f"{COMMAND} record or {COMMAND} tail-metrics writes one"
        raise RackhandError(f"no history of {name} yet", where=str(path), hint=hint)
    return Recording(path)
