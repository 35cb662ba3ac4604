"""What the operator wants, as frozen data: Fleet, Host, ServerSpec, Server, Job. No I/O.

`load.py` makes these from YAML; everything else only reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from rackhand.command import Argv

FlagValue = str | int | float | bool | tuple[str | int | float, ...]
"""A server flag's value. True is a bare flag, False leaves it out, a tuple repeats the words after the flag."""

NO_VALUES: Mapping[str, FlagValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret comes from; never the secret itself. Exactly one of the two is set."""

    env: str | None = None
    command: Argv | None = None

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
    """One server a GPU. A GPU's port is `port` if it is set for a single GPU, else port_base + GPU index."""

    model: str
    engine: str = "sglang"
    version: str | None = None
    python: str = "python3"
    args: Mapping[str, FlagValue] = NO_VALUES
    gpus: tuple[int, ...] | None = None
    port_base: int = 30000
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
        return self.spec.port_base + self.gpu

    @property
    def nccl_port(self) -> int:
        return self.spec.nccl_port_base + self.gpu

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
    `concurrency` is requests in flight per server, or "auto": the effective capacity of each.
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


@dataclass(frozen=True, slots=True)
class Baseline:
    """A measured rate to compare with: tokens per second of a whole machine, and the share expected of it."""

    name: str
    tokens_per_s: float
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
