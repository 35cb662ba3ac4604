"""Facts: what was observed of one host, and the parsers from raw output to facts. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rackhand.command import Argv
from rackhand.contract import from_json
from rackhand.contract import gpus as smi
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
from rackhand.contract.gpus import GpuFacts, SmiAnswer
from rackhand.contract.job import JobState
from rackhand.contract.servers import ServersState
from rackhand.tmux import Pane, parse_panes

__all__ = ["GPU_QUERY", "PANES", "Facts", "GpuFacts", "parse_facts", "parse_gpus", "parse_manifest"]

GPU_QUERY: Argv = smi.query_argv(smi.FIELDS)

PANES = "panes"
"""The name under which tmux.list_panes_argv is asked."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One host, seen once. `commands` holds raw output by the name it was asked under; `gpus_problem` says why
    there are no GPUs, `gpus_lost` what nvidia-smi says of those that it can't read, `gpus_notes` what else it says;
    `servers`, `jobs` and `panes` are empty where they weren't asked."""

    where: str
    platform: Platform
    workspace: Workspace
    interpreter: Interpreter
    environment: Environment
    manifest: Manifest | None = None
    files: Mapping[str, FileState] = field(default_factory=dict)
    gpus: tuple[GpuFacts, ...] = ()
    gpus_problem: str = ""
    gpus_lost: tuple[str, ...] = ()
    gpus_notes: tuple[str, ...] = ()
    commands: Mapping[str, CommandState] = field(default_factory=dict)
    servers: ServersState = field(default_factory=ServersState)
    jobs: tuple[JobState, ...] = ()
    panes: Mapping[str, Pane] = field(default_factory=dict)


def with_known(facts: Facts, known: Facts) -> Facts:
    """`facts` of a look that asked for neither GPUs nor modules: those of `known`."""
    return replace(
        facts,
        interpreter=known.interpreter,
        gpus=known.gpus,
        gpus_problem=known.gpus_problem,
        gpus_lost=known.gpus_lost,
        gpus_notes=known.gpus_notes,
    )


def parse_facts(where: str, reply: ObserveReply) -> Facts:
    seen = parse_gpus(reply.commands.get("gpus"))
    return Facts(
        where=where,
        platform=reply.platform,
        workspace=reply.workspace,
        interpreter=reply.interpreter,
        environment=reply.environment,
        manifest=parse_manifest(reply.manifest),
        files=reply.files,
        gpus=seen.gpus,
        gpus_problem=seen.problem,
        gpus_lost=seen.lost,
        gpus_notes=seen.notes,
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


def parse_gpus(done: CommandState | None) -> SmiAnswer:
    """The answer to GPU_QUERY."""
    if done is None:
        return SmiAnswer(problem="nvidia-smi wasn't asked")
    return smi.parse_gpus(done.status, done.stdout, done.stderr)


def _panes(done: CommandState | None) -> Mapping[str, Pane]:
    """By session."""
    return {pane.session: pane for pane in parse_panes(done.stdout if done else "")}
