"""Samples as they come → the histories of the host's jobs, with events: runs, states, verdicts, gaps, comparisons."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

from rackhand.compare import COMPARED_S, RunComparison, compare, steady_stretch
from rackhand.contract.watch import Sample
from rackhand.diagnose import WINDOW_S, diagnose
from rackhand.errors import RackhandError
from rackhand.inventory import Fleet, Host
from rackhand.masked import shown_inventory
from rackhand.recording import Happening, Recording, Run, recording_file, recordings_dir
from rackhand.render.verdicts import compared_line, verdict_line

KEPT_S = 300.0
LOOK_EVERY_S = 10.0
COMPARE_AFTER_S = 60.0
"""So much of a new run must be steady before it is compared with the one before."""
PRUNE_EVERY_S = 3600.0
AGAIN_S = 60.0
"""A history that couldn't be written, or that another writes, is tried again after so long."""
CLOCK_S = 5.0
"""A sample of now that is so much older than the newest kept one: the clock was set back."""
GAP = 5
"""So many intervals without a sample are a gap."""

Say = Callable[[str, str], None]


class Recorder:
    """Puts samples of any host into its histories. What goes wrong there is said once and stops no table;
    it is tried again after AGAIN_S."""

    def __init__(self, fleet: Fleet, environ: Mapping[str, str], *, say: Say, interval_s: float) -> None:
        self._fleet, self._say, self._interval_s = fleet, say, interval_s
        self._directory = recordings_dir(environ, fleet.path)
        self._hosts: dict[str, dict[str, _Track | None]] = {}
        self._again_at: dict[str, float] = {}
        self._missed: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def take(self, host: Host, sample: Sample) -> None:
        tracks = self._tracks(host)
        for name, track in tracks.items():
            if track is not None and not self._is_taken(track, sample):
                track.recording.close()
                tracks[name] = None

    def newest(self, host: Host) -> float | None:
        """Until when all histories of the host go, its Unix seconds; None while one is empty, or none is written."""
        with suppress(RackhandError):
            times = [track.recording.newest() for track in self._tracks(host).values() if track is not None]
            return min((time for time in times if time is not None), default=None) if None not in times else None
        return None

    def _tracks(self, host: Host) -> dict[str, _Track | None]:
        with self._lock:
            tracks = self._hosts.setdefault(host.where, dict.fromkeys(names_of(self._fleet, host)))
            if None in tracks.values() and monotonic() >= self._again_at.get(host.where, 0.0):
                self._again_at[host.where] = monotonic() + AGAIN_S
                tracks |= {name: self._open(host, name) for name, track in tracks.items() if track is None}
            return tracks

    def _is_taken(self, track: _Track, sample: Sample) -> bool:
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

    def _open(self, host: Host, name: str) -> _Track | None:
        try:
            recording = Recording(recording_file(self._directory, name))
            has_pen = recording.take_pen()
        except (RackhandError, OSError, sqlite3.Error) as error:
            self._miss(host.where, name, _unwritten(name, error))
            return None
        if not has_pen:
            recording.close()
            text = f"the history of {name} is being written by another record or tail-metrics"
            self._miss(host.where, name, text)
            return None
        job = next((job for job in self._fleet.jobs_on(host) if job.name == name), None)
        shown = shown_inventory(self._fleet, host, job)
        return _Track(host.where, name, recording, self._interval_s, self._say, shown)


def _unwritten(name: str, error: Exception) -> str:
    return f"the history of {name} isn't written, tried again each minute: {error}"


def names_of(fleet: Fleet, host: Host) -> list[str]:
    """The histories of a host: those of its jobs; its own when it has none."""
    return [job.name for job in fleet.jobs_on(host)] or [f"host-{host.name}"]


def open_recording(fleet: Fleet, environ: Mapping[str, str], name: str) -> Recording:
    """For reading. RackhandError when there is none yet."""
    path = recording_file(recordings_dir(environ, fleet.path), name)
    if not path.exists():
        hint = "./inv record or ./inv tail-metrics writes one"
        raise RackhandError(f"no history of {name} yet", where=str(path), hint=hint)
    return Recording(path)


def run_key(sample: Sample, name: str) -> tuple[str, dict[str, Any], float | None, int | None] | None:
    """What makes a run: flags and caps of the servers, the generator and what it sends; None while a server starts,
    ends or can't be read, or no generator runs."""
    if not sample.gpus or any(gpu.state in ("loading", "draining", "unknown") for gpu in sample.gpus):
        return None
    progress = next((job.progress for job in sample.jobs if job.name == name), None)
    if progress is None or progress.get("status") != "running":
        return None
    flags = {str(gpu.gpu): {**gpu.flags, "cap": str(gpu.cap)} for gpu in sample.gpus if gpu.cap is not None}
    if not flags:
        return None
    servers = progress.get("servers")
    limits = [s.get("limit") for s in servers.values() if isinstance(s, dict)] if isinstance(servers, dict) else []
    numbers = [limit for limit in limits if isinstance(limit, int)]
    sent = sum(numbers) / len(numbers) if numbers else None
    pid = progress.get("pid")
    return repr((sorted(flags.items()), pid)), flags, sent, pid if isinstance(pid, int) else None


@dataclass
class _Track:
    """One history of one host as it is written."""

    where: str
    name: str
    recording: Recording
    interval_s: float
    say: Say
    inventory: Mapping[str, Any]
    run: int | None = None
    key: str = ""
    states: dict[int, str] = field(default_factory=dict)
    verdict: str = ""
    last_look: str = ""
    looked_at: float = 0.0
    pruned_at: float = 0.0
    is_compared: bool = True
    rebuilt: list[float] = field(default_factory=list)
    has_orphans: bool = False
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=4096))

    def take(self, sample: Sample) -> None:
        last = self.samples[-1].time if self.samples else self.recording.newest()
        if last is not None and sample.time <= last:
            if sample.rebuilt or sample.time > last - CLOCK_S:
                return
            self._begin_anew(sample, last)
            last = sample.time
        if last is not None and sample.time - last > GAP * max(self.interval_s, 1.0):
            self._happened(sample, "gap", f"nothing seen for {sample.time - last:.0f} s", {"since": last})
        is_running = not sample.rebuilt and self._follow_run(sample)
        if is_running and self.has_orphans and self.run is not None:
            self.recording.adopt_rebuilt(self.where, self.run)
            self.has_orphans = False
        self.recording.put_sample(self.where, sample, self.run if is_running else None)
        self.samples.append(sample)
        while self.samples[0].time < sample.time - KEPT_S:
            self.samples.popleft()
        self._note_states(sample)
        if sample.rebuilt:
            self.rebuilt.append(sample.time)
            self.has_orphans = True
            return
        self._tell_rebuilt(sample)
        if sample.time - self.looked_at >= LOOK_EVERY_S:
            self.looked_at = sample.time
            self._look(sample)
        if sample.time - self.pruned_at >= PRUNE_EVERY_S:
            self.pruned_at = sample.time
            self.recording.prune(sample.time)

    def _begin_anew(self, sample: Sample, last: float) -> None:
        """The container's clock went back: what was seen says nothing about now, its times lie ahead."""
        self.samples.clear()
        self.rebuilt.clear()
        self.looked_at = self.pruned_at = 0.0
        text = f"the container's clock went back by {last - sample.time:.0f} s"
        self._happened(sample, "clock", text, {"from": last})

    def _tell_rebuilt(self, sample: Sample) -> None:
        if self.rebuilt:
            text = (
                f"{len(self.rebuilt)} samples of {sample.time - self.rebuilt[0]:.0f} s rebuilt from the servers' logs"
            )
            self._happened(sample, "rebuilt", text, {"since": self.rebuilt[0], "samples": len(self.rebuilt)})
            self.rebuilt.clear()

    def _follow_run(self, sample: Sample) -> bool:
        """Whether the sample is of a run, which is `self.run` then."""
        found = run_key(sample, self.name)
        if found is None:
            return False
        key, flags, sent, pid = found
        if key == self.key:
            return True
        known = self.recording.runs()[-1:] if not self.key else []
        self.key = key
        if known and known[0].flags == flags and known[0].generator == pid:
            self.run = known[0].id
            return True
        self.run = self.recording.put_run(self.where, sample.time, flags, sent, pid, inventory=self.inventory)
        self.is_compared = False
        self._happened(sample, "run", f"run {self.run} begins", {"run": self.run})
        return True

    def _note_states(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            before = self.states.get(gpu.gpu)
            if sample.rebuilt and gpu.state == "unknown":
                continue
            if before is not None and before != gpu.state:
                self._happened(sample, "state", f"{before} -> {gpu.state}", {"trouble": gpu.trouble}, gpu.gpu)
            self.states[gpu.gpu] = gpu.state

    def _look(self, sample: Sample) -> None:
        found = diagnose(tuple(self.samples), window_s=max(WINDOW_S, 6 * self.interval_s))
        names = ", ".join(f"{v.name} {','.join(map(str, v.gpus))}" for v in found.now)
        if names != self.verdict and names == self.last_look and found.now:
            self.verdict = names
            verdicts = [{"name": v.name, "gpus": list(v.gpus), "evidence": list(v.evidence)} for v in found.now]
            text = verdict_line(found, gpus=len(sample.gpus)).removeprefix("verdict: ")
            self._happened(sample, "verdict", text, {"verdicts": verdicts})
        self.last_look = names
        if not self.is_compared and self.run is not None:
            self._compare(sample)

    def _compare(self, sample: Sample) -> None:
        runs = {run.id: run for run in self.recording.runs()}
        before = max((number for number in runs if self.run is not None and number < self.run), default=None)
        mine = None if self.run is None else runs.get(self.run)
        if before is None or mine is None:
            self.is_compared = True
            return
        steady = steady_stretch([s for s in self.samples if s.time >= mine.began])
        if not steady or steady[-1].time - steady[0].time < COMPARE_AFTER_S:
            return
        self.is_compared = True
        text = compared_line(self._against(runs[before], steady), runs[before], mine)
        self._happened(sample, "comparison", text, {"runs": [before, mine.id]})
        self.say(self.where, text)

    def _against(self, before: Run, steady: Sequence[Sample]) -> RunComparison:
        return compare(self.recording.last_samples(before, within_s=COMPARED_S), steady)

    def _happened(self, sample: Sample, kind: str, text: str, data: dict[str, Any], gpu: int | None = None) -> None:
        self.recording.put_event(Happening(sample.time, self.where, gpu, kind, text, data))
