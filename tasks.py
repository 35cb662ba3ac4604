"""The operator's verbs. `./inv --list` shows them; `./inv --help VERB` shows flags and an example."""

from __future__ import annotations

import os
from time import time
from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.context import Context

from rackhand.place import IN_CHECKOUT
from rackhand.program import adopt_house_rules, verb

if TYPE_CHECKING:
    from rackhand.inventory import Fleet, Host

adopt_house_rules()

INVENTORY = os.environ.get("RACKHAND_INVENTORY") or "lab"

HELP = {
    "inventory": "a file in inventory/, or a path",
    "hosts": "only these hosts, e.g. rtx,b200 (default: all)",
    "dry_run": "show what would be done, and do nothing",
    "yes": "don't ask before a container is started or a foreign server stopped",
    "json": "JSON on stdout instead of text",
    "verbose": "show the details of what was done and of errors",
    "set": "a server flag instead of the inventory's, e.g. mem-fraction-static=0.9; repeat it; false leaves a flag out",
    "timeout": "seconds until a server counts as not ready (default: the inventory's ready_timeout_s)",
    "at_once": "how many GPUs may be out of service at the same time (default: all)",
    "adopt": "also stop servers that somebody started by hand",
    "compare": "watch a job at work before and after, and tell whether the restart helped (default: yes)",
    "job": "name of the job (default: the only one)",
    "new": "start in another output directory: OUTPUT-2, OUTPUT-3 ...",
    "file": "a prompts file on this machine",
    "retry_failed": "ask again what failed for good (failures.jsonl)",
    "retry_rejected": "ask again what was rejected (rejected.jsonl)",
    "concurrency": "requests in flight per server, or auto: what each can hold",
    "servers": "stop the servers as well",
    "server": "only this one: a host, HOST/GPU or a session, e.g. lab/0",
    "what_if": "try values of a flag, e.g. mem-fraction-static=0.85,0.9; repeat it for combinations",
    "gpu": "this GPU instead of the hosts' own, e.g. b200, rtx-pro-6000, h100",
    "gpu_free_gib": "GiB free on the GPU before the weights load (default: read from the host, or of an idle --gpu)",
    "model_config": "a config.json, or its directory; no inventory is read",
    "weights_gib": "GiB of the weights as loaded (default: measured before, or the shards' sizes)",
    "draft_gib": "GiB of the draft model as loaded",
    "engine_version": "SGLang's release (default: the inventory's)",
    "lengths": "mean PROMPT,OUTPUT tokens of the job (default: the job's own so far)",
    "once": "show one sample of each host and end",
    "interval": "seconds between samples",
    "seconds": "how long to watch",
    "detach": "in a tmux session of its own on this machine",
    "since": "an age (12h, 30m, 2d) or a time (2026-05-09 18:00); default: all",
    "output": "the file to write (default: JOB.html here)",
    "export": "write samples to FILE.csv, or samples and events to FILE.jsonl",
    "run_a": "the run before: a number of ./inv history, last, last-1 ...",
    "run_b": "the run after, likewise",
    "gpus": "which GPUs, e.g. 0,1 or 0-3 (default: all)",
}

STOP_HELP = HELP | {
    "job": "name of the job (default: every job of the hosts)",
    "timeout": "seconds until requests in flight are given back (default: 60)",
}


def fleet_and_hosts(
    inventory: str, hosts: str | None, *, needs_secrets: bool = False
) -> tuple[Fleet, tuple[Host, ...]]:
    """The inventory's fleet, and the hosts named, or all. Without `needs_secrets` their variables needn't be set."""
    from rackhand.load import load

    fleet = load(inventory, os.environ, needs_secrets=needs_secrets)
    return fleet, fleet.select(hosts)


@verb(help=HELP)
def deploy(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    dry_run: bool = False,
    yes: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Send scripts, your files and the generator into the containers; starts a stopped one after asking.

    A second run has nothing to do. Files that somebody changed by hand are put back.
    Example: ./inv deploy --inventory mine --dry-run
    """
    from rackhand.tell import ask, progress, tell
    from rackhand.workflows.deploy import Choice
    from rackhand.workflows.deploy import deploy as work

    fleet, targets = fleet_and_hosts(inventory, hosts, needs_secrets=True)
    choice = Choice(dry_run=dry_run, yes=yes, confirm=ask())
    return tell(work(fleet, targets, say=progress(), choice=choice), as_json=json, verbose=verbose)


@verb(help=HELP, name="restart-servers")
def restart_servers(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    gpus: str | None = None,
    set: list[str] | None = None,  # noqa: A002
    timeout: float | None = None,
    at_once: int | None = None,
    adopt: bool = False,
    compare: bool = True,
    dry_run: bool = False,
    yes: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Stop and start the model server of each GPU, and wait until each generates; shows capacity before and after.

    Flags are checked before anything is stopped. Servers started by hand are stopped with --adopt only.
    Example: ./inv restart-servers --gpus 0,1 --set mem-fraction-static=0.9
    """
    from rackhand.arguments import checked_count, checked_seconds, parse_gpus, parse_overrides
    from rackhand.tell import ask, progress, tell
    from rackhand.workflows.deploy import Choice
    from rackhand.workflows.servers import Restart
    from rackhand.workflows.servers import restart_servers as work

    seconds, together = checked_seconds(timeout, "timeout"), checked_count(at_once, "at-once")
    wish = Restart(parse_gpus(gpus), parse_overrides(set or ()), seconds, adopt, together or 0, compare)
    fleet, targets = fleet_and_hosts(inventory, hosts, needs_secrets=True)
    choice = Choice(dry_run=dry_run, yes=yes, confirm=ask())
    return tell(work(fleet, targets, wish, say=progress(), choice=choice), as_json=json, verbose=verbose)


@verb(help=HELP)
def status(
    c: Context, *, inventory: str = INVENTORY, hosts: str | None = None, json: bool = False, verbose: bool = False
) -> int:
    """Show servers, GPUs and jobs of all hosts on one screen; changes nothing.

    Example: ./inv status --hosts lab --json
    """
    from rackhand.tell import progress, tell
    from rackhand.workflows.servers import status as work

    fleet, targets = fleet_and_hosts(inventory, hosts)
    return tell(work(fleet, targets, say=progress()), as_json=json, verbose=verbose)


@verb(help=HELP)
def resume(
    c: Context,
    *,
    inventory: str = INVENTORY,
    job: str | None = None,
    new: bool = False,
    concurrency: str | None = None,
    retry_failed: bool = False,
    retry_rejected: bool = False,
    dry_run: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Start the generator of a job where it stopped, after one real generation from each server.

    Run again while it runs: says so, changes nothing. Refuses changed prompts or sampling; --new starts another output.
    Example: ./inv resume --job expansion --concurrency 64
    """
    from rackhand.load import load
    from rackhand.plan.job import parse_concurrency
    from rackhand.tell import progress, tell
    from rackhand.workflows.deploy import Choice
    from rackhand.workflows.job import Resume
    from rackhand.workflows.job import resume as work

    again = {"retry_failed": retry_failed, "retry_rejected": retry_rejected}
    wish, fleet = Resume(new=new, concurrency=parse_concurrency(concurrency), **again), load(inventory, os.environ)
    report = work(fleet, fleet.job(job), wish, say=progress(), choice=Choice(dry_run=dry_run))
    return tell(report, as_json=json, verbose=verbose)


@verb(help=STOP_HELP)
def stop(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    job: str | None = None,
    servers: bool = False,
    timeout: float | None = None,
    dry_run: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Stop generators: what is in flight is finished, or given back at the deadline; --servers: the servers too.

    With --job only that job's host is asked.
    Example: ./inv stop --job expansion --servers
    """
    from rackhand.arguments import checked_seconds
    from rackhand.tell import progress, tell
    from rackhand.workflows.deploy import Choice
    from rackhand.workflows.job import Stop
    from rackhand.workflows.job import stop as work

    fleet, targets = fleet_and_hosts(inventory, hosts)
    wish = Stop(None if job is None else fleet.job(job), servers=servers, timeout_s=checked_seconds(timeout, "timeout"))
    report = work(fleet, targets, wish, say=progress(), choice=Choice(dry_run=dry_run))
    return tell(report, as_json=json, verbose=verbose)


@verb(help=HELP)
def tail_metrics(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    once: bool = False,
    interval: float = 2.0,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Show servers, GPUs and jobs as they run, until Ctrl-C; changes nothing.

    A table on a terminal, lines elsewhere, an object a line with --json. docs/metrics.md explains each figure.
    What is seen is kept: ./inv history tells it.
    Example: ./inv tail-metrics --once
    """
    from rackhand.render import screen
    from rackhand.workflows.metrics import PAST_S
    from rackhand.workflows.metrics import tail_metrics as work
    from rackhand.workflows.record import Recorder

    fleet, targets = fleet_and_hosts(inventory, hosts)
    with screen(json=json, verbose=verbose, baselines=fleet.baselines) as out:
        with Recorder(fleet, os.environ, say=out.say, interval_s=interval) as keep:
            show = out.show if once else keep.shown(out.show)
            report = work(
                fleet,
                targets,
                show=show,
                say=out.say,
                once=once,
                interval_s=interval,
                past_s=PAST_S,
                since=keep.newest,
                note=keep.note,
            )
        if any(row.failed for row in report.rows):
            out.report(report)
    return report.exit_code


@verb(help=HELP)
def capacity(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    server: str | None = None,
    set: list[str] | None = None,  # noqa: A002
    what_if: list[str] | None = None,
    gpu: str | None = None,
    gpu_free_gib: float | None = None,
    model_config: str | None = None,
    weights_gib: float | None = None,
    draft_gib: float | None = None,
    engine_version: str | None = None,
    lengths: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Say before a launch what SGLang will do: slots, running requests, KV tokens, rate, and which flags do better.

    Of the inventory's servers, by their hosts' GPUs or --gpu; with --model-config of a model that isn't in one.
    Example: ./inv capacity --what-if mem-fraction-static=0.85,0.9 --what-if mamba-ssm-dtype=float32,bfloat16
    """
    from rackhand.render.capacity import show
    from rackhand.tell import progress
    from rackhand.workflows.capacity import forecast_file, forecast_fleet, parse_question

    sizes = {"gpu_free_gib": gpu_free_gib, "weights_gib": weights_gib, "draft_gib": draft_gib}
    words = {"sets": set, "what_if": what_if, "gpu": gpu, "model_config": model_config, "lengths": lengths}
    question = parse_question(server=server, version=engine_version, **words, **sizes)
    if model_config is not None:
        return show([forecast_file(question)], None, as_json=json, verbose=verbose)
    found, report = forecast_fleet(*fleet_and_hosts(inventory, hosts), question, say=progress())
    return show(found, report, as_json=json, verbose=verbose)


@verb(help=HELP, name="diagnose")
def run_diagnose(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    seconds: float = 30.0,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Watch for half a minute, then say what limits the run, with evidence and the change to try; changes nothing.

    Example: ./inv diagnose --hosts lab --seconds 20
    """
    from rackhand.render import screen
    from rackhand.workflows.diagnose import diagnose, told

    fleet, targets = fleet_and_hosts(inventory, hosts)
    with screen(json=json, verbose=verbose) as out:
        report = diagnose(fleet, targets, tell=told(out), say=out.say, seconds=seconds)
        if report.exit_code:
            out.report(report)
    return report.exit_code


@verb(help=HELP)
def record(
    c: Context,
    *,
    inventory: str = INVENTORY,
    hosts: str | None = None,
    interval: float = 5.0,
    detach: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Keep samples and events of all hosts in the history until Ctrl-C; --detach: in tmux on this machine.

    Example: ./inv record --detach
    """
    from rackhand.tell import progress, tell
    from rackhand.workflows import history as work

    fleet, targets = fleet_and_hosts(inventory, hosts)
    if detach:
        report = work.detach(fleet, os.environ, work.record_argv(fleet, targets, interval))
    else:
        report = work.record(fleet, targets, os.environ, say=progress(), interval_s=interval)
    return tell(report, as_json=json, verbose=verbose)


@verb(help=HELP)
def history(
    c: Context,
    *,
    inventory: str = INVENTORY,
    job: str | None = None,
    since: str | None = None,
    export: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Tell the runs and events of a job that were kept; --export FILE.csv or FILE.jsonl writes the samples.

    Example: ./inv history --since 12h --export night.csv
    """
    from rackhand.load import load
    from rackhand.render import screen
    from rackhand.workflows.history import history as work
    from rackhand.workflows.history import tell_history

    fleet = load(inventory, os.environ, needs_secrets=False)
    with screen(json=json, verbose=verbose) as out:
        tell_history(out, work(fleet, os.environ, fleet.job(job).name, since=since, export=export))
    return 0


@verb(help=HELP)
def report(
    c: Context,
    *,
    inventory: str = INVENTORY,
    job: str | None = None,
    since: str | None = None,
    output: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Write a job's history as one HTML file: charts, events, runs before and after, outputs, set-up, numbers.

    The file asks for nothing from anywhere. docs/report.md says what stands in it.
    Example: ./inv report --since 12h --output night.html
    """
    from rackhand.load import load
    from rackhand.tell import tell
    from rackhand.workflows.report import report as work

    fleet = load(inventory, os.environ, needs_secrets=False)
    made = work(fleet, os.environ, fleet.job(job), now=time(), since=since, output=output)
    return tell(made, as_json=json, verbose=verbose)


@verb(help=HELP, name="compare", words=("run_a", "run_b"))
def compare_runs(
    c: Context,
    run_a: str | None = None,
    run_b: str | None = None,
    *,
    inventory: str = INVENTORY,
    job: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Compare two runs of the history over equal steady windows.

    Runs have numbers (./inv history), or are called last, last-1 ...; without any, the last two are compared.
    Example: ./inv compare 3 last
    """
    from rackhand.load import load
    from rackhand.render import screen
    from rackhand.workflows.compare import compare_runs as work

    fleet = load(inventory, os.environ, needs_secrets=False)
    with screen(json=json, verbose=verbose) as out:
        runs = tuple(run for run in (run_a, run_b) if run is not None)
        out.compare(work(fleet, os.environ, fleet.job(job).name, runs))
    return 0


@verb(help=HELP, name="check")
def prompts_check(
    c: Context,
    *,
    file: str | None = None,
    inventory: str = INVENTORY,
    job: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Read a prompts file before a day is spent on it: shapes, bad lines, duplicates, lengths; changes nothing.

    FILE on this machine, or the prompts of --job as that job reads them. Ends with 3 when there are bad lines.
    Example: ./inv prompts.check --file prompts.jsonl
    """
    from rackhand.load import load
    from rackhand.render.checks import tell_checked
    from rackhand.tell import progress
    from rackhand.workflows.checks import check_file, check_job

    if file is not None and job is None:
        return tell_checked(check_file(file), as_json=json, verbose=verbose)
    fleet = load(inventory, os.environ, needs_secrets=False)
    chosen = fleet.job(job)
    found = check_file(file, chosen) if file is not None else check_job(fleet, chosen, say=progress())
    return tell_checked(found, as_json=json, verbose=verbose)


@verb(help=HELP | {"output": "another output of the job, that resume --new made"}, values={"output": "DIR"})
def verify(
    c: Context,
    *,
    inventory: str = INVENTORY,
    job: str | None = None,
    output: str | None = None,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Read a job's whole output: bad completions, indices twice, shards against their digests; changes nothing.

    Ends with 3 when something is wrong. --output DIR: one that resume --new made.
    Example: ./inv verify --job expansion
    """
    from rackhand.load import load
    from rackhand.render.checks import tell_checked
    from rackhand.tell import progress
    from rackhand.workflows.checks import verify as work

    fleet = load(inventory, os.environ, needs_secrets=False)
    found = work(fleet, fleet.job(job), output=output, say=progress())
    return tell_checked(found, as_json=json, verbose=verbose)


ns = Collection(
    deploy,
    restart_servers,
    status,
    resume,
    stop,
    tail_metrics,
    capacity,
    run_diagnose,
    compare_runs,
    history,
    record,
    report,
    verify,
    Collection("prompts", prompts_check),
)
if IN_CHECKOUT:
    from dev.tasks import add_tasks

    add_tasks(ns)
