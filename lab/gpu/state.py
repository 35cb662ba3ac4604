"""The GPUs' state on disk: what there is, and which living process holds how much memory.

    gpus.json             {"driver_version": ..., "gpus": [{"index", "uuid", "kind", "pci_bus_id"}, ...]}
    options.json          {"load_seconds", "release_seconds", "mean_tokens", "length_sigma", "speed"}
    claims/PID-START.json {"pid", "start_ticks", "uuid", "mib"}; START is field 22 of /proc/PID/stat
    activity/UUID.json    {"running", "cap", "pid", "start_ticks"}, written by the server that works on the GPU
    faults.json           see lab.faults

A claim counts while its process lives, and `release_seconds` longer from its death: the mtime of PID-START.gone, which
a witness of the death writes (`put_gone`), or else the first reader that sees it dead. A container's GPUs are one state
directory, /run/rackhand-lab; it is read inside the container, where the processes' ids are.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from lab.faults import faults_of
from lab.gpu.kinds import KINDS, Kind

DRIVER_VERSION = "580.95.05"
OPTIONS = {"load_seconds": 3.0, "release_seconds": 2.0, "mean_tokens": 150, "length_sigma": 0.0, "speed": 1.0}
"""`length_sigma` above 0 makes lengths log-normal, with a long tail.
`speed` divides every pause that isn't decoding: warm-up, drain polls, health waits."""


class Gpu(NamedTuple):
    """One simulated GPU of a state directory; `number` is its index."""

    number: int
    uuid: str
    kind: Kind
    pci_bus_id: str


def state_dir() -> Path:
    """The state directory of this process: RACKHAND_LAB_DIR, or the container's."""
    return Path(os.environ.get("RACKHAND_LAB_DIR", "/run/rackhand-lab"))


def write(directory: Path | str, count: int, kind: str, **options: float) -> None:
    """Makes a state directory with `count` GPUs of a kind of KINDS, all idle. `options` override OPTIONS.

    KeyError for an unknown kind, ValueError for an unknown option.
    """
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise ValueError(f"unknown lab options {sorted(unknown)}; there are {sorted(OPTIONS)}")
    root = Path(directory)
    for folder in (root / "claims", root / "activity"):
        folder.mkdir(parents=True, exist_ok=True)
    gpus = [
        {
            "index": i,
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'rackhand-lab/{KINDS[kind].key}/{i}')}",
            "kind": kind,
            "pci_bus_id": f"00000000:{0x01 + i * 0x10:02X}:00.0",
        }
        for i in range(count)
    ]
    _put_json(root / "options.json", {**OPTIONS, **options})
    _put_json(root / "gpus.json", {"driver_version": DRIVER_VERSION, "gpus": gpus})


def read_gpus(directory: Path) -> list[Gpu]:
    """The GPUs of a state directory, in index order. FileNotFoundError when it was never written."""
    found = json.loads((directory / "gpus.json").read_bytes())
    return [Gpu(g["index"], g["uuid"], KINDS[g["kind"]], g["pci_bus_id"]) for g in found["gpus"]]


def read_options(directory: Path) -> dict[str, Any]:
    """options.json over the defaults."""
    try:
        found = json.loads((directory / "options.json").read_bytes())
    except FileNotFoundError:
        found = {}
    return {**OPTIONS, **found}


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def put_claim(directory: Path, gpu_uuid: str, mib: int) -> None:
    """This process holds `mib` MiB of a GPU from now on, until it ends."""
    pid = os.getpid()
    started = start_ticks(pid)
    claim = {"pid": pid, "start_ticks": started, "uuid": gpu_uuid, "mib": mib}
    _put_json(directory / "claims" / f"{pid}-{started}.json", claim)


def put_gone(directory: Path, pid: int) -> None:
    """The process `pid` has just ended: its memory comes back `release_seconds` from now."""
    for claim in (directory / "claims").glob(f"{pid}-*.json"):
        claim.with_suffix(".gone").touch()


def put_activity(directory: Path, gpu_uuid: str, running: int, cap: int) -> None:
    """This process decodes `running` requests of at most `cap` on a GPU."""
    pid = os.getpid()
    activity = {"running": running, "cap": cap, "pid": pid, "start_ticks": start_ticks(pid)}
    _put_json(directory / "activity" / f"{gpu_uuid}.json", activity)


def observe_activity(directory: Path, gpu: Gpu) -> tuple[int, int]:
    """(running, cap) of the server on a GPU; (0, 0) when none lives."""
    try:
        found = json.loads((directory / "activity" / f"{gpu.uuid}.json").read_bytes())
    except FileNotFoundError:
        return 0, 0
    alive = start_ticks(found["pid"]) == found["start_ticks"]
    return (found["running"], found["cap"]) if alive else (0, 0)


def observe_used_mib(directory: Path, gpu: Gpu) -> int:
    """memory.used of a GPU in MiB: idle share and every claim that counts."""
    release_s = read_options(directory)["release_seconds"]
    kept = "memory_kept" in faults_of(directory, gpu.number)
    used = gpu.kind.memory_idle_mib
    for path in (directory / "claims").glob("*.json"):
        try:
            claim = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        if claim["uuid"] != gpu.uuid:
            continue
        if start_ticks(claim["pid"]) == claim["start_ticks"] or kept or not _released(path, release_s):
            used += claim["mib"]
    return min(used, gpu.kind.memory_total_mib - gpu.kind.memory_reserved_mib)


def observe_free_mib(directory: Path, gpu: Gpu) -> int:
    """memory.free of a GPU in MiB."""
    return gpu.kind.memory_total_mib - gpu.kind.memory_reserved_mib - observe_used_mib(directory, gpu)


def _released(claim: Path, release_s: float) -> bool:
    gone = claim.with_suffix(".gone")
    with contextlib.suppress(FileExistsError):
        gone.touch(exist_ok=False)
    try:
        seen_at = gone.stat().st_mtime
    except FileNotFoundError:
        return True
    if time.time() - seen_at < release_s:
        return False
    claim.unlink(missing_ok=True)
    gone.unlink(missing_ok=True)
    return True


def _put_json(path: Path, value: object) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    draft.replace(path)
