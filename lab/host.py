"""The Proxmox host on this machine: up, down, status. Its faults are in lab.trouble.

Real parts: OpenSSH's sshd, LXC containers, HTTPS. Stand-ins: pct (lab.pct), the PVE API (lab.api), GPUs, nvidia-smi,
SGLang. Everything lies in one state directory (lab.place) and one set of control groups (lab.cgroups), so that `down`
finds all of it, also after a run that was killed at any moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import certs, cgroups, container, layers, rootfs, sshd
from lab.packages import missing_packages
from lab.place import API_PORT, UNUSABLE_IN_PATHS, LabError, LabOptions, Place, place_of, read_place, write_record

__all__ = ["LabError", "LabOptions", "Place", "Status", "down", "status", "up"]

PCT = """import sys
sys.path.insert(0, sys.argv[1])
from lab.pct import main
sys.exit(main(*sys.argv[2:4], sys.argv[4:]))"""

API = """import sys
sys.path.insert(0, sys.argv[1])
from lab.api import main
main(sys.argv[2])"""


@dataclass(frozen=True, slots=True)
class Status:
    """What stands of a lab. `containers` maps a vmid to whether it runs."""

    place: Place
    sshd: bool
    plain_sshd: bool
    api: bool
    containers: dict[int, bool]

    @property
    def is_up(self) -> bool:
        return bool(self.containers) and all((self.sshd, self.plain_sshd, self.api, *self.containers.values()))

    @property
    def is_there(self) -> bool:
        """Something of the lab exists, running or not."""
        return self.place.state.exists() or bool(list(cgroups.groups(self.place)))

    def lines(self) -> list[str]:
        """For a screen, one fact a line."""
        words = {True: "running", False: "stopped"}
        return [
            f"lab        {'up' if self.is_up else 'down' if not self.is_there else 'broken: run lab.up or lab.down'}",
            f"sshd       {words[self.sshd]}  ssh -F {shlex.quote(str(self.place.ssh_config))} pve-lab",
            f"plain ssh  {words[self.plain_sshd]}  ssh -F {shlex.quote(str(self.place.ssh_config))} gpu-ssh",
            f"API        {words[self.api]}  {self.place.api_url}",
            *(f"CT {vmid}     {words[running]}" for vmid, running in self.containers.items()),
        ]


def up(root: Path, options: LabOptions | None = None, *, state: Path | None = None) -> Place:
    """Brings the lab of a checkout up; a running lab with the same options is left alone, a stopped part is started.

    `root` is bound read-only into the containers; `state` is ROOT/.lab unless given.
    LabError (exit code 4): not root, a program or a port is missing, or the lab is up with other options.
    """
    place, options = place_of(root, state), options or LabOptions()
    _check(place)
    with _locked(place):
        found = _options_of(place)
        if found is not None and found != options and cgroups.members(place):
            raise LabError(f"{place.state}: the lab is up with other options; take it down first (lab.down)")
        if found == options:
            _start(place, options)
            return place
        _clear(place)
        try:
            _build(place, options)
            _start(place, options)
        except BaseException:
            _clear(place)
            raise
    return place


def down(root: Path, *, state: Path | None = None) -> None:
    """Ends and removes everything of the lab of a checkout, whatever state it is in; nothing there is fine."""
    place = place_of(root, state)
    if os.geteuid() != 0:
        if place.state.exists():
            raise LabError("the lab runs as root; run lab.down as root too")
        return
    with _locked(place):
        _clear(place)


def status(root: Path, *, state: Path | None = None) -> Status:
    """What stands of the lab; works for any user."""
    place = place_of(root, state)
    options = _options_of(place)
    containers = {vmid: container.is_running(place, vmid) for vmid in options.vmids} if options else {}
    return Status(
        place,
        sshd=sshd.greets(place, sshd.HOST),
        plain_sshd=sshd.greets(place, sshd.PLAIN),
        api=_api_answers(place),
        containers=containers,
    )


def _check(place: Place) -> None:
    """Everything that can be known before anything is made."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root (LXC containers, sshd); run it as root, for example with sudo")
    if missing := missing_packages():
        raise LabError(f"the lab needs packages; run: apt-get install -y {' '.join(missing)}")
    for path in (place.checkout, place.state):
        if unusable := sorted(set(str(path)) & UNUSABLE_IN_PATHS):
            raise LabError(f"{path}: an overlay's path can't hold {' '.join(unusable)}; move the checkout")


def _options_of(place: Place) -> LabOptions | None:
    """The options of a whole lab; None where there is none, or only what a killed run or a reboot left of one."""
    try:
        options = read_place(place.state)[1]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return options if all((place.container(vmid) / "config").exists() for vmid in options.vmids) else None


@contextlib.contextmanager
def _locked(place: Place) -> Iterator[None]:
    """One up or down at a time; the nearest directory above the state is the lock, so that no lock file is left."""
    folder = next(path for path in place.state.parents if path.is_dir())
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _build(place: Place, options: LabOptions) -> None:
    """Makes the state directory; lab.json last."""
    place.state.mkdir(mode=0o700, parents=True)
    for name in ("bin", "home"):
        (place.state / name).mkdir()
    place.lock_dir.mkdir()
    layers.prepare(place)
    sshd.write_files(place, options.vmid)
    words = [str(rootfs.interpreter()), "-I", "-S", "-c", PCT, str(place.checkout), str(place.state)]
    pct = place.state / "bin/pct"
    pct.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "${{LC_CTYPE-}}" "$@"\n')
    pct.chmod(0o755)
    for vmid in options.vmids:
        rootfs.seed(place, vmid)
        container.write_config(place, vmid, options)
    certs.write_files(place)
    for path in (place.token, place.no_acl_token):
        path.touch(mode=0o600)
        path.write_text(f"{uuid.uuid4()}\n")
    write_record(place, options)


def _start(place: Place, options: LabOptions) -> None:
    for name in (sshd.HOST, sshd.PLAIN):
        sshd.start(place, name)
    for vmid in options.vmids:
        if not container.is_running(place, vmid):
            container.start(place, vmid, options)
    _start_api(place)


def _start_api(place: Place) -> None:
    if _api_answers(place):
        return
    cgroups.end(place, under="host/api")
    log = place.state / "api.log"
    words = (str(rootfs.interpreter()), "-I", "-S", "-c", API, str(place.checkout), str(place.state))
    sshd.daemon(place, "api", *words, log=log)
    deadline = time.monotonic() + 5
    while not _api_answers(place):
        reason = log.read_text().strip() if log.exists() else ""
        if "Error" in reason or time.monotonic() > deadline:
            raise LabError(f"the API doesn't listen on {place.api_url}: {reason or 'no reason given'}")
        time.sleep(0.01)


def _clear(place: Place) -> None:
    """Twice where needed: what a killed run was just starting may join the lab's groups a moment later."""
    for _ in range(3):
        cgroups.end(place)
        cgroups.remove(place)
        layers.remove(place)
        sshd.remove_privilege_separation(place)
        shutil.rmtree(place.state, ignore_errors=True)
        if not place.state.exists() and not list(cgroups.groups(place)):
            return
    raise LabError(f"{place.state}: can't be removed; see what is mounted in it")


def _api_answers(place: Place) -> bool:
    if not cgroups.members(place, "host/api"):
        return False
    with contextlib.suppress(OSError), socket.create_connection((place.address, API_PORT), timeout=2):
        return True
    return False
