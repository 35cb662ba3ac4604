"""Where a lab lives: its files, its names and its addresses, all derived from the state directory.

    STATE/lab.json              options and addresses; written last, so that its presence means a whole lab
    STATE/ssh_config            aliases pve-lab (the Proxmox host) and gpu-ssh (plain SSH into the container)
    STATE/id_ed25519            the operator's key; known_hosts beside it
    STATE/pve-ca.pem, api-token the API's CA and the value of the token root@pam!rackhand
    STATE/pct-calls.jsonl       one line for each call of pct
    STATE/pve/VMID.conf         the containers' configuration, as Proxmox writes it
    STATE/lxc/VMID/             config, upper (the container's writable layer), workspace, gpu (the GPUs' state)

Two labs on one machine share nothing: address, control groups and names come from a digest of the state's path.
Named tuples, since every call of pct loads this module and dataclasses alone would cost it 10 ms.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

NODE = "pve-lab"
SSH_ALIAS = "pve-lab"
PLAIN_SSH_ALIAS = "gpu-ssh"
TOKEN_ID = "root@pam!rackhand"  # noqa: S105 -- the name of the token, not its value
NO_ACL_TOKEN_ID = "root@pam!noacl"  # noqa: S105
API_PORT = 8006
SSH_PORT = 22022
PLAIN_SSH_PORT = 22023
UNUSABLE_IN_PATHS = frozenset(":,\\\"'$#\n\t")


class LabError(Exception):
    """The lab can't be; one line that says where, what and what next. Nothing of the lab was left running."""

    exit_code = 4


class LabOptions(NamedTuple):
    """What the lab plays. Times are seconds; None leaves the simulation's own default.

    `gpus` of `gpu_kind` are in every container, `vmid` and `more_vmids`. `pct_delay_s` is added to every pct call
    (a real one takes 0.75-1.06 s). `load_seconds`: a server's start; `release_seconds`: how long memory stays after
    its process; `mean_tokens`: of a completion, `length_sigma`: of its log-normal length (0: evenly spread);
    `speed` divides the pauses of servers that aren't decoding.
    `disk_mib` makes /workspace a file system of that size, `read_only_workspace` one that refuses writes.
    """

    gpus: int = 8
    gpu_kind: str = "rtx-pro-6000"
    pct_delay_s: float = 0.0
    vmid: int = 200
    more_vmids: tuple[int, ...] = ()
    load_seconds: float | None = None
    release_seconds: float | None = None
    mean_tokens: float | None = None
    length_sigma: float | None = None
    speed: float | None = None
    disk_mib: int | None = None
    read_only_workspace: bool = False

    @property
    def vmids(self) -> tuple[int, ...]:
        return (self.vmid, *self.more_vmids)

    @property
    def simulation(self) -> dict[str, float]:
        """What was asked of the simulated GPUs and servers."""
        asked = {
            "load_seconds": self.load_seconds,
            "release_seconds": self.release_seconds,
            "mean_tokens": self.mean_tokens,
            "length_sigma": self.length_sigma,
            "speed": self.speed,
        }
        return {name: value for name, value in asked.items() if value is not None}


class Place(NamedTuple):
    """A lab's paths and names. `checkout` is bound read-only into the containers; `state` is absolute."""

    checkout: Path
    state: Path

    @property
    def digest(self) -> str:
        """Ten hex digits that name this lab on this machine."""
        import hashlib

        return hashlib.sha256(str(self.state).encode()).hexdigest()[:10]

    @property
    def address(self) -> str:
        """An address of 127.0.0.0/8 that no other lab on this machine has, short of a collision of digests."""
        a, b, c = bytes.fromhex(self.digest)[:3]
        return f"127.{1 + a % 254}.{b}.{1 + c % 254}"

    @property
    def cgroup(self) -> str:
        return f"rackhand-lab-{self.digest}"

    @property
    def lxc_path(self) -> Path:
        return self.state / "lxc"

    @property
    def lock_dir(self) -> Path:
        return self.state / "lock"

    @property
    def record(self) -> Path:
        return self.state / "lab.json"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    @property
    def ca(self) -> Path:
        return self.state / "pve-ca.pem"

    @property
    def token(self) -> Path:
        return self.state / "api-token"

    @property
    def no_acl_token(self) -> Path:
        return self.state / "api-token-noacl"

    @property
    def pct_calls(self) -> Path:
        return self.state / "pct-calls.jsonl"

    @property
    def api_url(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    def conf(self, vmid: int) -> Path:
        return self.state / "pve" / f"{vmid}.conf"

    def container(self, vmid: int) -> Path:
        return self.lxc_path / str(vmid)

    def upper(self, vmid: int) -> Path:
        return self.container(vmid) / "upper"

    def workspace(self, vmid: int) -> Path:
        """The container's /workspace, seen from this machine (not when `disk_mib` is set)."""
        return self.container(vmid) / "workspace"

    def gpu_dir(self, vmid: int) -> Path:
        """The container's /run/rackhand-lab, seen from this machine."""
        return self.container(vmid) / "gpu"


def place_of(root: Path, state: Path | None = None) -> Place:
    """The lab of a checkout: in ROOT/.lab, or in `state` for one that must not disturb the operator's."""
    checkout = root.resolve()
    return Place(checkout, (state or checkout / ".lab").absolute())


def read_place(state: Path) -> tuple[Place, LabOptions]:
    """What lab.json says. FileNotFoundError when there is no whole lab."""
    found: dict[str, Any] = json.loads((state / "lab.json").read_text())
    options = found["options"]
    options["more_vmids"] = tuple(options["more_vmids"])
    return Place(Path(found["checkout"]), state), LabOptions(**options)


def write_record(place: Place, options: LabOptions) -> None:
    record = {
        "checkout": str(place.checkout),
        "address": place.address,
        "api_url": place.api_url,
        "node": NODE,
        "options": options._asdict(),
    }
    temporary = place.record.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(place.record)
