"""restart-servers while a job runs: did it help? A watch before the stop, one after it, and the comparison of both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from rackhand.compare import COMPARED_S, changed_gpus, compare
from rackhand.contract.watch import Sample
from rackhand.errors import RackhandError
from rackhand.follow import follow_samples
from rackhand.inventory import Fleet
from rackhand.place import COMMAND
from rackhand.recording import Recording, Run
from rackhand.render.verdicts import before_after_facts
from rackhand.workflows.fleet import Task
from rackhand.workflows.metrics import plan_watch
from rackhand.workflows.record import Recorder, open_recording
from rackhand.workflows.track import run_key

BEFORE_S = 45.0
"""Four blocks of a comparison, and some more."""
AFTER_S = 600.0
"""What isn't steady by then is left to `record` and `compare`."""
SEEN_LATELY_S = 30.0
SETTLED_S = 15.0
"""Every recorder has taken a sample of the new servers by then."""
INTERVAL_S = 2.0
ONLY_RAMPING = "no: the job was still ramping up before the restart"
NEVER_STEADY = f"no: one of both runs was never steady; {COMMAND} history shows them"

T = TypeVar("T")
Follow = Callable[[Task], Generator[Sample, None, None]]
"""Samples of a task's host until the task is stopped or nobody takes them."""


@dataclass
class BeforeAfter:
    """The comparison of one host's restart, for one job whose generator is at work.

    Both watches go into the job's history, unless another process is writing it; the comparison is the one that every
    writer of a history makes. `follow` None asks the host.
    """

    fleet: Fleet
    task: Task
    job: str
    follow: Follow | None = None
    before: Run | None = None

    def watch_before(self) -> None:
        """See the run as it is; at once where its history has seen it in the last half minute."""
        newest = self._read(Recording.newest)
        if newest is None or abs(time.time() - newest) > SEEN_LATELY_S:
            self.task.say(f"watching for {BEFORE_S:.0f} s, to compare afterwards; --no-compare leaves it out")
            self._record(lambda first, sample: sample.time - first.time >= BEFORE_S)
        self.before = self._read(_run_at_work)

    def watch_after(self) -> Mapping[str, str]:
        """Until the new run is compared with the one before, AFTER_S at most: the lines of the comparison that an
        operator looks for, or why there are none. Whatever goes wrong here, the restart stands."""
        if self.before is None:
            return {"compared": "no: the job wasn't seen at work before the restart"}
        minutes = AFTER_S / 60
        self.task.say(f"watching until the job is steady, {minutes:.0f} min at most; Ctrl-C ends only this")
        up_since: float | None = None

        def is_enough(first: Sample, sample: Sample) -> bool:
            nonlocal up_since
            if up_since is None and run_key(sample, self.job) is not None:
                up_since = sample.time
            newest, compared = self._seen()
            same = self._is_same(newest) and up_since is not None and sample.time - up_since >= SETTLED_S
            return same or compared is not None or sample.time - first.time >= AFTER_S

        try:
            self._record(is_enough)
            return self._told()
        except RackhandError as error:
            return {"compared": f"no: {error}"}

    def _told(self) -> Mapping[str, str]:
        newest, runs = self._seen()
        if runs is None:
            if self._is_same(newest):
                is_as_before = self.before is None or newest is None or newest.flags == self.before.flags
                return {"compared": "no: flags and caps are as before" if is_as_before else ONLY_RAMPING}
            return {"compared": f"not yet: the job isn't steady; {COMMAND} record, later {COMMAND} compare"}

        def facts(recording: Recording) -> Mapping[str, str]:
            known = {run.id: run for run in recording.runs()}
            a, b = (known[run] for run in runs)
            samples = (recording.last_samples(run, within_s=COMPARED_S) for run in (a, b))
            found = compare(*samples, changed=changed_gpus(a.flags, b.flags))
            return before_after_facts(found) if found.blocks else {"compared": NEVER_STEADY}

        return self._read(facts) or {}

    def _record(self, is_enough: Callable[[Sample, Sample], bool]) -> None:
        first: Sample | None = None
        with (
            Recorder(
                self.fleet, os.environ, say=self.task.say_to, interval_s=INTERVAL_S, another_may_write=True
            ) as recorder,
            closing((self.follow or self._follow_host)(self.task)) as samples,
        ):
            for sample in samples:
                first = first or sample
                recorder.take(self.task.host, sample)
                if is_enough(first, sample):
                    return
        if self.task.stopping.is_set():
            raise RackhandError("interrupted")

    def _follow_host(self, task: Task) -> Generator[Sample, None, None]:
        request = plan_watch(task.host, self.fleet.jobs_on(task.host), once=False, interval_s=INTERVAL_S)
        return follow_samples(task.session, request, python=task.host.python, say=task.say, stop=task.stopping)

    def _is_same(self, newest: Run | None) -> bool:
        return self.before is not None and newest is not None and newest.id == self.before.id

    def _seen(self) -> tuple[Run | None, tuple[int, int] | None]:
        """The newest run, and the runs of a comparison that was made of one after `before`."""

        def find(recording: Recording) -> tuple[Run | None, tuple[int, int] | None]:
            runs = recording.runs()
            new = [run for run in runs if run.id > (self.before.id if self.before else 0)]
            events = recording.events(since=new[0].began) if new else []
            compared = next((event.data["runs"] for event in events if event.kind == "comparison"), None)
            return runs[-1] if runs else None, compared and (compared[0], compared[1])

        return self._read(find) or (None, None)

    def _read(self, ask: Callable[[Recording], T]) -> T | None:
        """None also when there is no history yet."""
        try:
            recording = open_recording(self.fleet, os.environ, self.job)
        except RackhandError:
            return None
        with closing(recording):
            return ask(recording)


def _run_at_work(recording: Recording) -> Run | None:
    """The newest run, if it is what was seen last: one of yesterday isn't what this restart changes."""
    runs, newest = recording.runs(), recording.newest()
    return runs[-1] if runs and newest is not None and newest - runs[-1].ended <= SEEN_LATELY_S else None
