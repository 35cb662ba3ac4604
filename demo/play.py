"""The demo: lab up, deploy, three phases, one table, the ledger's check; lab down, whatever happens."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.figures import GPUS, PHASES, Measured, Phase, compare
from demo.ledger import LedgerCheck, check_ledger, done_indices
from demo.prompts import ROWS, write_prompts
from demo.stage import Stage
from lab import host, packages
from lab.place import LabOptions, Place, read_place
from rackhand.errors import PreconditionError, RemoteError, UsageError
from rackhand.load import load
from rackhand.program import hold_signals
from rackhand.render import Screen, screen
from rackhand.tell import progress

MEAN_TOKENS = 300.0
OPTIONS = LabOptions(gpus=GPUS, gpu_kind="rtx-pro-6000", load_seconds=3.0, release_seconds=2.0, mean_tokens=MEAN_TOKENS)
SIMULATED = """Simulated: the GPUs and nvidia-smi; SGLang (0.5.11's flags, log, endpoints and sizing; its token rate is
a line fitted to the report); pct and the API. Real: sshd, LXC, tmux, all that was sent, the generator and its files."""


@dataclass(frozen=True, slots=True)
class Played:
    measured: tuple[Measured, ...]
    ledger: LedgerCheck
    seconds: float

    def missed(self) -> list[str]:
        """Every bar that isn't met, as lines."""
        lines = [line for one in self.measured for line in one.missed()]
        for word, indices in (("lost", self.ledger.lost), ("there twice", self.ledger.twice)):
            if indices:
                lines.append(f"{len(indices)} prompts are {word}, the first is line {indices[0] + 1}")
        return lines

    def as_json(self) -> dict[str, object]:
        return {
            "phases": [one.as_json() for one in self.measured],
            "nothing_lost": self.ledger.nothing_lost,
            "nothing_twice": self.ledger.nothing_twice,
            "seconds": round(self.seconds, 1),
        }


def play(root: Path, *, json_file: str | None = None, verbose: bool = False) -> int:
    """Returns 0, or 1 when a bar is missed. `json_file` gets the figures.

    PreconditionError when a demo runs already, the lab's LabError when a lab is up that isn't the demo's;
    RackhandError when a verb failed.
    """
    figures = Path(json_file).absolute() if json_file is not None else None
    if figures and not figures.parent.is_dir():
        raise UsageError(f"no directory {figures.parent}", hint="--json FILE is written at the end")
    packages.prepare_for_lab()
    start = time.monotonic()
    with _only_one(root), screen(verbose=verbose) as told:
        with _lab(root, told) as place:
            measured, ledger, baseline = _relive(place, told)
        played = Played(measured, ledger, time.monotonic() - start)
        told.compare(compare(measured, baseline_tok_s=baseline, mean_tokens=MEAN_TOKENS))
        for line in _verdict(played):
            told.say("demo", line)
    if figures:
        figures.write_text(json.dumps(played.as_json(), indent=1) + "\n")
    return 1 if played.missed() else 0


def _verdict(played: Played) -> Iterator[str]:
    yield from SIMULATED.split("\n")
    if played.ledger.nothing_lost and played.ledger.nothing_twice:
        yield f"{played.ledger.records} prompts, {played.ledger.records} records: nothing lost, nothing twice"
    for one in played.measured:
        if not one.settled:
            yield f"{one.phase.name}: measured before it had settled; is the machine busy?"
    yield from (f"MISSED: {line}" for line in played.missed())
    yield f"{played.seconds:.0f} s in all; the lab is down"


def _relive(place: Place, told: Screen) -> tuple[tuple[Measured, ...], LedgerCheck, float]:
    write_prompts(place.state / "prompts.jsonl", ROWS)
    fleet = load("lab", os.environ)
    stage = Stage(fleet, told, progress())
    output = place.workspace(OPTIONS.vmid) / Path(fleet.jobs[0].output).relative_to(fleet.hosts[0].workspace)
    told.say("demo", f"deploy; {ROWS} prompts")
    stage.deploy()
    measured: list[Measured] = []
    due = set(range(ROWS))
    for phase in PHASES:
        measured.append(_play(stage, phase, output))
        due |= done_indices(output)
    return tuple(measured), check_ledger(output, due=due), fleet.baselines[0].tok_s


def _play(stage: Stage, phase: Phase, output: Path) -> Measured:
    """One phase: restart the servers for other flags, resume, wait until it has settled; stop, or wait for the end."""
    say = stage.screen.say
    if phase is PHASES[0] or phase.settings:
        flags = " ".join(f"--set {name}={value}" for name, value in phase.settings.items())
        say("demo", f"{phase.name}: restart-servers {flags}".rstrip())
        stage.restart_servers(phase.settings)
    before = len(done_indices(output))
    say("demo", f"{phase.name}: resume --concurrency {phase.concurrency}")
    stage.resume(phase.concurrency)
    means, found, settled = stage.await_settled(phase)
    if phase is PHASES[-1]:
        say("demo", f"{phase.name}: until every prompt is done")
        stage.await_done()
    else:
        say("demo", f"{phase.name}: stop --job")
        stage.stop_job()
    if means.cap_per_gpu is None or means.running_per_gpu is None or means.tok_s_per_gpu is None:
        raise RemoteError(f"{phase.name}: nothing to be seen of running requests, cap or token rate")
    measured = Measured(
        phase,
        cap_per_gpu=means.cap_per_gpu,
        running_per_gpu=means.running_per_gpu,
        tok_s_per_gpu=means.tok_s_per_gpu,
        tok_s_total=means.tok_s_total or 0.0,
        completions_per_s=means.completions_per_s,
        kv_usage=means.kv_usage,
        mamba_usage=means.mamba_usage,
        completed=len(done_indices(output)) - before,
        settled=settled,
        verdicts=found.verdicts,
    )
    for line in measured.told():
        say("demo", line)
    return measured


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    """One demo at a time in a checkout. A lock on a file that is there anyway leaves nothing behind."""
    with (root / "demo/play.py").open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionError("a demo runs in this checkout already", hint="wait for its end") from error
        yield


@contextmanager
def _lab(root: Path, told: Screen) -> Iterator[Place]:
    """The demo's lab, made anew and taken down at the end; what a killed demo left is removed first."""
    state = host.status(root).place.state
    if (state / "lab.json").exists() and read_place(state)[1] == OPTIONS:
        told.say("demo", "removing the lab that an interrupted demo left")
        host.down(root)
    told.say("demo", f"lab up: {GPUS} GPUs, Proxmox host and container on this machine")
    place = host.up(root, OPTIONS)
    try:
        yield place
    finally:
        told.say("demo", "lab down")
        with hold_signals():
            host.down(root)
