"""prompts.check and verify: a prompts file before a day is spent on it, and a job's output when it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rackhand.agent import Session
from rackhand.contract import from_json, to_json
from rackhand.contract.checks import PromptsCheck, PromptsRequest, Verified, VerifyRequest
from rackhand.errors import PreconditionError, TransportError, UsageError
from rackhand.inventory import Fleet, Host, Job
from rackhand.plan.job import job_outputs
from rackhand.report import Checked
from rackhand.scripts import interpreter
from rackhand.transport.local import Local
from rackhand.workflows.fleet import Roads

Say = Callable[[str, str], None]


def check_file(file: str, job: Job | None = None) -> Checked:
    """A prompts file on this machine, read as `job` reads its rows. PreconditionError when it isn't there."""
    path = Path(file).expanduser().resolve()
    if not path.exists():
        raise PreconditionError(f"no file {path}", hint="name a prompts file, or a job with --job")
    with closing(Local()) as road, Session(road) as session:
        return Checked("local", _check(session, _prompts_request(str(path), job), sys.executable))


def check_job(fleet: Fleet, job: Job, *, say: Say, roads: Roads | None = None) -> Checked:
    """The job's prompts: its upload on this machine when that is there, else the file in the container."""
    if job.upload is not None and job.upload.is_file():
        say("local", f"reading {job.upload}")
        return check_file(str(job.upload), job)
    host = fleet.host(job.host)
    say(host.where, f"reading {job.prompts}")
    with closing(roads or Roads()) as opened, Session(opened.open(host)) as session:
        found = _check(session, _prompts_request(job.prompts, job), interpreter(host))
    return Checked(host.where, found, str(session.noise))


def verify(fleet: Fleet, job: Job, *, say: Say, output: str | None = None, roads: Roads | None = None) -> Checked:
    """The job's output in its container, or another one that `resume --new` made, against the job's quality options.

    Changes nothing. UsageError when `output` isn't one that the job may have.
    """
    host, outputs = fleet.host(job.host), job_outputs(job)
    chosen = outputs[0] if output is None else output.rstrip("/")
    if chosen not in outputs:
        raise UsageError(f"{output} is no output of job {job.name}", hint=f"{outputs[0]}, {outputs[1]} ... are")
    say(host.where, f"reading {chosen}")
    request = VerifyRequest(chosen, job.quality, outputs)
    with closing(roads or Roads()) as opened, Session(opened.open(host)) as session:
        found = _verify(session, host, request)
    return Checked(host.where, found, str(session.noise))


def _prompts_request(path: str, job: Job | None) -> PromptsRequest:
    if job is None:
        return PromptsRequest(path)
    return PromptsRequest(path, dict(job.columns), job.keep, job.last_assistant)


def _check(session: Session, request: PromptsRequest, python: str) -> PromptsCheck:
    for event in session.call("prompts", to_json(request), python=python, deadline_s=None):
        if event.get("event") == "prompts":
            return from_json(PromptsCheck, event)
    raise TransportError("prompts gave no answer", where=session.where)


def _verify(session: Session, host: Host, request: VerifyRequest) -> Verified:
    for event in session.call("verify", to_json(request), python=interpreter(host), deadline_s=None):
        if event.get("event") == "verified":
            return from_json(Verified, event)
    raise TransportError("verify gave no answer", where=session.where)
