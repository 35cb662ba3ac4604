"""Containers of the lab: real LXC over an overlay of this machine's root. Configuration, start, stop, state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from lab.place import LabError, LabOptions, Place

PVE_CONF = """\
arch: amd64
cores: 16
hostname: gpu{vmid}
memory: 131072
onboot: 1
ostype: debian
rootfs: local-zfs:subvol-{vmid}-disk-0,size=400G
swap: 0
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 510:* rwm
"""


def write_config(place: Place, vmid: int, options: LabOptions) -> None:
    """LXC's configuration, and what `pct config` shows of it."""
    from lab.rootfs import INIT

    group = place.cgroup
    lines = [
        "lxc.include = /usr/share/lxc/config/common.conf",
        f"lxc.rootfs.path = overlayfs:/:{place.upper(vmid)}",
        "lxc.apparmor.profile = unconfined",
        "lxc.net.0.type = empty",
        f"lxc.uts.name = gpu{vmid}",
        f"lxc.init.cmd = {INIT}",
        f"lxc.cgroup.dir.container = {group}/ct/{vmid}",
        f"lxc.cgroup.dir.monitor = {group}/monitor/{vmid}",
        f"lxc.cgroup.dir.monitor.pivot = {group}/pivot",
        *(f"lxc.mount.entry = {entry}" for entry in _mount_entries(place, vmid, options)),
    ]
    (place.container(vmid) / "config").write_text("\n".join(lines) + "\n")
    place.conf(vmid).parent.mkdir(exist_ok=True)
    place.conf(vmid).write_text(PVE_CONF.format(vmid=vmid))


def _mount_entries(place: Place, vmid: int, options: LabOptions) -> list[str]:
    """In the order in which they are mounted: a later one may cover part of an earlier one."""
    from lab.rootfs import read_only_paths

    entries = [
        "tmpfs run tmpfs rw,nosuid,nodev,mode=755,create=dir 0 0",
        "tmpfs dev/shm tmpfs rw,nosuid,nodev,mode=1777,create=dir 0 0",
        f"{_escaped(place.gpu_dir(vmid))} run/rackhand-lab none bind,create=dir 0 0",
    ]
    entries.extend(
        f"{_escaped(path)} {_escaped(path).lstrip('/')} none bind,ro,create=dir 0 0" for path in read_only_paths(place)
    )
    states = [path for path in {place.state, place.checkout / ".lab"} if path.is_relative_to(place.checkout)]
    entries.extend(
        f"tmpfs {_escaped(path).lstrip('/')} tmpfs ro,mode=755,optional 0 0" for path in states if path.is_dir()
    )
    if options.disk_mib:
        entries.append(f"tmpfs workspace tmpfs rw,mode=755,size={options.disk_mib}m,create=dir 0 0")
    else:
        access = "ro" if options.read_only_workspace else "rw"
        entries.append(f"{_escaped(place.workspace(vmid))} workspace none bind,{access},create=dir 0 0")
    return entries


def _escaped(path: Path) -> str:
    """A path as fstab writes it."""
    return str(path).replace(" ", "\\040")


def lxc(
    place: Place, command: str, vmid: int, *words: str, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Runs lxc-COMMAND on a container."""
    argv = [f"lxc-{command}", "-P", str(place.lxc_path), "-n", str(vmid), *words]
    return subprocess.run(
        argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
    )


def init_pid(place: Place, vmid: int) -> int | None:
    """The container's PID 1 as this machine sees it; None when it isn't running."""
    answer = lxc(place, "info", vmid, "-p", "-H").stdout.strip()
    return int(answer) if answer.isdigit() else None


def is_running(place: Place, vmid: int) -> bool:
    return init_pid(place, vmid) is not None


def start(place: Place, vmid: int, options: LabOptions) -> None:
    """Starts a stopped container with all its GPUs idle; returns when it runs. LabError says why it doesn't."""
    _reset_gpus(place, vmid, options)
    log = place.container(vmid) / "lxc.log"
    log.unlink(missing_ok=True)
    done = _lxc_start(place, vmid, log)
    if done.returncode or not is_running(place, vmid):
        reasons = (log.read_text() if log.exists() else "") + done.stderr
        first = next((line for line in reasons.splitlines() if "ERROR" in line), reasons.strip() or "no reason given")
        raise LabError(f"container {vmid} doesn't start: {first}")


def _lxc_start(place: Place, vmid: int, log: Path) -> subprocess.CompletedProcess[str]:
    """From a group of the lab, so that it is found should this process be killed meanwhile."""
    from lab import cgroups

    script = 'echo $$ >"$1/cgroup.procs" || exit 1; shift; exec "$@"'
    start = ["lxc-start", "-P", str(place.lxc_path), "-n", str(vmid), "-o", str(log), "-l", "WARN"]
    argv = ["/bin/sh", "-c", script, "sh", str(cgroups.leaf(place, "lxc")), *start]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


def _reset_gpus(place: Place, vmid: int, options: LabOptions) -> None:
    """A fresh start of the container holds no GPU memory; faults that were asked for stay."""
    import shutil

    from lab.gpu import state

    for name in ("claims", "activity"):
        shutil.rmtree(place.gpu_dir(vmid) / name, ignore_errors=True)
    state.write(place.gpu_dir(vmid), options.gpus, options.gpu_kind, **options.simulation)


def stop(place: Place, vmid: int) -> None:
    """Ends a container at once, frozen or not, with everything in it."""
    from lab import cgroups

    if pid := init_pid(place, vmid):
        cgroups.thaw(place)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await_stopped(place, vmid, timeout_s=10)


def shutdown(place: Place, vmid: int, *, timeout_s: float, force: bool = False) -> bool:
    """Asks the container's init to end; True when it did in time. `force` kills it then."""
    done = lxc(place, "stop", vmid, "--nokill", "-t", str(max(1, int(timeout_s))), timeout_s=timeout_s + 30)
    if done.returncode == 0 and await_stopped(place, vmid, timeout_s=5):
        return True
    if force:
        stop(place, vmid)
    return force


def await_stopped(place: Place, vmid: int, *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_running(place, vmid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def attach_argv(place: Place, vmid: int, *words: str, keep_env: bool = True) -> tuple[str, ...]:
    """What `pct exec` becomes."""
    env = "--keep-env" if keep_env else "--clear-env"
    return ("lxc-attach", "-P", str(place.lxc_path), "-n", str(vmid), env, "--", *words)
