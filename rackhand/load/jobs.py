"""`jobs:` and `baselines:` of an inventory."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from rackhand.errors import nearest
from rackhand.inventory import Baseline, Host, Job, Server
from rackhand.load.job_options import JOB_OPTIONS
from rackhand.load.nodes import Table, Value
from rackhand.load.sampling import read_sampling
from rackhand.load.sections import (
    Context,
    Key,
    as_table,
    container_path,
    is_meant,
    local_path,
    number,
    read_section,
    scalar,
    text,
    whole,
    with_defaults,
)
from rackhand.load.servers import UNLISTED_GPUS, session_name


def read_concurrency(value: Value, ctx: Context) -> int | str:
    if scalar(value, "auto or a whole number") == "auto":
        return "auto"
    found: int = whole(1, 100_000)(value, ctx)
    return found


JOB: Mapping[str, Key] = {
    "host": Key(text, required=True),
    "prompts": Key(container_path),
    "upload": Key(local_path),
    "output": Key(container_path, required=True),
    "sampling": Key(read_sampling),
    "concurrency": Key(read_concurrency),
    "model": Key(text),
    "session": Key(session_name),
    **JOB_OPTIONS,
}
BASELINE: Mapping[str, Key] = {
    "tok_s": Key(number(0, 1e12, above=True), required=True),
    "expected_share": Key(number(0, 1, above=True)),
}


def read_job(name: str, value: Value, ctx: Context, defaults: Table, hosts: Sequence[Host]) -> tuple[Job, Table]:
    """The job and its merged mapping. Placeholders stand where a mistake was noted."""
    table = with_defaults(as_table(value), defaults)
    found = {"host": "", "output": "", **read_section(table, JOB, ctx)}
    host = next((host for host in hosts if host.name == found["host"]), None)
    if found["host"] and host is None:
        known = [host.name for host in hosts]
        ctx.wrong(table.entries["host"].value, f"no host {found['host']!r}", nearest(found["host"], known))
    if not any(is_meant(key, table, JOB) for key in ("prompts", "upload")):
        ctx.wrong(table, "prompts is missing", "add prompts: PATH in the container, or upload: FILE on this machine")
    if "prompts" not in found:
        workspace = host.workspace if host else "/"
        found["prompts"] = posixpath.join(workspace, found["upload"].name) if "upload" in found else ""
    return Job(name=name, **found), table


def check_jobs(jobs: Sequence[tuple[Job, Table]], hosts: Sequence[Host], ctx: Context) -> None:
    """Two jobs of a host never share an output; a job's session isn't a server's."""
    outputs: dict[tuple[str, str], tuple[str, int]] = {}
    for job, table in jobs:
        if "output" in table.entries and job.output:
            line = table.line_of("output")
            first = outputs.setdefault((job.host, job.output), (job.name, line))
            if first[0] != job.name:
                what = f"{job.output} is the output of {first[0]} too"
                ctx.wrong(table.entries["output"].value, what, f"that stands in line {first[1]}")
        for host in hosts:
            if host.name == job.host and job.session in _server_sessions(host):
                ctx.wrong(
                    table, f"session {job.session} is a server's too", "choose another", line=table.line_of("session")
                )


def _server_sessions(host: Host) -> set[str]:
    gpus = UNLISTED_GPUS if host.gpus is None else host.gpus
    return {Server(host.name, gpu, spec, {}).session for spec in host.servers for gpu in spec.gpus or gpus}


def read_baseline(name: str, value: Value, ctx: Context) -> Baseline:
    return Baseline(**{"name": name, "tok_s": 0.0, **read_section(as_table(value), BASELINE, ctx)})
