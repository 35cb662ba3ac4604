"""What the verbs `servers` and `probe` are asked and answer, and the files that hold a server's state.

Files in {workspace}/rackhand (`home`): run/gpuN.json (ServerRecord, by supervise), run/baseline.json (MiB by GPU
UUID), control.json (wishes by URL), events.jsonl. Secrets live on a tmpfs, see `secrets_dir`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

ACTIVE, DRAINING, STOPPED, STARTING = "active", "draining", "stopped", "starting"
WAITING = "waiting"
"""The step of a GPU whose turn hasn't begun."""
MEMORY_TOLERANCE_MIB = 512
"""How far above its idle baseline a GPU's memory may stand and still count as given back."""

API_KEY = "RACKHAND_API_KEY"
"""The variable that holds the servers' API key, in SECRETS_FILE and in the generator's environment."""
SECRETS_FILE = "secrets.env"
"""In `secrets_dir`: NAME='value' lines."""


def secrets_dir(home: str) -> str:
    """The tmpfs directory (0700) of the secrets that belong to `home`; files in it are 0600."""
    return f"/dev/shm/rackhand-{hashlib.sha256(home.encode()).hexdigest()[:8]}"  # noqa: S108


def argv_digest(argv: tuple[str, ...]) -> str:
    """Names a server's command line: 16 hex digits."""
    return hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Process:
    """A process that no reused pid can pass for: `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ServerRecord:
    """run/gpuN.json. `pid` is the main process of the server; `log_offset` is where its lines begin in `log`.

    `exit_status` is None while it runs, negative for a signal; `asked` says that somebody asked it to stop; `cause` is
    why it ended when nobody did, in words.
    """

    gpu: int
    pid: int
    start_ticks: int
    port: int
    session: str
    argv_digest: str
    log: str
    started: float
    log_offset: int = 0
    supervisor: int = 0
    children: tuple[Process, ...] = ()
    exit_status: int | None = None
    ended: float | None = None
    asked: bool = False
    cause: str = ""


@dataclass(frozen=True)
class Capacity:
    """What a running server can hold. `source` says where the figures come from: loads, server_info or log."""

    max_running: int
    kv_tokens: int | None = None
    mamba_slots: int | None = None
    source: str = "loads"


@dataclass(frozen=True)
class Load:
    """A moment of a running server, from its own endpoint."""

    running: int
    queued: int
    capacity: Capacity | None = None


@dataclass(frozen=True)
class OwnServer:
    """A server of ours as it stands now. `load` is None when it did not answer in time; `cause` is why it ended
    without being asked."""

    record: ServerRecord
    alive: bool
    living: tuple[Process, ...] = ()
    load: Load | None = None
    cause: str = ""


@dataclass(frozen=True)
class Stray:
    """A server process in this container that is not ours: started by hand, or left over."""

    process: Process
    command: str
    gpu_uuid: str | None = None
    port: int | None = None
    orphan: bool = False


@dataclass(frozen=True)
class OpenTurn:
    """One GPU that a restart or a stop was asked for and that hasn't ended well: in run/turns.json until another one
    does. `step` is the last one reached, WAITING before it was begun; `redo` the operator's command line, with {gpus}
    for the GPUs; `cause` why it ended, "" while it goes on; `working` whether its `worker` lives."""

    gpu: int
    step: str
    since: float
    redo: str
    cause: str = ""
    worker: Process | None = None
    working: bool = False


@dataclass(frozen=True)
class ServersState:
    own: tuple[OwnServer, ...] = ()
    strays: tuple[Stray, ...] = ()
    baseline_mib: dict[str, int] = field(default_factory=dict)
    wishes: dict[str, str] = field(default_factory=dict)
    turns: tuple[OpenTurn, ...] = ()


@dataclass(frozen=True)
class Start:
    """How to start one server. `tmux` is the whole command that makes the session; `script` replaces the file at
    `script_path` for this start (None: the deployed one is run). `nccl_port` None: not pinned."""

    port: int
    tmux: tuple[str, ...]
    record: str
    log: str
    script_path: str
    script: str | None = None
    nccl_port: int | None = None
    ready_timeout_s: float = 1800.0


@dataclass(frozen=True)
class ServerOrder:
    """One GPU's turn: stop what runs (main process first in `stop`), wait for its memory, start if `start` is set.

    `uuid` is "" for a GPU that nvidia-smi doesn't show: then there is no memory to wait for, and nothing can start."""

    gpu: int
    uuid: str
    url: str
    engine: str = "sglang"
    stop: tuple[Process, ...] = ()
    end_session: tuple[str, ...] = ()
    stop_timeout_s: float = 120.0
    memory_timeout_s: float = 60.0
    start: Start | None = None
    adopt: tuple[Process, ...] = ()


@dataclass(frozen=True)
class ServersRequest:
    """`secrets` are file contents by name, put on the tmpfs before anything starts; `at_once`: so many GPUs
    are out of service at a time (stopped, waiting for memory, starting, loading), 0: all. `redo`: see OpenTurn."""

    home: str
    orders: tuple[ServerOrder, ...]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    at_once: int = 0
    start_gap_s: float = 0.5
    redo: str = ""


@dataclass(frozen=True)
class Step:
    """Event `step`: where one GPU's order stands: draining, stopping, memory, port, starting, loading, ready, ..."""

    gpu: int
    step: str
    text: str = ""
    event: str = "step"


@dataclass(frozen=True)
class ServerResult:
    """Event `result`, once for every order. `step` is the last one reached; `cause` and `lines` explain a failure."""

    gpu: int
    ok: bool
    step: str
    seconds: float
    capacity: Capacity | None = None
    cause: str = ""
    lines: tuple[str, ...] = ()
    running: bool = False
    event: str = "result"


@dataclass(frozen=True)
class Probe:
    """Event `probe`: one server asked now. `healthy` means that it produced tokens just now."""

    url: str
    healthy: bool
    seconds: float
    text: str = ""
    load: Load | None = None
    event: str = "probe"


@dataclass(frozen=True)
class FlagFacts:
    """Event `flags`: what the installed engine of one interpreter knows. `options` has each long flag, without
    its dashes, with its choices (empty: any value); `bare` are flags that take no value."""

    python: str
    version: str
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bare: tuple[str, ...] = ()
    error: str = ""
    event: str = "flags"


@dataclass(frozen=True)
class ProbeRequest:
    """`urls` are asked for one real generation each; `pythons` for the flags that their engine knows."""

    home: str
    urls: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    env_script: str = ""
    engine: str = "sglang"
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Heartbeat:
    """Sent while nothing else happens: the road is open, the verb still waits."""

    waiting_for: str = ""
    event: str = "heartbeat"


def parse_record(text: str) -> dict[str, Any] | None:
    """A state file's JSON object, or None when it is torn or not one."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
