"""The operator's verbs. `./inv --list` shows them; `./inv --help VERB` shows flags and an example."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.context import Context

from rackhand.program import ROOT, adopt_house_rules, verb

if TYPE_CHECKING:
    from rackhand.inventory import Fleet, Host

adopt_house_rules()

HELP = {
    "inventory": "name of a file in inventory/, or a path",
    "hosts": "only these hosts, e.g. rtx,b200 (default: all)",
    "dry_run": "show what would be done, and do nothing",
    "yes": "don't ask before a container is started or a foreign server stopped",
    "json": "JSON on stdout instead of text (demo: write the figures to this file)",
    "verbose": "show the details of what was done and of errors",
    "set": "a server flag for this start, e.g. mem-fraction-static=0.9; repeat it; false leaves a flag out",
    "timeout": "seconds: until a server is ready; until requests in flight are given back (default: the inventory's)",
    "at_once": "how many servers load at the same time (default: all)",
    "adopt": "also stop servers that somebody started by hand",
    "job": "name of the job (default: the only one)",
    "new": "start in another output directory: OUTPUT-2, OUTPUT-3 ...",
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
    "export": "write samples to FILE.csv, or samples and events to FILE.jsonl",
    "run_a": "the run before: a number of ./inv history, last, last-1 ...",
    "run_b": "the run after, likewise",
    "slow": "also the longer proofs (the demo, fresh clones)",
    "only": "pytest's -k: run only the tests whose names match",
    "args": "more words for pytest, as one string",
    "gpus": "how many GPUs (restart-servers: which, e.g. 0,1)",
    "kind": "GPU model: rtx-pro-6000 or b200",
    "pct_delay": "seconds added to every pct call; a real one takes 0.75-1.06",
    "upgrade": "take newer versions where pyproject.toml allows",
}


def fleet_and_hosts(inventory: str, hosts: str) -> tuple[Fleet, tuple[Host, ...]]:
    """The inventory's fleet, and the hosts named, or all."""
    from rackhand.load import load
    from rackhand.workflows.fleet import chosen

    fleet = load(inventory, os.environ)
    return fleet, chosen(fleet, [name for name in hosts.split(",") if name])


@verb(help=HELP)
def deploy(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
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

    fleet, targets = fleet_and_hosts(inventory, hosts)
    choice = Choice(dry_run=dry_run, yes=yes, confirm=ask())
    return tell(work(fleet, targets, say=progress(), choice=choice), as_json=json, verbose=verbose)


@verb(help=HELP, name="restart-servers", iterable=["set"])
def restart_servers(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
    gpus: str = "",
    set: list[str] | None = None,  # noqa: A002
    timeout: float = 0.0,
    at_once: int = 0,
    adopt: bool = False,
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

    seconds, at_once = checked_seconds(timeout, "timeout"), checked_count(at_once, "at-once")
    wish = Restart(parse_gpus(gpus), parse_overrides(set or ()), seconds, adopt=adopt, at_once=at_once)
    fleet, targets = fleet_and_hosts(inventory, hosts)
    choice = Choice(dry_run=dry_run, yes=yes, confirm=ask())
    return tell(work(fleet, targets, wish, say=progress(), choice=choice), as_json=json, verbose=verbose)


@verb(help=HELP)
def status(c: Context, *, inventory: str = "lab", hosts: str = "", json: bool = False, verbose: bool = False) -> int:
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
    inventory: str = "lab",
    job: str = "",
    new: bool = False,
    concurrency: str = "",
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

    wish, fleet = Resume(new=new, concurrency=parse_concurrency(concurrency)), load(inventory, os.environ)
    report = work(fleet, fleet.job(job or None), wish, say=progress(), choice=Choice(dry_run=dry_run))
    return tell(report, as_json=json, verbose=verbose)


@verb(help=HELP)
def stop(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
    job: str = "",
    servers: bool = False,
    timeout: float = 0.0,
    dry_run: bool = False,
    json: bool = False,
    verbose: bool = False,
) -> int:
    """Stop generators: what is in flight is finished, or given back at the deadline; --servers: the servers too.

    Example: ./inv stop --job expansion --servers
    """
    from rackhand.arguments import checked_seconds
    from rackhand.tell import progress, tell
    from rackhand.workflows.deploy import Choice
    from rackhand.workflows.job import Stop
    from rackhand.workflows.job import stop as work

    fleet, targets = fleet_and_hosts(inventory, hosts)
    wish = Stop(fleet.job(job) if job else None, servers=servers, timeout_s=checked_seconds(timeout, "timeout"))
    report = work(fleet, targets, wish, say=progress(), choice=Choice(dry_run=dry_run))
    return tell(report, as_json=json, verbose=verbose)


@verb(help=HELP)
def tail_metrics(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
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
    from rackhand.workflows.metrics import tail_metrics as work
    from rackhand.workflows.record import Recorder

    fleet, targets = fleet_and_hosts(inventory, hosts)
    with screen(json=json, verbose=verbose, baselines=fleet.baselines) as out:
        with Recorder(fleet, os.environ, say=out.say, interval_s=interval) as keep:
            show = out.show if once else keep.shown(out.show)
            report = work(fleet, targets, show=show, say=out.say, once=once, interval_s=interval)
        if any(row.failed for row in report.rows):
            out.report(report)
    return report.exit_code


@verb(help=HELP, iterable=["set", "what_if"])
def capacity(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
    server: str = "",
    set: list[str] | None = None,  # noqa: A002
    what_if: list[str] | None = None,
    gpu: str = "",
    gpu_free_gib: float = 0.0,
    model_config: str = "",
    weights_gib: float = 0.0,
    draft_gib: float = 0.0,
    engine_version: str = "",
    lengths: str = "",
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
    words = {"sets": set or (), "what_if": what_if or (), "gpu": gpu, "model_config": model_config, "lengths": lengths}
    question = parse_question(server=server, version=engine_version, **words, **sizes)
    if model_config:
        return show([forecast_file(question)], None, as_json=json, verbose=verbose)
    found, report = forecast_fleet(*fleet_and_hosts(inventory, hosts), question, say=progress())
    return show(found, report, as_json=json, verbose=verbose)


@verb(help=HELP, name="diagnose")
def run_diagnose(
    c: Context,
    *,
    inventory: str = "lab",
    hosts: str = "",
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
    inventory: str = "lab",
    hosts: str = "",
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
        report = work.detach(fleet, os.environ, work.record_argv(ROOT, fleet, targets, interval))
    else:
        report = work.record(fleet, targets, os.environ, say=progress(), interval_s=interval)
    return tell(report, as_json=json, verbose=verbose)


@verb(help=HELP)
def history(
    c: Context, *, inventory: str = "lab", job: str = "", since: str = "", export: str = "", json: bool = False
) -> int:
    """Tell the runs and events of a job that were kept; --export FILE.csv or FILE.jsonl writes the samples.

    Example: ./inv history --since 12h --export night.csv
    """
    from rackhand.load import load
    from rackhand.render import screen
    from rackhand.workflows.history import history as work
    from rackhand.workflows.history import tell_history

    fleet = load(inventory, os.environ)
    with screen(json=json) as out:
        tell_history(out, work(fleet, os.environ, fleet.job(job or None).name, since=since, export=export))
    return 0


@verb(help=HELP, name="compare")
def compare_runs(
    c: Context, run_a: str, run_b: str, *, inventory: str = "lab", job: str = "", json: bool = False
) -> int:
    """Compare two runs of the history over equal steady windows.

    Runs have numbers (./inv history), or are called last, last-1 ...
    Example: ./inv compare 3 last
    """
    from rackhand.load import load
    from rackhand.render import screen
    from rackhand.workflows.compare import compare_runs as work

    fleet = load(inventory, os.environ)
    with screen(json=json) as out:
        out.compare(work(fleet, os.environ, fleet.job(job or None).name, (run_a, run_b)))
    return 0


@verb(help=HELP, name="demo")
def run_demo(c: Context, *, json: str = "", verbose: bool = False) -> int:
    """Set up a lab on this machine, relive the field report on it, take the lab down; under five minutes.

    Needs root. Installs missing system packages after saying so. --json FILE writes the figures.
    Example: ./inv demo --json figures.json
    """
    from demo.play import play

    return play(ROOT, json_file=json, verbose=verbose)


@verb(help=HELP, name="test")
def run_tests(c: Context, *, slow: bool = False, only: str = "", args: str = "") -> int:
    """Set everything up and run the tests; starts labs of its own and ends them.

    Installs missing system packages after saying so.
    Example: ./inv test --only ledger --args "-x -q"
    """
    from dev.suite import run_suite

    return run_suite(slow=slow, only=only, args=args)


@verb(help=HELP, name="up")
def lab_up(c: Context, *, gpus: int = 8, kind: str = "rtx-pro-6000", pct_delay: float = 0.0) -> int:
    """Start a Proxmox host on this machine: sshd, LXC, pct, API, simulated GPUs; files in .lab.

    Needs root. Installs missing system packages after saying so.
    Example: ./inv lab.up --gpus 2 --pct-delay 0.9
    """
    from demo.prompts import ensure_prompts
    from lab import host, packages

    packages.prepare_for_lab()
    place = host.up(ROOT, host.LabOptions(gpus=gpus, gpu_kind=kind, pct_delay_s=pct_delay))
    ensure_prompts(place.state)
    print(*host.status(ROOT).lines(), sep="\n")
    return 0


@verb(help=HELP, name="down")
def lab_down(c: Context) -> int:
    """End the lab and remove everything of it, .lab too; also after a run that was killed.

    Example: ./inv lab.down
    """
    from lab import host

    host.down(ROOT)
    return 0


@verb(help=HELP, name="status")
def lab_status(c: Context) -> int:
    """Show what of the lab runs; changes nothing. Ends with 1 when the lab isn't up.

    Example: ./inv lab.status
    """
    from lab import host

    found = host.status(ROOT)
    print(*found.lines(), sep="\n")
    return 0 if found.is_up else 1


@verb(help=HELP)
def check(c: Context) -> int:
    """Run every gate (ruff, mypy, import contracts, shellcheck); changes nothing.

    Example: ./inv dev.check
    """
    from dev.check import check as run_gates

    return run_gates(print)


@verb(help=HELP, name="demo")
def docs_demo(c: Context) -> int:
    """Run the demo and put its output into README.md.

    Example: ./inv docs.demo
    """
    from dev.readme import write_demo_output

    return write_demo_output()


@verb(help=HELP, name="capacity")
def docs_capacity(c: Context) -> int:
    """Draw docs/capacity.svg from the predictions.

    Example: ./inv docs.capacity
    """
    from dev.capacity_picture import write_picture

    return write_picture()


@verb(help=HELP)
def lock(c: Context, *, upgrade: bool = False) -> int:
    """Write requirements.lock anew from pyproject.toml.

    Example: ./inv dev.lock --upgrade
    """
    from dev.lock import lock as write_lock

    return write_lock(upgrade=upgrade)


@verb(help=HELP)
def hooks(c: Context) -> int:
    """Install a git pre-commit hook that runs dev.check.

    Example: ./inv dev.hooks
    """
    from dev.hooks import install_hook

    print(f"wrote {install_hook()}")
    return 0


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
    run_demo,
    run_tests,
    Collection("lab", lab_up, lab_down, lab_status),
    Collection("dev", check, lock, hooks),
    Collection("docs", docs_demo, docs_capacity),
)
