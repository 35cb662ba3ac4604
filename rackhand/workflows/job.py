"""resume and stop: the generator of a job on its host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackhand.again import stop_words
from rackhand.apply import Place, apply
from rackhand.contract.job import JobState
from rackhand.errors import PreconditionError, UsageError
from rackhand.facts import Facts
from rackhand.inventory import Fleet, Host, Job, Server, servers_of
from rackhand.place import COMMAND
from rackhand.plan.deploy import SendFiles
from rackhand.plan.gpus import possible_gpus
from rackhand.plan.job import (
    check_prompts,
    check_session,
    choose_output,
    job_states,
    plan_change,
    plan_resume,
    plan_stop,
    render_progress,
)
from rackhand.plan.servers import plan_stop_servers
from rackhand.report import Report
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.deploy import Choice, prompts_digest, waiting_uploads
from rackhand.workflows.fleet import Roads, Say, Task
from rackhand.workflows.servers import add_status, check_deployed, look, reveal_secrets, serve


@dataclass(frozen=True, slots=True)
class Resume:
    """`new` starts in the next output directory that isn't there; `concurrency` replaces the job's; `retry_failed`
    and `retry_rejected` ask again what stands in failures.jsonl and rejected.jsonl."""

    new: bool = False
    concurrency: int | str | None = None
    retry_failed: bool = False
    retry_rejected: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """For the generator, in this run only."""
        flags = {"--retry-failed": self.retry_failed, "--retry-rejected": self.retry_rejected}
        return tuple(flag for flag, is_set in flags.items() if is_set)


@dataclass(frozen=True, slots=True)
class Stop:
    """`job` None is every job of the chosen hosts, else only its host is asked; `servers` stops the servers there too;
    `timeout_s` is for each wait."""

    job: Job | None = None
    servers: bool = False
    timeout_s: float | None = None


def resume(
    fleet: Fleet, job: Job, wish: Resume, *, say: Say, choice: Choice | None = None, roads: Roads | None = None
) -> Report:
    """Start the job's generator where it stopped. While it runs, its concurrency is changed if one is asked."""
    asked = choice or Choice()

    def work(task: Task) -> None:
        _resume(task, job, wish, asked)

    return hosts_at_work.run("resume", [fleet.host(job.host)], work, say=say, roads=roads)


def stop(
    fleet: Fleet,
    hosts: Sequence[Host],
    wish: Stop,
    *,
    say: Say,
    choice: Choice | None = None,
    roads: Roads | None = None,
) -> Report:
    """Stop generators, then servers if asked. What is in flight is finished, or given back at the deadline."""
    asked, job = choice or Choice(), wish.job
    targets = [host for host in hosts if job is None or host.name == job.host]
    if job is not None and not targets:
        raise UsageError(f"job {job.name} is on host {job.host}", hint=f"write --hosts {job.host}, or leave it out")

    def work(task: Task) -> None:
        _stop(task, fleet, fleet.jobs_on(task.host) if job is None else (job,), wish, asked)

    return hosts_at_work.run("stop", targets, work, say=say, roads=roads)


def _resume(task: Task, job: Job, wish: Resume, choice: Choice) -> None:
    host = task.host
    secrets = reveal_secrets(host)
    facts = look(task.session, host, [job])
    states = job_states(job, facts)
    if _is_running(task, job, states, wish, choice):
        return
    check_session(host, job, facts)
    check_deployed(host, facts)
    if wish.new:
        job = choose_output(host, job, states)
        task.say(f"output {job.output}; set it in the inventory to resume this one")
    state = next(state for state in states if state.output == job.output.rstrip("/"))
    action = plan_resume(host, job, state, _servers(host, facts), concurrency=wish.concurrency, more=wish.flags)
    if action is None:
        return
    place = Place(host, task.session, task.say, secrets)
    waiting = waiting_uploads(task.session, host, [job])
    for upload in waiting:
        check_prompts(host, job, state, prompts_digest(upload.src))
    if choice.dry_run:
        for upload in waiting:
            task.add(f"send {upload.dest} ({upload.size} bytes)", "planned")
        order = replace(action.order, dry_run=True, prompts_come=bool(waiting))
        action = replace(action, order=order)
    elif waiting:
        apply(SendFiles(uploads=waiting), place)
        task.add(f"sent {job.prompts}")
    if not choice.dry_run:
        task.say(action.line)
    task.outcomes.extend(apply(action, place))


def _is_running(task: Task, job: Job, states: Sequence[JobState], wish: Resume, choice: Choice) -> bool:
    """Whether a generator of the job is at work; then all that was done is what can be changed while it is."""
    for state in states:
        if state.pid is None:
            continue
        if wish.new:
            what = f"a generator (pid {state.pid}) works on {state.output}"
            raise PreconditionError(what, where=task.host.where, hint=f"{COMMAND} stop --job {job.name} first")
        if wish.flags:
            what = f"job {job.name}: {' and '.join(wish.flags)} work at a start only, and its generator runs"
            raise PreconditionError(what, where=task.host.where, hint=f"./inv stop --job {job.name} first")
        if wish.concurrency is not None and (action := plan_change(job, state, wish.concurrency)):
            if choice.dry_run:
                task.add(action.line, "planned")
            else:
                task.say(action.line)
                task.outcomes.extend(apply(action, Place(task.host, task.session, task.say)))
            return True
        where = "" if state is states[0] else f" in {state.output}"
        task.add(f"job {job.name}: already running{where} (pid {state.pid}), {render_progress(state)}", "unchanged")
        return True
    return False


def _servers(host: Host, facts: Facts) -> tuple[Server, ...]:
    """Also of a GPU that can't be seen now: the generator asks those that answer, and waits for the others."""
    possible = possible_gpus(host, facts)
    if not possible:
        raise PreconditionError(facts.gpus_problem, where=host.where, hint="look at the driver")
    return servers_of(host, possible)


def _stop(task: Task, fleet: Fleet, jobs: Sequence[Job], wish: Stop, choice: Choice) -> None:
    host = task.host
    facts = look(task.session, host, jobs)
    actions = [(job, plan_stop(job, job_states(job, facts), timeout_s=wish.timeout_s)) for job in jobs]
    servers = plan_stop_servers(host, facts) if wish.servers else None
    for job, action in actions:
        if action is None:
            task.add(f"job {job.name}: no generator runs", "unchanged")
            continue
        if not choice.dry_run:
            task.say(action.line)
        asked = replace(action, order=replace(action.order, dry_run=choice.dry_run))
        task.outcomes.extend(apply(asked, Place(host, task.session, task.say)))
    if servers is None:
        return
    if not servers.orders:
        task.add("no server runs", "unchanged")
    elif choice.dry_run:
        for line in servers.lines:
            task.add(line, "planned")
    else:
        serve(task, replace(servers, redo=stop_words(fleet, host)), {})
        add_status(task, jobs, look(task.session, host, jobs))
