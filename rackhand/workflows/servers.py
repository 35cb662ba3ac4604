"""restart-servers and status: what runs on each GPU, and what should."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rackhand import tmux
from rackhand.again import open_turns, restart_words
from rackhand.agent import Session
from rackhand.apply import Place, apply
from rackhand.apply.servers import outcomes_when_cut
from rackhand.arguments import NO_VALUES, FlagValue
from rackhand.bundle import own_paths, render_bundle
from rackhand.errors import PreconditionError, RemoteError, TransportError
from rackhand.facts import PANES, Facts
from rackhand.inventory import Fleet, Host, Job, Server
from rackhand.observe import observe, observe_flags
from rackhand.plan.deploy import plan_deploy
from rackhand.plan.gpus import gpus_words, known_gpus, unread_lines, usable_servers
from rackhand.plan.job import job_outputs, job_states, render_progress
from rackhand.plan.servers import ServeGpus, plan_restart, render_stray, strays_in_the_way
from rackhand.report import Report
from rackhand.secret_files import render_secrets, secret_refs
from rackhand.secrets import resolve
from rackhand.status import gpu_statuses, job_word, stray_lines
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.before_after import BeforeAfter
from rackhand.workflows.deploy import Choice, read_sources
from rackhand.workflows.fleet import Roads, Say, Task
from rackhand.workflows.prediction import check_possible, compare_started


@dataclass(frozen=True, slots=True)
class Restart:
    """What the operator asked for: `gpus` None is all, `overrides` are this start's flags, `at_once` 0 starts all
    together, `timeout_s` None keeps the inventory's ready_timeout_s. `compare`: a job at work is watched before and
    after, and told whether it helped."""

    gpus: tuple[int, ...] | None = None
    overrides: Mapping[str, FlagValue] = field(default_factory=lambda: NO_VALUES)
    timeout_s: float | None = None
    adopt: bool = False
    at_once: int = 0
    compare: bool = False


def restart_servers(
    fleet: Fleet,
    hosts: Sequence[Host],
    restart: Restart,
    *,
    say: Say,
    choice: Choice | None = None,
    roads: Roads | None = None,
) -> Report:
    """Stop, see the memory come back, start, wait until each generates; one GPU's failure leaves the others going."""
    asked = choice or Choice()

    def work(task: Task) -> None:
        _restart_host(task, fleet, restart, asked)

    return hosts_at_work.run("restart-servers", hosts, work, say=say, roads=roads)


def status(fleet: Fleet, hosts: Sequence[Host], *, say: Say, roads: Roads | None = None) -> Report:
    """One look at each host; a row's facts hold a line for each GPU, each server started by hand, each job."""

    def work(task: Task) -> None:
        jobs = fleet.jobs_on(task.host)
        add_status(task, jobs, look(task.session, task.host, jobs))

    return hosts_at_work.run("status", hosts, work, say=say, roads=roads)


def look(session: Session, host: Host, jobs: Sequence[Job]) -> Facts:
    """Files, GPUs, sessions, servers and jobs, with the outputs that `--new` made, in one call."""
    asked = [output for job in jobs for output in job_outputs(job)]
    return observe(
        session,
        host,
        files=own_paths(host),
        commands={PANES: tmux.list_panes_argv(host.home)},
        servers=True,
        outputs=asked,
    )


def check_deployed(host: Host, facts: Facts) -> None:
    """PreconditionError when deploy would still have something to do; uploads are not looked at."""
    if plan_deploy(host, facts, render_bundle(host, known_gpus(host, facts), read_sources(host))):
        what = (
            "the inventory or rackhand changed since the last deploy"
            if facts.manifest
            else "nothing is deployed here yet"
        )
        if facts.manifest and facts.manifest.owner:
            what += f" ({facts.manifest.owner})"
        raise PreconditionError(what, where=host.where, hint=f"./inv deploy --hosts {host.name} first")


def reveal_secrets(host: Host) -> dict[str, str]:
    """The files for the container's tmpfs, by name. PreconditionError for a secret that can't be had."""
    values = {name: resolve(ref, os.environ).reveal() for name, ref in secret_refs(host).items()}
    return render_secrets(host, values)


def add_status(task: Task, jobs: Sequence[Job], facts: Facts) -> None:
    for gpu in gpu_statuses(task.host, facts):
        task.facts[f"GPU {gpu.gpu}"] = str(gpu)
    task.facts.update(open_turns(facts.servers.turns))
    for number, line in enumerate(stray_lines(facts), 1):
        task.facts[f"not ours {number}"] = line
    outputs = {job.output.rstrip("/") for job in jobs}
    for job in jobs:
        own, *others = job_states(job, facts)
        task.facts[f"job {job.name}"] = f"{job_word(own, facts.panes.get(job.session))}, {render_progress(own)}"
        for state in others:
            if state.pid is not None or (state.job is not None and state.output not in outputs):
                task.facts[f"job {job.name} in {state.output}"] = f"{job_word(state, None)}, {render_progress(state)}"
    if words := gpus_words(facts):
        task.facts["GPUs"] = words


def _restart_host(task: Task, fleet: Fleet, restart: Restart, choice: Choice) -> None:
    host, jobs = task.host, fleet.jobs_on(task.host)
    secrets = reveal_secrets(host)
    facts = look(task.session, host, jobs)
    check_deployed(host, facts)
    servers = _wanted(host, facts, restart)
    pythons = tuple(dict.fromkeys(server.spec.python for server in servers))
    flags = observe_flags(task.session, host, pythons)
    action = plan_restart(host, facts, servers, flags, adopt=restart.adopt, at_once=restart.at_once)
    versions = {python: found.version for python, found in flags.items()}
    if restart.overrides:
        check_possible(task, facts, servers, versions, adopt=restart.adopt)
    for line in unread_lines(facts, servers):
        task.say(line)
    if choice.dry_run:
        for line in action.lines:
            task.add(line, "planned")
        if not choice.yes and strays_in_the_way(facts, servers):
            task.add("ask before it stops what rackhand did not start; --yes answers", "planned")
        return
    _confirm_adoption(host, facts, servers, choice)
    at_work = [job for job in jobs if any(state.pid is not None for state in job_states(job, facts))]
    for job in at_work:
        task.say(f"the generator of job {job.name} runs: it uses a server again when that is ready")
    seen = BeforeAfter(fleet, task, at_work[0].name) if restart.compare and at_work else None
    if seen:
        seen.watch_before()
    serve(task, replace(action, redo=_again(fleet, host, restart)), secrets)
    after = look(task.session, host, jobs)
    add_status(task, jobs, after)
    compare_started(task, after, servers, versions)
    if seen:
        task.facts.update(seen.watch_after())


def _again(fleet: Fleet, host: Host, restart: Restart) -> str:
    return restart_words(
        fleet,
        host,
        restart.overrides,
        timeout_s=restart.timeout_s,
        at_once=restart.at_once,
        adopt=restart.adopt,
        compare=restart.compare,
    )


def serve(task: Task, action: ServeGpus, secrets: Mapping[str, str]) -> None:
    """Apply, and say how far each GPU came when the road breaks or the operator interrupts."""
    place = Place(task.host, task.session, task.say, secrets)
    try:
        task.outcomes.extend(apply(action, place))
    except (TransportError, RemoteError) as error:
        goes_on = not isinstance(error, RemoteError) or error.kind != "killed"
        task.outcomes.extend(outcomes_when_cut(action, place.steps, goes_on=goes_on))
        raise


def _wanted(host: Host, facts: Facts, restart: Restart) -> tuple[Server, ...]:
    servers = usable_servers(host, facts, gpus=restart.gpus, overrides=restart.overrides)
    if not servers:
        raise PreconditionError("no server in the inventory", where=host.where, hint=f"add hosts.{host.name}.servers")
    if restart.timeout_s is None:
        return servers
    return tuple(replace(s, spec=replace(s.spec, ready_timeout_s=restart.timeout_s)) for s in servers)


def _confirm_adoption(host: Host, facts: Facts, servers: Sequence[Server], choice: Choice) -> None:
    strays = strays_in_the_way(facts, servers)
    if not strays or choice.yes:
        return
    listed = "\n  ".join(render_stray(stray) for stray in strays)
    if not (choice.confirm and choice.confirm(f"{host.where}: stop what rackhand did not start?\n  {listed}\n")):
        raise PreconditionError(f"not confirmed: stop\n  {listed}\n", where=host.where, hint="run again with --yes")
