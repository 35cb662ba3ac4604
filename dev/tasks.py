"""The tasks beside the operator's verbs: the demo, the tests, the lab, and what only those who change rackhand need."""

from __future__ import annotations

import os

from invoke.collection import Collection
from invoke.context import Context

from dev.programs import ROOT
from rackhand.program import verb

HELP = {
    "json": "write the figures to this file",
    "verbose": "show the details of what was done and of errors",
    "slow": "also the longer proofs (the demo, fresh clones)",
    "only": "pytest's -k: run only the tests whose names match",
    "args": "more words for pytest, as one string",
    "gpus": "how many GPUs",
    "kind": "GPU model: rtx-pro-6000 or b200",
    "pct_delay": "seconds added to every pct call; a real one takes 0.75-1.06",
    "page": "take the pictures of this page, and run nothing",
    "upgrade": "take newer versions where pyproject.toml allows",
}


@verb(help=HELP, name="demo")
def run_demo(c: Context, *, json: str | None = None, verbose: bool = False) -> int:
    """Set up a lab on this machine, relive the field report on it, take the lab down; under five minutes.

    Needs root. Installs missing system packages after saying so. --json FILE writes the figures.
    Example: ./inv demo --json figures.json
    """
    from demo.play import play

    return play(ROOT, json_file=json, verbose=verbose)


@verb(help=HELP, name="test")
def run_tests(c: Context, *, slow: bool = False, only: str | None = None, args: str | None = None) -> int:
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
    from lab.gpu.kinds import KINDS
    from rackhand.errors import UsageError

    if kind not in KINDS:
        raise UsageError(f"no GPU model {kind!r} in the lab", hint=f"there is: {', '.join(KINDS)}")
    if gpus < 1 or not 0 <= pct_delay <= 60:
        raise UsageError("a lab has at least one GPU, and its pct a delay of 0 to 60 s", hint="see ./inv --help lab.up")
    packages.prepare_for_lab()
    place = host.up(ROOT, host.LabOptions(gpus=gpus, gpu_kind=kind, pct_delay_s=pct_delay))
    ensure_prompts(place.state)
    print(
        *host.status(ROOT).lines(), "next: ./inv deploy, restart-servers, resume; ./inv lab.down ends the lab", sep="\n"
    )
    return 0


@verb(help=HELP, name="down")
def lab_down(c: Context) -> int:
    """End the lab and remove everything of it, .lab and its history too; also after a run that was killed.

    Example: ./inv lab.down
    """
    from lab import host
    from rackhand.workflows.history import remove_history

    host.down(ROOT)
    remove_history(os.environ, ROOT / "inventory/lab.yaml")
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


@verb(help=HELP, name="architecture")
def docs_architecture(c: Context) -> int:
    """Draw docs/architecture.svg.

    Example: ./inv docs.architecture
    """
    from dev.architecture_picture import write_picture

    return write_picture()


@verb(help=HELP, name="pictures")
def docs_pictures(c: Context, *, page: str | None = None) -> int:
    """Record a run on the lab, and put pictures of its report page and of tail-metrics into docs/img; seven minutes.

    Needs root. Installs chromium and Playwright where they are missing.
    Example: ./inv docs.pictures --page night.html
    """
    from dev.pictures import write_pictures

    return write_pictures(page)


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


def add_tasks(ns: Collection) -> None:
    """Put these tasks beside the operator's verbs; an installed rackhand has none of them."""
    ns.add_task(run_demo)
    ns.add_task(run_tests)
    ns.add_collection(Collection("lab", lab_up, lab_down, lab_status))
    ns.add_collection(Collection("dev", check, lock, hooks))
    ns.add_collection(Collection("docs", docs_demo, docs_capacity, docs_architecture, docs_pictures))
