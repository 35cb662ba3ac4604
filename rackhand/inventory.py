"""What the operator wants, as frozen data: Fleet, Host, ServerSpec, Server, Job. No I/O.

`load.py` makes these from YAML; everything else only reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from rackhand.arguments import NO_VALUES
from rackhand.arguments import FlagValue as FlagValue  # noqa: PLC0414
from rackhand.arguments import parse_overrides as parse_overrides  # noqa: PLC0414
from rackhand.clashes import clashes
from rackhand.command import Argv
from rackhand.errors import PreconditionError, UsageError, nearest


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret comes from; never the secret itself. Exactly one of `env` and `command` is set.

    `cwd` is where the command runs: the inventory's directory.
    """

    env: str | None = None
    command: Argv | None = None
    cwd: Path | None = None

    def __str__(self) -> str:
        return f"${self.env}" if self.env else f"output of {' '.join(self.command or ())}"


@dataclass(frozen=True, slots=True)
class Api:
    """The PVE API of a Proxmox host. `url` None means https://<HostName of the SSH destination>:8006.

    The certificate is verified against `ca` (a PEM file), the SHA-256 `fingerprint` (colon-separated hex),
    or, with neither, the system's CAs; verification is never skipped.
    """

    token_id: str
    token: SecretRef
    url: str | None = None
    ca: Path | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Ssh:
    """An SSH destination (`user@host`, `host:port` is not one) or an ssh_config alias, resolved by `ssh -G`.

    `host_keys`: strict refuses unknown keys, accept-new records them; a changed key is always refused.
    """

    destination: str
    config: Path | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"
    connect_timeout_s: float = 15.0


@dataclass(frozen=True, slots=True)
class ProxmoxLxc:
    ssh: Ssh
    vmid: int
    api: Api | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class PlainSsh:
    ssh: Ssh


Road = ProxmoxLxc | PlainSsh


@dataclass(frozen=True, slots=True)
class Env:
    """Environment of servers and generator: `source` (an existing script in the container) first, then `variables`."""

    variables: Mapping[str, str | SecretRef] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, slots=True)
class FileSpec:
    """A file of the user's: local `src` to absolute container path `dest`; `template` renders it with Jinja2."""

    src: Path
    dest: str
    mode: int = 0o644
    template: bool = False


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server on each of `gpus` (None: on each GPU of the host); `port` and `nccl_port` need a single GPU."""

    model: str
    engine: str = "sglang"
    version: str | None = None
    python: str = "python3"
    args: Mapping[str, FlagValue] = field(default_factory=dict)
    gpus: tuple[int, ...] | None = None
    port: int | None = None
    port_base: int = 30000
    nccl_port: int | None = None
    nccl_port_base: int = 40000
    session_prefix: str = "sglang-gpu"
    log_dir: str | None = None
    api_key: SecretRef | None = None
    ready_timeout_s: float = 1800.0
    stop_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server on one GPU, everything settled. `url` has no /v1 at its end."""

    host: str
    gpu: int
    spec: ServerSpec
    args: Mapping[str, FlagValue]

    @property
    def port(self) -> int:
        return self.spec.port_base + self.gpu if self.spec.port is None else self.spec.port

    @property
    def nccl_port(self) -> int:
        return self.spec.nccl_port_base + self.gpu if self.spec.nccl_port is None else self.spec.nccl_port

    @property
    def session(self) -> str:
        return f"{self.spec.session_prefix}{self.gpu}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Job:
    """A prompts file that becomes completions on one host.

    `prompts` is a path in the container, or `upload` a local file that deploy and resume bring there;
    `concurrency` is requests in flight per server, or "auto": the effective capacity of each. `quality` is default,
    off or JSON; `columns`, `keep` and `last_assistant` say how rows are read.
    """

    name: str
    host: str
    output: str
    prompts: str
    upload: Path | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    concurrency: int | Literal["auto"] = "auto"
    model: str | None = None
    session: str = "gen"
    quality: str = "default"
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    last_assistant: Literal["drop", "continue"] = "drop"
    compress: Literal["zstd"] | None = None
    object_store: str | None = None
    delete_local_after_upload: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """A measured rate to compare with: tokens per second of a whole machine, and the share expected of it."""

    name: str
    tok_s: float
    expected_share: float | None = None


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    road: Road
    workspace: str = "/workspace"
    gpus: tuple[int, ...] | None = None
    python: str | None = None
    env: Env = field(default_factory=Env)
    files: tuple[FileSpec, ...] = ()
    servers: tuple[ServerSpec, ...] = ()
    put: Literal["stream", "push"] = "stream"

    @property
    def where(self) -> str:
        """The name in every message: `pve1/ct200` for a container, `b200` for a plain host."""
        return f"{self.name}/ct{self.road.vmid}" if isinstance(self.road, ProxmoxLxc) else self.name

    @property
    def home(self) -> str:
        """The directory in the container that is rackhand's own: {workspace}/rackhand."""
        return f"{self.workspace.rstrip('/')}/rackhand"

    @property
    def log_dir(self) -> str:
        return f"{self.workspace.rstrip('/')}/sglang_logs"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A whole inventory; `path` is the file it came from."""

    path: Path
    hosts: tuple[Host, ...]
    jobs: tuple[Job, ...] = ()
    baselines: tuple[Baseline, ...] = ()

    def host(self, name: str) -> Host:
        """The host of that name. UsageError with the nearest name otherwise."""
        return _named(name, self.hosts, "host", self.path)

    def select(self, hosts: str | None = None) -> tuple[Host, ...]:
        """The hosts named in `a,b`, in the inventory's order; None: all. UsageError on a wrong or empty name."""
        if hosts is None:
            return self.hosts
        names = [name.strip() for name in hosts.split(",")]
        if not all(names):
            raise UsageError(f"--hosts {hosts!r} holds an empty name", hint="is a shell variable unset?")
        wanted = {self.host(name).name for name in names}
        return tuple(host for host in self.hosts if host.name in wanted)

    def jobs_on(self, host: Host) -> tuple[Job, ...]:
        return tuple(job for job in self.jobs if job.host == host.name)

    def job(self, name: str | None = None) -> Job:
        """The job of that name, or the only one there is. UsageError otherwise."""
        if name is not None:
            return _named(name, self.jobs, "job", self.path)
        if len(self.jobs) == 1:
            return self.jobs[0]
        if not self.jobs:
            raise UsageError("there is no job", where=str(self.path), hint="add one under jobs:")
        raise UsageError(
            "there are several jobs",
            where=str(self.path),
            hint=f"choose with --job: {', '.join(job.name for job in self.jobs)}",
        )


Named = Host | Job | Baseline
T = TypeVar("T", Host, Job, Baseline)


def _named(name: str, among: Sequence[T], kind: str, path: Path) -> T:
    for item in among:
        if item.name == name:
            return item
    raise UsageError(f"no {kind} {name!r}", where=str(path), hint=nearest(name, [item.name for item in among]))


def servers_of(
    host: Host,
    gpu_indices: Iterable[int],
    *,
    gpus: Collection[int] | None = None,
    overrides: Mapping[str, FlagValue] = NO_VALUES,
) -> tuple[Server, ...]:
    """One Server for each GPU that the host's specs cover, by GPU index.

    `gpu_indices` are the GPUs that were seen there; `gpus` keeps some of them (`--gpus`); `overrides` win over the
    spec's args (`--set`). PreconditionError when a wanted GPU that the inventory lists wasn't seen, UsageError when
    `gpus` names one without a server or two servers would share a port.
    """
    seen = sorted(set(gpu_indices))
    if absent := sorted(gpu for gpu in listed_gpus(host) - {*seen} if gpus is None or gpu in gpus):
        raise PreconditionError(
            f"GPU {_numbers(absent)} not found: nvidia-smi shows {_numbers(seen) or 'none'}",
            where=host.where,
            hint=f"correct gpus of hosts.{host.name} or look at the driver",
        )
    servers = expand(host, seen, overrides)
    for clash in clashes(servers):
        raise UsageError(str(clash), where=host.where, hint="give each server its own")
    if gpus is not None and (without := sorted({*gpus} - {server.gpu for server in servers})):
        raise UsageError(
            f"no server on GPU {_numbers(without)}",
            where=host.where,
            hint=f"there is: {_numbers(s.gpu for s in servers)}",
        )
    return tuple(server for server in servers if gpus is None or server.gpu in gpus)


def listed_gpus(host: Host) -> frozenset[int]:
    """The GPUs that the inventory names, whether they are there or not."""
    return frozenset(gpu for some in (host.gpus, *(spec.gpus for spec in host.servers)) for gpu in some or ())


def expand(
    host: Host, gpu_indices: Iterable[int], overrides: Mapping[str, FlagValue] = NO_VALUES
) -> tuple[Server, ...]:
    """The specs over their GPUs, unchecked: a spec's own list, else the host's, else `gpu_indices`."""
    every = tuple(gpu_indices) if host.gpus is None else host.gpus
    servers = (
        Server(host=host.name, gpu=gpu, spec=spec, args={**spec.args, **overrides})
        for spec in host.servers
        for gpu in (every if spec.gpus is None else spec.gpus)
    )
    return tuple(sorted(servers, key=lambda server: server.gpu))


def _numbers(gpus: Iterable[int]) -> str:
    return ", ".join(map(str, gpus))
