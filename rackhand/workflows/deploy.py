"""deploy: files and a Python environment into each container; a second run has nothing to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rackhand.agent import Session
from rackhand.apply import Place, apply
from rackhand.apply.files import digest
from rackhand.bundle import own_paths, render_bundle
from rackhand.contract.files import Owner, Upload
from rackhand.contract.job import PromptsDigest, digest_prompts
from rackhand.errors import PreconditionError, RemoteError, StoppedError
from rackhand.facts import Facts
from rackhand.inventory import Fleet, Host, Job, ProxmoxLxc, servers_of
from rackhand.observe import observe, observe_flags
from rackhand.plan.deploy import LocalUpload, SendFiles, StartContainer, diff_of, needs_upload, other_owner, plan_deploy
from rackhand.plan.gpus import check_listed, gpus_words, known_gpus, possible_gpus
from rackhand.plan.servers import check_flags
from rackhand.report import Report
from rackhand.secret_files import secret_refs
from rackhand.secrets import Secret, mask, resolve
from rackhand.workflows import fleet as hosts_at_work
from rackhand.workflows.fleet import Roads, Say, Task
from rackhand.workflows.owner import owner_of

Confirm = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator asked for. `confirm` asks a question on the terminal; None when there is none to ask."""

    dry_run: bool = False
    yes: bool = False
    confirm: Confirm | None = None


def deploy(
    fleet: Fleet, hosts: Sequence[Host], *, say: Say, choice: Choice | None = None, roads: Roads | None = None
) -> Report:
    """Observe, plan, apply, observe again on every host; with `dry_run` the plan with its diffs only."""
    choice = choice or Choice()

    def work(task: Task) -> None:
        _deploy_host(task, fleet, choice)

    return hosts_at_work.run("deploy", hosts, work, say=say, roads=roads)


def waiting_uploads(session: Session, host: Host, jobs: Sequence[Job]) -> tuple[LocalUpload, ...]:
    """The jobs' prompts, where the inventory has `upload` and the container lacks them."""
    uploads = local_uploads(jobs)
    if not uploads:
        return ()
    facts = observe(session, host, uploads=_asked(uploads))
    return tuple(upload for upload in _hashed(uploads, facts) if needs_upload(upload, facts.files.get(upload.dest)))


def prompts_digest(path: Path) -> PromptsDigest:
    """What a local prompts file will be known by. PreconditionError when it can't be read."""
    try:
        with path.open("rb") as file:
            return digest_prompts(file, path.stat().st_size)
    except OSError as error:
        raise PreconditionError(f"can't read {path}: {error.strerror}", hint="mend upload in the inventory") from error


def local_uploads(jobs: Sequence[Job]) -> tuple[LocalUpload, ...]:
    """Raises PreconditionError for a file that isn't there."""
    uploads = {}
    for job in jobs:
        if job.upload is None:
            continue
        try:
            about = job.upload.stat()
            with job.upload.open("rb"):
                pass
        except OSError as error:
            what = f"can't read {job.upload}: {error.strerror}"
            raise PreconditionError(what, where=f"jobs.{job.name}", hint="mend upload in the inventory") from error
        uploads[job.prompts] = LocalUpload(job.upload, job.prompts, about.st_size, about.st_mtime_ns)
    return tuple(uploads.values())


def _deploy_host(task: Task, fleet: Fleet, choice: Choice) -> None:
    host, jobs = task.host, fleet.jobs_on(task.host)
    owner = owner_of(fleet, host)
    sources = read_sources(host)
    here = [job for job in jobs if job.upload is not None and job.upload.is_file()]
    uploads = local_uploads(here)

    def look(*, texts: bool = False, known: Facts | None = None) -> Facts:
        return observe(task.session, host, files=own_paths(host), texts=texts, uploads=_asked(uploads), known=known)

    facts = _look_or_start(task, choice, lambda: look(texts=choice.dry_run))
    check_listed(host, facts)
    files = render_bundle(host, known_gpus(host, facts), sources)
    actions = plan_deploy(host, facts, files, _hashed(uploads, facts), owner=owner)
    _ask_owner(task, facts, owner, choice)
    if actions:
        _check_servers(task, facts)
    if choice.dry_run:
        secrets = _known_secrets(host)
        for action in actions:
            task.add(str(action), "planned", mask(diff_of(action, facts), secrets))
    else:
        for action in actions:
            task.outcomes.extend(apply(action, Place(host, task.session, task.say)))
        if actions:
            facts = look(known=None if any(action.venv for action in actions) else facts)
            _check_done(host, facts, plan_deploy(host, facts, files, _hashed(uploads, facts), owner=owner))
    if not actions:
        task.add("nothing to do", "unchanged")
    task.facts.update(_found(facts))
    for job in jobs:
        if job.upload is not None and job not in here:
            task.facts[f"prompts of {job.name}"] = f"{job.upload} isn't there yet; ./inv resume brings it"


def _ask_owner(task: Task, facts: Facts, owner: Owner, choice: Choice) -> None:
    """PreconditionError when another inventory's files stand here, and nobody says that they may be replaced."""
    other = other_owner(facts, owner)
    if other is None or choice.yes:
        return
    what = f"the files of another inventory stand here ({other})"
    if choice.dry_run:
        task.add(f"ask before it replaces them: {what}; --yes answers", "planned")
    elif not (choice.confirm and choice.confirm(f"{task.host.where}: {what}. Replace them?")):
        hint = f"run again with --yes to replace them, or set another hosts.{task.host.name}.workspace"
        raise PreconditionError(what, where=task.host.where, hint=hint)


def _check_servers(task: Task, facts: Facts) -> None:
    """UsageError for flags that the installed engine would refuse. An engine that can't be asked yet is told, and
    stops no deploy: it may come with what is deployed."""
    host = task.host
    servers = servers_of(host, possible_gpus(host, facts))
    pythons = tuple(dict.fromkeys(server.spec.python for server in servers))
    if not pythons:
        return
    try:
        check_flags(host, servers, observe_flags(task.session, host, pythons), hint="nothing was sent")
    except PreconditionError as unknown:
        task.facts["server flags"] = f"not checked: {unknown.what}; {unknown.hint}"


def _look_or_start(task: Task, choice: Choice, look: Callable[[], Facts]) -> Facts:
    try:
        return look()
    except StoppedError as stopped:
        road = task.host.road
        if choice.dry_run or not isinstance(road, ProxmoxLxc):
            raise
        if not choice.yes and not (choice.confirm and choice.confirm(f"{task.host.where} is stopped. Start it?")):
            hint = f"run again with --yes to start it, or: pct start {road.vmid}"
            raise PreconditionError(stopped.what, where=stopped.where, hint=hint) from stopped
        task.outcomes.extend(apply(StartContainer(road.vmid), Place(task.host, task.session, task.say)))
        return look()


def _check_done(host: Host, facts: Facts, left: Sequence[SendFiles]) -> None:
    if left:
        hint = "does something else write there? ./inv deploy again"
        raise RemoteError(f"still to do after it was done: {left[0]}", where=host.where, hint=hint)
    if facts.environment.problem:
        hint = f"mend hosts.{host.name}.env.source"
        raise PreconditionError(facts.environment.problem, where=host.where, hint=hint)


def read_sources(host: Host) -> Mapping[Path, bytes]:
    """The bytes of the host's own files. PreconditionError for one that can't be read."""
    try:
        return {file.src: file.src.read_bytes() for file in host.files}
    except OSError as error:
        what = f"can't read {error.filename}: {error.strerror}"
        raise PreconditionError(what, where=host.where, hint=f"mend hosts.{host.name}.files") from error


def _asked(uploads: Sequence[LocalUpload]) -> dict[str, Upload]:
    return {upload.dest: Upload(upload.size, upload.mtime_ns) for upload in uploads}


def _hashed(uploads: Sequence[LocalUpload], facts: Facts) -> tuple[LocalUpload, ...]:
    """With their sha256 where the container answered with one: only there it decides."""
    there = facts.files
    return tuple(
        replace(upload, sha256=digest(upload.src)) if upload.dest in there and there[upload.dest].sha256 else upload
        for upload in uploads
    )


def _known_secrets(host: Host) -> list[Secret]:
    return [resolve(ref, os.environ) for ref in secret_refs(host).values()]


def _found(facts: Facts) -> dict[str, str]:
    found = {"CUDA_HOME": facts.environment.cuda_home or "not set"}
    found["library paths"] = str(facts.environment.library_paths)
    sound = [gpu for gpu in facts.gpus if not gpu.fault]
    faults = [f"GPU {gpu.index}: {gpu.fault}" for gpu in facts.gpus if gpu.fault]
    words = [f"{len(sound)} x {sound[0].name}"] if sound else []
    found["GPUs"] = "; ".join(word for word in (*words, *faults, gpus_words(facts)) if word)
    found["python"] = facts.interpreter.python
    return found
