"""The verbs `observe` and `receive`: what is asked of a container, what it answers, what it is sent."""

from __future__ import annotations

import dataclasses

from rackhand.contract.job import JobState
from rackhand.contract.servers import ServersState

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
MODULES = ("aiohttp",)
"""What the generator can't do without."""
FASTER = ("orjson", "uvloop")
"""What it uses when present."""
TEXT_LIMIT = 64 * 1024
"""Bytes up to which a text file comes back whole, for a diff."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """{home}/manifest.json, written last: what rackhand put into the container, and who did. `files` by absolute path;
    an older rackhand wrote no `owner`."""

    files: dict[str, ManifestEntry]
    venv: str | None = None
    version: int = MANIFEST_VERSION
    owner: Owner | None = None


@dataclasses.dataclass(frozen=True)
class Owner:
    """Whose files these are: the inventory's name, the host's name in it, its jobs' outputs there; who deployed them
    last, from which machine, and when (UTC, ISO 8601)."""

    inventory: str
    host: str
    outputs: tuple[str, ...] = ()
    user: str = ""
    machine: str = ""
    time: str = ""

    def __str__(self) -> str:
        who = f" by {self.user}@{self.machine}" if self.user or self.machine else ""
        when = f" at {self.time}" if self.time else ""
        return f"inventory {self.inventory}, deployed{who}{when}"

    def is_other_than(self, mine: Owner) -> bool:
        """Whether these are another's files than those that `mine` would put there.

        Of the same name, the same host and a job output in common it is the same inventory, in whatever checkout, on
        whatever machine; so it is when the same person changed the outputs.
        """
        if (self.inventory, self.host) != (mine.inventory, mine.host):
            return True
        is_same_person = (self.user, self.machine) == (mine.user, mine.machine)
        shares = not self.outputs or not mine.outputs or bool({*self.outputs} & {*mine.outputs})
        return not (is_same_person or shares)


@dataclasses.dataclass(frozen=True)
class ManifestEntry:
    sha256: str
    mode: int


@dataclasses.dataclass(frozen=True)
class Upload:
    """A big file of the user's, known by size and time of change: hashed only when the size is as expected."""

    size: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True)
class ObserveRequest:
    """`files` are looked at, and those of the old manifest without being named; `texts` asks for small ones whole.

    `python` None means the virtual environment that deploy makes. `commands` are run as they stand, each with a
    time limit. `servers` asks what servers run, `outputs` what stands at jobs' outputs.
    """

    home: str
    workspace: str
    files: tuple[str, ...] = ()
    texts: bool = False
    uploads: dict[str, Upload] = dataclasses.field(default_factory=dict)
    source: str | None = None
    python: str | None = None
    modules: tuple[str, ...] = ()
    commands: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    servers: bool = False
    outputs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Platform:
    """The interpreter that runs the verb: version such as 3.11.2, machine such as x86_64, libc such as glibc 2.36."""

    python: str
    executable: str
    machine: str
    libc: str
    implementation: str = "cpython"


@dataclasses.dataclass(frozen=True)
class Workspace:
    """`problem` is the system's text when a file can't be made there, e.g. Read-only file system. `noexec`: the mount
    under rackhand's own directory lets no program or library of its files run."""

    exists: bool
    free_bytes: int = 0
    problem: str | None = None
    noexec: bool = False


@dataclasses.dataclass(frozen=True)
class FileState:
    """A file that is there. `sha256` is "" for an upload whose size already differs; `text` is for a diff."""

    sha256: str
    mode: int
    size: int
    mtime_ns: int
    text: str | None = None


@dataclasses.dataclass(frozen=True)
class Environment:
    """What `source` sets. `problem`: its script is missing or failed."""

    cuda_home: str | None = None
    library_paths: int = 0
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """The interpreter of the generator. `modules`: version by name, "" without one, null where the import fails."""

    python: str
    found: bool
    modules: dict[str, str | None] = dataclasses.field(default_factory=dict)
    venv: str | None = None


@dataclasses.dataclass(frozen=True)
class CommandState:
    """`status` is null when the program is missing (127 is a shell's own word for that) or ran out of time."""

    status: int | None
    stdout: str
    stderr: str


@dataclasses.dataclass(frozen=True)
class ObserveReply:
    """`servers` is null when it wasn't asked; `jobs` has a state for each of the request's outputs, in their order."""

    platform: Platform
    workspace: Workspace
    interpreter: Interpreter
    environment: Environment
    manifest: str | None = None
    files: dict[str, FileState] = dataclasses.field(default_factory=dict)
    commands: dict[str, CommandState] = dataclasses.field(default_factory=dict)
    servers: ServersState | None = None
    jobs: tuple[JobState, ...] = ()


@dataclasses.dataclass(frozen=True)
class Incoming:
    """One file of the body, in order. `mtime_ns` is set for uploads, and known again by it."""

    path: str
    size: int
    sha256: str
    mode: int
    mtime_ns: int | None = None


@dataclasses.dataclass(frozen=True)
class Wheels:
    """A virtual environment to make: `files` follow the other files in the body, their paths are wheel names."""

    digest: str
    python: str
    files: tuple[Incoming, ...]
    modules: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ReceiveRequest:
    """The body is the bytes of `files`, then of `wheels.files`, then of `manifest`; with `staged` it stands in that
    file instead, which is removed in any case.

    All or nothing: temporary files beside their targets, checked, then renamed, the manifest last; missing parent
    directories are made, but not the workspace itself. `remove` are files of the old manifest.
    """

    home: str
    workspace: str
    files: tuple[Incoming, ...] = ()
    manifest: Incoming | None = None
    remove: tuple[str, ...] = ()
    wheels: Wheels | None = None
    staged: str | None = None


@dataclasses.dataclass(frozen=True)
class ReceiveReply:
    """What was done; `size` is the bytes of the files written."""

    written: int
    removed: int
    size: int
