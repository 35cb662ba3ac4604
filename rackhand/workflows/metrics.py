"""tail-metrics: what servers, GPUs and jobs of each host do now, until somebody has seen enough."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rackhand.contract.watch import LONGEST_PAST_S, Sample, WatchedJob, WatchedServer, WatchRequest
from rackhand.errors import UsageError
from rackhand.follow import Patience, follow_samples
from rackhand.inventory import Fleet, Host, Job, expand
from rackhand.plan.gpus import is_open_ended
from rackhand.plan.job import job_outputs
from rackhand.render.words import duration
from rackhand.report import Report
from rackhand.scripts import log_file
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.fleet import Roads, Say, Task

MOST_GPUS = 16
"""Of one host, when the inventory says `gpus: all`; those that aren't there are left out in the container."""
LEAST_INTERVAL_S = 0.5

PAST_S = 600.0
"""So much of the past is read back from the servers' logs when somebody begins to watch."""

Show = Callable[[Host, Sample], None]
"""One sample of one host. Called from several threads."""


def tail_metrics(
    fleet: Fleet,
    hosts: Sequence[Host],
    *,
    show: Show,
    say: Say,
    verb: str = "tail-metrics",
    once: bool = False,
    interval_s: float = 2.0,
    past_s: float = 0.0,
    since: Callable[[Host], float | None] | None = None,
    note: Callable[[Host, float, str, str], None] = lambda _host, _time, _kind, _text: None,
    patience: Patience = "all",
    roads: Roads | None = None,
) -> Report:
    """`show` each sample of each host; with `once` one of each, otherwise until Ctrl-C (the report's exit code is
    then 130). One channel and one process a host. A broken road is taken up again, after whatever broke it, and `note`
    is told; `patience` as for follow_samples.

    With `past_s`, samples rebuilt from the servers' logs come before those of now: of the last `past_s` seconds, and
    of all time after what `since` says (the host's Unix seconds); after a broken road those of the time between.
    """
    if not interval_s >= LEAST_INTERVAL_S or not math.isfinite(interval_s):
        raise UsageError(f"--interval {interval_s:g} can't be", hint=f"at least {LEAST_INTERVAL_S:g} seconds")
    stop = threading.Event()

    def work(task: Task) -> None:
        jobs = fleet.jobs_on(task.host)
        request = plan_watch(task.host, jobs, once=once, interval_s=interval_s)
        if past_s and not once:
            newest = since(task.host) if since is not None else None
            request = replace(request, past_s=past_s, since=newest)
            away_s = 0.0 if newest is None else min(LONGEST_PAST_S, time.time() - newest)
            if away_s > 2 * past_s:
                task.say(f"reading the last {duration(away_s / 3600)} back from the servers' logs")
        for sample in follow_samples(
            task.session,
            request,
            python=task.host.python,
            say=task.say,
            stop=stop,
            note=partial(note, task.host),
            patience=patience,
        ):
            show(task.host, sample)

    try:
        return hosts_at_work.run(verb, hosts, work, say=say, roads=roads or WatchRoads(stop))
    finally:
        stop.set()


class WatchRoads(Roads):
    """Closing them, which Ctrl-C does, is no broken road: `stop` is set first."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def close(self) -> None:
        self._stop.set()
        super().close()


def plan_watch(host: Host, jobs: Sequence[Job], *, once: bool, interval_s: float) -> WatchRequest:
    """What is to be watched on `host`."""
    return WatchRequest(
        home=host.home,
        servers=tuple(
            WatchedServer(server.gpu, server.url, log_file(host, server), server.spec.engine)
            for server in expand(host, range(MOST_GPUS))
        ),
        jobs=tuple(_watched(job) for job in jobs),
        interval_s=interval_s,
        once=once,
        seen_only=is_open_ended(host),
    )


def _watched(job: Job) -> WatchedJob:
    own, *others = job_outputs(job)
    return WatchedJob(job.name, own, tuple(others))
