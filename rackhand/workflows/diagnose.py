"""diagnose: watch each host for half a minute, then say what limits it and what to try."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rackhand.advised import as_typed
from rackhand.contract import to_json
from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis
from rackhand.diagnose import diagnose as decide
from rackhand.errors import UsageError
from rackhand.follow import follow_samples
from rackhand.inventory import Fleet, Host
from rackhand.render.screen import Screen
from rackhand.render.verdicts import diagnosis_lines, job_at_work, with_commands
from rackhand.render.watch_table import smi_lines
from rackhand.report import Report
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.fleet import Roads, Say, Task
from rackhand.workflows.metrics import plan_watch

SECONDS = 30.0
LEAST_SECONDS = 5.0
INTERVAL_S = 1.0
NO_SERVER = "no server runs here; ./inv restart-servers starts them"
Tell = Callable[[Host, Diagnosis, Sample], None]
"""One host's diagnosis and its newest sample. Called from several threads."""


def diagnose(
    fleet: Fleet,
    hosts: Sequence[Host],
    *,
    tell: Tell,
    say: Say,
    seconds: float = SECONDS,
    interval_s: float = INTERVAL_S,
    roads: Roads | None = None,
) -> Report:
    """`tell` the diagnosis of each host after `seconds` of watching it. Changes nothing."""
    if not LEAST_SECONDS <= seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} can't be", hint=f"at least {LEAST_SECONDS:g}")

    def work(task: Task) -> None:
        task.say(f"watching for {seconds:.0f} s")
        samples = _observe(fleet, task, seconds, interval_s)
        if samples:
            tell(task.host, decide(samples, window_s=seconds), samples[-1])

    return hosts_at_work.run("diagnose", hosts, work, say=say, roads=roads)


def told(screen: Screen) -> Tell:
    """Tells a diagnosis on `screen`; for programs with the newest sample's figures."""

    def tell(host: Host, found: Diagnosis, sample: Sample) -> None:
        gpus = len(sample.gpus)
        runs = any(gpu.state not in ("unknown", "stopped") for gpu in sample.gpus)
        found = with_commands(found, gpus=gpus, where=host.where, job=job_at_work(sample))
        said = diagnosis_lines(found, gpus=gpus) if runs or found.verdicts else [as_typed(NO_SERVER, hosts=host.name)]
        lines = [f"{host.where}: {line}" for line in (*said, *smi_lines(sample))]
        screen.lines("diagnosis", {"where": host.where, **to_json(found), "gpus": gpus}, lines)

    return tell


def _observe(fleet: Fleet, task: Task, seconds: float, interval_s: float) -> list[Sample]:
    samples: list[Sample] = []
    jobs = fleet.jobs_on(task.host)
    request = replace(plan_watch(task.host, jobs, once=False, interval_s=interval_s), with_lines=True)
    follow = follow_samples(task.session, request, python=task.host.python, say=task.say, stop=task.stopping)
    with contextlib.closing(follow):
        for sample in follow:
            samples.append(sample)
            if sample.time - samples[0].time >= seconds:
                break
    return samples
