"""Facts: what was observed of one host, and the parsers from raw output to facts. Pure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rackhand.command import Argv
from rackhand.contract import from_json
from rackhand.contract.files import (
    CommandState,
    Environment,
    FileState,
    Interpreter,
    Manifest,
    ObserveReply,
    Platform,
    Workspace,
)
from rackhand.contract.job import JobState
from rackhand.contract.servers import ServersState
from rackhand.tmux import Pane, parse_panes

GPU_QUERY: Argv = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,memory.used",
    "--format=csv,noheader,nounits",
)

PANES = "panes"
"""The name under which tmux.list_panes_argv is asked."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU by nvidia-smi's own index. Memory is None where nvidia-smi says [N/A]."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """One host, seen once. `commands` holds raw output by the name it was asked under; `gpus_problem` says why
    there are none; `servers`, `jobs` and `panes` are empty where they weren't asked."""

    where: str
    platform: Platform
    workspace: Workspace
    interpreter: Interpreter
    environment: Environment
    manifest: Manifest | None = None
    files: Mapping[str, FileState] = field(default_factory=dict)
    gpus: tuple[GpuFacts, ...] = ()
    gpus_problem: str = ""
    commands: Mapping[str, CommandState] = field(default_factory=dict)
    servers: ServersState = field(default_factory=ServersState)
    jobs: tuple[JobState, ...] = ()
    panes: Mapping[str, Pane] = field(default_factory=dict)


def parse_facts(where: str, reply: ObserveReply) -> Facts:
    gpus, problem = parse_gpus(reply.commands.get("gpus"))
    return Facts(
        where=where,
        platform=reply.platform,
        workspace=reply.workspace,
        interpreter=reply.interpreter,
        environment=reply.environment,
        manifest=parse_manifest(reply.manifest),
        files=reply.files,
        gpus=gpus,
        gpus_problem=problem,
        commands=reply.commands,
        servers=reply.servers or ServersState(),
        jobs=reply.jobs,
        panes=_panes(reply.commands.get(PANES)),
    )


def parse_manifest(text: str | None) -> Manifest | None:
    """None for none, and for one that can't be read: deploy then writes everything again and removes nothing."""
    try:
        return None if text is None else from_json(Manifest, json.loads(text))
    except ValueError:
        return None


def parse_gpus(done: CommandState | None) -> tuple[tuple[GpuFacts, ...], str]:
    """The answer to GPU_QUERY, and why it holds no GPU."""
    if done is None:
        return (), "nvidia-smi wasn't asked"
    if done.status is None:
        return (), "no nvidia-smi in the PATH, or it hangs"
    if done.status != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return (), f"nvidia-smi failed: {said[0] if said else f'status {done.status}'}"
    rows = [[word.strip() for word in row] for row in csv.reader(done.stdout.splitlines()) if len(row) == 5]
    gpus = tuple(GpuFacts(int(row[0]), row[1], row[2], _mib(row[3]), _mib(row[4])) for row in rows if row[0].isdigit())
    return gpus, "" if gpus else "nvidia-smi lists no GPU"


def _panes(done: CommandState | None) -> Mapping[str, Pane]:
    """By session."""
    return {pane.session: pane for pane in parse_panes(done.stdout if done else "")}


def _mib(word: str) -> int | None:
    return int(word) if word.isdigit() else None
