"""The verbs' own workflows as the demo calls them, and the waits between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from demo.figures import Phase
from demo.settled import WINDOW_S, fullest, has_settled
from rackhand.arguments import FlagValue
from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis, diagnose
from rackhand.errors import RackhandError, RemoteError
from rackhand.follow import follow_samples
from rackhand.inventory import Fleet
from rackhand.program import Terminated
from rackhand.render import Screen
from rackhand.report import Report
from rackhand.steady import PhaseMeans, phase_means, total_of
from rackhand.workflows import deploy, job, metrics, servers
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.fleet import Say

INTERVAL_S = 1.0
TOLD_EVERY = 5
SETTLE_DEADLINE_S = 75.0
DONE_DEADLINE_S = 150.0
ENDS = frozenset({"done", "failed", "stopped"})
STOP_DEADLINE_S = 8.0
"""How long requests in flight may go on when a phase ends; the others are given back and asked again."""


class StepError(RackhandError):
    """A verb failed; its report has been printed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The lab's fleet of one host and one job; reports go to `screen`, the verbs' progress to `say`."""

    fleet: Fleet
    screen: Screen
    say: Say

    def deploy(self) -> None:
        self._settle(deploy.deploy(self.fleet, self.fleet.hosts, say=self.say))

    def restart_servers(self, settings: Mapping[str, FlagValue]) -> None:
        restart = servers.Restart(overrides=settings)
        report = servers.restart_servers(self.fleet, self.fleet.hosts, restart, say=self.say)
        self._settle(replace(report, rows=tuple(replace(row, facts={}) for row in report.rows)))

    def resume(self, concurrency: int | str) -> None:
        wish = job.Resume(concurrency=concurrency)
        self._settle(job.resume(self.fleet, self.fleet.job(), wish, say=self.say))

    def stop_job(self) -> None:
        wish = job.Stop(self.fleet.job(), timeout_s=STOP_DEADLINE_S)
        self._settle(job.stop(self.fleet, self.fleet.hosts, wish, say=self.say))

    def await_settled(self, phase: Phase) -> tuple[PhaseMeans, Diagnosis, bool]:
        """What the last seconds show, and True; at the deadline, or when the prompts end, the fullest seconds."""
        watch = Watch(SETTLE_DEADLINE_S)
        asked = None if phase.concurrency == "auto" else phase.concurrency
        self._watch(watch, lambda: has_settled(watch.samples, asked=asked) or watch.job_status in ENDS)
        settled = has_settled(watch.samples, asked=asked)
        seen = watch.samples if settled else fullest(watch.samples)
        return phase_means(seen, window_s=WINDOW_S), diagnose(seen, window_s=WINDOW_S), settled

    def await_done(self) -> None:
        """Until the generator has finished every prompt. RemoteError when it didn't in time, or ended otherwise."""
        watch = Watch(DONE_DEADLINE_S)
        self._watch(watch, lambda: watch.job_status in ENDS)
        if watch.job_status != "done":
            what = f"the job is {watch.job_status or 'unknown'}, not done, after {watch.elapsed_s:.0f} s"
            raise RemoteError(what, where=self.fleet.hosts[0].where)

    def _watch(self, watch: Watch, seen: Callable[[], bool]) -> None:
        """Follow the host's samples until `seen`, or the deadline."""

        def work(task: hosts_at_work.Task) -> None:
            request = metrics.plan_watch(task.host, self.fleet.jobs, once=False, interval_s=INTERVAL_S)
            follow = follow_samples(task.session, request, python=task.host.python, say=task.say, stop=watch.stop)
            for sample in follow:
                watch.samples.append(sample)
                if len(watch.samples) % TOLD_EVERY == 0:
                    task.say(_told(sample))
                if seen() or watch.elapsed_s > watch.deadline_s:
                    watch.stop.set()

        roads = metrics.WatchRoads(watch.stop)
        report = hosts_at_work.run("watch", self.fleet.hosts, work, say=self.say, roads=roads)
        if report.exit_code:
            self._settle(report)

    def _settle(self, report: Report) -> None:
        """Print the report; raise when the demo can't go on."""
        self.screen.report(report)
        if report.signal is not None:
            raise Terminated(report.signal)
        if report.exit_code:
            raise StepError(f"{report.verb} ended with {report.exit_code}", hint="the lines above say why")


@dataclass
class Watch:
    """Samples as they come; setting `stop` ends the watch."""

    deadline_s: float
    start_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    @property
    def job_status(self) -> str:
        jobs = self.samples[-1].jobs if self.samples else ()
        progress = jobs[0].progress if jobs else None
        return str(progress.get("status", "")) if progress else ""


def _told(sample: Sample) -> str:
    """`256 running, 5,364 tok/s, 312 done`; what isn't known stays out."""
    running, rate = total_of(sample, "running"), total_of(sample, "tok_s")
    words = [] if running is None else [f"{running:.0f} running"]
    words += [] if rate is None else [f"{rate:,.0f} tok/s"]
    progress = sample.jobs[0].progress if sample.jobs else None
    if progress:
        words.append(f"{progress.get('completed', 0) + progress.get('completed_before', 0)} done")
    return ", ".join(words) or "nothing to be seen yet"
