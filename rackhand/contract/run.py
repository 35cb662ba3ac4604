"""The verb `job`: start a generator, or stop it. What is asked and what is answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rackhand.contract.job import JobState
from rackhand.contract.servers import Probe


@dataclass(frozen=True)
class StartRun:
    """`tmux` makes the session that runs `script_path`, which `script` replaces; `log` is what the script appends to.

    `servers` are root URLs, asked for one real generation each before anything starts; those that give one become
    active in control.json. `sampling` and `prompts` must be what the output was made from; `columns` and
    `last_assistant` are how its rows are read. `dry_run` checks all that and starts nothing; `prompts_come`: then the
    file is to be sent first, and was checked where it is.
    """

    output: str
    prompts: str
    sampling: dict[str, Any]
    servers: tuple[str, ...]
    tmux: tuple[str, ...]
    end_session: tuple[str, ...]
    script_path: str
    script: str
    log: str
    shards: int = 1
    engine: str = "sglang"
    probe_timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    dry_run: bool = False
    prompts_come: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    last_assistant: str = "drop"


@dataclass(frozen=True)
class StopRun:
    """SIGTERM (drain), after `drain_timeout_s` a second one (give back what is in flight), at last SIGKILL. `dry_run`
    only checks that it can be stopped from here."""

    output: str
    drain_timeout_s: float = 90.0
    hurry_timeout_s: float = 15.0
    dry_run: bool = False


@dataclass(frozen=True)
class ChangeRun:
    """Requests in flight per server of a generator at work: a number or auto, as text, by control.json."""

    output: str
    concurrency: str
    timeout_s: float = 20.0


@dataclass(frozen=True)
class RunRequest:
    """Exactly one of `start`, `stop` and `change`. `secrets` are put on the tmpfs first."""

    home: str
    start: StartRun | None = None
    stop: StopRun | None = None
    change: ChangeRun | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RunNote:
    """Event `note`: a line for the operator while it works."""

    text: str
    event: str = "note"


@dataclass(frozen=True)
class RunResult:
    """Event `run`, the last one. `outcome`: started; ended (it was done at once, or it failed: `status`, `lines`);
    running (another one holds the output, or nothing is to be changed); changed; planned (a dry run); stopped; killed
    (it did not end when asked); idle (nothing to stop). `why`: what ended one that failed, in its own words."""

    outcome: Literal["started", "ended", "running", "changed", "planned", "stopped", "killed", "idle"]
    state: JobState
    probes: tuple[Probe, ...] = ()
    status: int | None = None
    lines: tuple[str, ...] = ()
    why: str = ""
    event: str = "run"
