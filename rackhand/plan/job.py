"""A job: what is wanted and what was observed → start the generator, stop it, or nothing. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rackhand import tmux
from rackhand.command import Argv
from rackhand.contract.job import JobState, PromptsDigest, bad_lines_words, plan_refusals
from rackhand.contract.run import ChangeRun, StartRun, StopRun
from rackhand.contract.servers import argv_digest
from rackhand.errors import PreconditionError, UsageError
from rackhand.facts import Facts
from rackhand.inventory import Host, Job, Server
from rackhand.place import COMMAND
from rackhand.scripts import generate_values, interpreter
from rackhand.template import render_script

MOST = 100_000
"""Requests in flight per server, as in an inventory."""
NEW_OUTPUTS = 20
"""How many outputs `--new` looks at."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """One call of the verb `job`; `line` says in words what it will do."""

    name: str
    order: StartRun
    line: str


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Of a generator at work."""

    name: str
    order: ChangeRun
    line: str


@dataclass(frozen=True, slots=True)
class StopJob:
    name: str
    order: StopRun
    line: str


def job_outputs(job: Job) -> tuple[str, ...]:
    """The outputs to look at: the job's own first, then those that `--new` makes: OUTPUT-2, OUTPUT-3 ..."""
    first = job.output.rstrip("/")
    return (first, *(f"{first}-{i}" for i in range(2, NEW_OUTPUTS + 1)))


def job_states(job: Job, facts: Facts) -> tuple[JobState, ...]:
    """What was observed at the job's outputs, its own first."""
    seen = {state.output: state for state in facts.jobs}
    return tuple(seen.get(output) or JobState(output) for output in job_outputs(job))


def choose_output(host: Host, job: Job, states: Sequence[JobState]) -> Job:
    """The job with the first output that doesn't exist yet."""
    for state in states:
        if not state.exists:
            return dataclasses.replace(job, output=state.output)
    raise PreconditionError(
        f"{len(states)} outputs like {job.output} exist", where=host.where, hint="set another output of the job"
    )


def parse_concurrency(text: str | None) -> int | Literal["auto"] | None:
    """`--concurrency`: a whole number from 1 to MOST, or auto; None stays None. UsageError otherwise."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST)) and 1 <= int(text) <= MOST):
        raise UsageError(f"--concurrency {text!r} is no number from 1 to {MOST}", hint="write a number or auto")
    return int(text)


def plan_resume(
    host: Host,
    job: Job,
    state: JobState,
    servers: Sequence[Server],
    *,
    concurrency: int | str | None = None,
    more: Sequence[str] = (),
) -> StartJob | None:
    """None when its generator runs already. PreconditionError when the host has no server."""
    if state.pid is not None:
        return None
    if not servers:
        raise PreconditionError("no server to ask", where=host.where, hint=f"add servers to hosts.{host.name}")
    argv = generate_argv(host, job, servers, concurrency, more)
    path = f"{host.home}/run/generate-{job.name}.sh"
    order = StartRun(
        output=job.output,
        prompts=job.prompts,
        sampling=dict(job.sampling),
        servers=tuple(server.url for server in servers),
        tmux=tmux.new_session_argv(host.home, job.session, ("/bin/bash", path), digest=argv_digest(argv)),
        end_session=tmux.kill_session_argv(host.home, job.session),
        script_path=path,
        script=render_script("generate.sh.j2", generate_values(host, job, argv)),
        log=str(generate_values(host, job, argv)["log"]),
        engine=servers[0].spec.engine,
        columns=dict(job.columns),
        last_assistant=job.last_assistant,
    )
    done = f", {state.finished} already done" if state.finished else ""
    into = f", into {order.output}" if order.output != job.output else ""
    return StartJob(job.name, order, f"start job {job.name} on {len(servers)} servers{done}{into}")


def plan_change(job: Job, state: JobState, concurrency: int | str) -> ChangeJob | None:
    """Of the generator that works on `state.output`; None when that is what it does already."""
    before = state.progress.concurrency if state.progress is not None else ""
    if before == str(concurrency):
        return None
    was = f", now {before}" if before else ""
    line = f"set concurrency of job {job.name} (pid {state.pid}) to {concurrency}{was}"
    return ChangeJob(job.name, ChangeRun(state.output, str(concurrency)), line)


def check_prompts(host: Host, job: Job, state: JobState, digest: PromptsDigest) -> None:
    """PreconditionError when prompts that are still to be sent, or the sampling, aren't what the output was made from:
    said before they replace those that are there."""
    problems = plan_refusals(state.job, digest, dict(job.sampling), 1) if state.job is not None else []
    if problems:
        what, hint = f"{state.output}: {'; '.join(problems)}", "--new starts another output directory"
        raise PreconditionError(what, where=host.where, hint=hint)


def check_session(host: Host, job: Job, facts: Facts) -> None:
    """PreconditionError when something runs in the session that the generator would replace."""
    pane = facts.panes.get(job.session)
    if pane is not None and not pane.dead:
        what = f"something runs in tmux session {job.session} (pid {pane.pid}): another job's generator?"
        raise PreconditionError(what, where=host.where, hint=f"{COMMAND} stop, or set jobs.{job.name}.session")


def plan_stop(job: Job, states: Sequence[JobState], *, timeout_s: float | None = None) -> StopJob | None:
    """For the one of the job's outputs where a generator runs; None when none does. `timeout_s`: how long requests
    in flight may take before they are given back."""
    state = next((state for state in states if state.pid is not None), None)
    if state is None:
        return None
    order = StopRun(state.output) if timeout_s is None else StopRun(state.output, timeout_s)
    return StopJob(job.name, order, f"stop job {job.name} (pid {state.pid})")


def generate_argv(
    host: Host,
    job: Job,
    servers: Sequence[Server],
    concurrency: int | str | None = None,
    more: Sequence[str] = (),
) -> Argv:
    """The generator's command line, with `more` flags at its end. Keys and credentials are in its environment."""
    argv = [interpreter(host), f"{host.home}/remote.pyz", "generate", "--prompts", job.prompts, "--output", job.output]
    for server in servers:
        argv += ["--server", server.url]
    argv += ["--concurrency", str(concurrency or job.concurrency), "--control", f"{host.home}/control.json"]
    if job.model:
        argv += ["--model", job.model]
    if job.sampling:
        argv += ["--sampling", json.dumps(dict(job.sampling), sort_keys=True)]
    return (*argv, *_option_words(job), *more)


def _option_words(job: Job) -> Iterator[str]:
    """What isn't the generator's default."""
    if job.quality != "default":
        yield from ("--quality", job.quality)
    if job.columns:
        yield from ("--columns", json.dumps(dict(job.columns), sort_keys=True))
    if job.keep:
        yield from ("--keep", ",".join(job.keep))
    if job.last_assistant != "drop":
        yield from ("--last-assistant", job.last_assistant)
    if job.compress:
        yield from ("--compress", job.compress)
    if job.object_store:
        yield from ("--object-store", job.object_store)
        if job.delete_local_after_upload:
            yield "--delete-local-after-upload"


def render_progress(state: JobState) -> str:
    """`747 of 653929 done, 2.9/s, 62.1 h left, 512 in flight`; what isn't known stays out."""
    progress = state.progress
    if progress is None:
        return f"{state.finished} done"
    total = "" if progress.total is None else f" of {progress.total}"
    eta = "" if not progress.eta_hours else f", {_left(progress.eta_hours)} left"
    failed = f", {progress.failed} failed" if progress.failed else ""
    words = bad_lines_words(progress.bad_lines, progress.bad_line_numbers)
    unread = f", {words}" if words else ""
    rate = f", {progress.rate_per_sec:.1f}/s" if state.pid is not None else ""
    flight = f", {progress.in_flight} in flight" if state.pid is not None else ""
    return f"{state.finished}{total} done{unread}{failed}{rate}{eta}{flight}"


def _left(hours: float) -> str:
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"
