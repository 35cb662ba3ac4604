"""One history as it is written: samples as they come → runs, states, verdicts, gaps, comparisons."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackhand.compare import COMPARED_S, STEADY_WINDOW_S, RunComparison, changed_gpus, compare, steady_stretch
from rackhand.contract.watch import Sample
from rackhand.diagnose import WINDOW_S, diagnose
from rackhand.recording import Happening, Recording, Run
from rackhand.render.verdicts import compared_line, job_at_work, verdict_line, when

KEPT_S = 300.0
LOOK_EVERY_S = 10.0
COMPARE_AFTER_S = 60.0
"""So much of a new run must be steady before it is compared with the one before."""
AWAY_S = 60.0
"""A server that is gone for so long is away for good: without it another run begins."""
DEAD_S = 10.0
"""So is one that died, since nothing starts it again: whoever restarts it compares with the run without it."""
RAMP_S = 60.0
"""A run that was never steady in so much time was the ramp of the one that follows."""
PRUNE_EVERY_S = 3600.0
CLOCK_S = 5.0
"""A sample of now that is so much older than the newest kept one: the clock was set back."""
GAP = 5
"""So many intervals without a sample are a gap."""

Say = Callable[[str, str], None]


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
class Track:
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
    away_since: float | None = None
    boot: str = ""
    booted_at: float = 0.0
    """When that was seen last."""
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
        self._note_boot(sample)
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
            self.away_since = None
            return True
        known = self.recording.runs()[-1:] if not self.key else []
        if known and known[0].flags == flags and known[0].generator == pid:
            self.key, self.run = key, known[0].id
            return True
        if not self._is_lasting(sample):
            return False
        self.key = key
        if (ramp := self._ramp(sample, pid)) is not None:
            self.run, self.is_compared = ramp, False
            self.recording.renew_run(ramp, flags, sent)
            return True
        self.run = self.recording.put_run(self.where, sample.time, flags, sent, pid, inventory=self.inventory)
        self.is_compared = False
        self._happened(sample, "run", f"run {self.run} begins", {"run": self.run})
        return True

    def _ramp(self, sample: Sample, pid: int | None) -> int | None:
        """The newest run, when it was only the start of this one: caps and servers still came up, one after another."""
        newest = self.recording.runs()[-1:]
        if not newest or newest[0].generator != pid or not 0 <= sample.time - newest[0].began < RAMP_S:
            return None
        return None if steady_stretch([s for s in self.samples if s.time >= newest[0].began]) else newest[0].id

    def _is_lasting(self, sample: Sample) -> bool:
        """Whether what is seen makes a run: a server between its stop and its start doesn't."""
        away = [gpu for gpu in sample.gpus if gpu.state in ("stopped", "dead")]
        if not away:
            self.away_since = None
            return True
        self.away_since = sample.time if self.away_since is None else self.away_since
        return sample.time - self.away_since >= (DEAD_S if all(gpu.cause for gpu in away) else AWAY_S)

    def _note_boot(self, sample: Sample) -> None:
        """Before the states that it explains. Rebuilt samples don't know it."""
        host = sample.host
        if self.boot and host.boot and self.boot != host.boot:
            # Whoever started after it was last seen was restarted: that holds however long nobody looked.
            is_machine = host.machine_started is not None and host.machine_started > self.booted_at - CLOCK_S
            what = "the machine was rebooted" if is_machine else "the container was stopped and started again"
            up = "" if host.started is None else f"; up since {when(host.started)}"
            self._happened(sample, "container", what + up, {"reboot": is_machine, "started": host.started})
        if host.boot:
            self.boot, self.booted_at = host.boot, sample.time

    def _note_states(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            before = self.states.get(gpu.gpu)
            if sample.rebuilt and gpu.state == "unknown":
                continue
            if before is not None and before != gpu.state:
                text = f"{before} -> {gpu.state}" + (f": {gpu.cause}" if gpu.cause else "")
                self._happened(sample, "state", text, {"trouble": gpu.trouble, "cause": gpu.cause}, gpu.gpu)
            self.states[gpu.gpu] = gpu.state

    def _look(self, sample: Sample) -> None:
        found = diagnose(tuple(self.samples), window_s=max(WINDOW_S, 6 * self.interval_s))
        names = ", ".join(f"{v.name} {','.join(map(str, v.gpus))}" for v in found.now)
        if names != self.verdict and names == self.last_look and found.now:
            self.verdict = names
            verdicts = [{"name": v.name, "gpus": list(v.gpus), "evidence": list(v.evidence)} for v in found.now]
            text = verdict_line(found, gpus=len(sample.gpus), where=self.where, job=job_at_work(sample)).removeprefix(
                "verdict: "
            )
            self._happened(sample, "verdict", text, {"verdicts": verdicts})
        self.last_look = names
        if not self.is_compared and self.run is not None:
            self._compare(sample)

    def _compare(self, sample: Sample) -> None:
        runs = {run.id: run for run in self.recording.runs()}
        mine = None if self.run is None else runs.get(self.run)
        older = (n for n, run in runs.items() if mine and n < mine.id and run.ended - run.began >= STEADY_WINDOW_S)
        before = max(older, default=None)
        if before is None or mine is None:
            self.is_compared = True
            return
        steady = steady_stretch([s for s in self.samples if s.time >= mine.began])
        if not steady or steady[-1].time - steady[0].time < COMPARE_AFTER_S:
            return
        self.is_compared = True
        text = compared_line(self._against(runs[before], mine, steady), runs[before], mine)
        self._happened(sample, "comparison", text, {"runs": [before, mine.id]})
        self.say(self.where, text)

    def _against(self, before: Run, mine: Run, steady: Sequence[Sample]) -> RunComparison:
        samples = self.recording.last_samples(before, within_s=COMPARED_S)
        return compare(samples, steady, changed=changed_gpus(before.flags, mine.flags))

    def _happened(self, sample: Sample, kind: str, text: str, data: dict[str, Any], gpu: int | None = None) -> None:
        self.recording.put_event(Happening(sample.time, self.where, gpu, kind, text, data))
