"""Faults of the Proxmox host, on request: a frozen or cut SSH, a frozen, stopped or locked container, a full disk."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

from lab import cgroups, container, pve, sshd
from lab.place import LabError, Place


def freeze_sshd(place: Place) -> None:
    """The host answers nothing more, but no connection ends: SIGSTOP to sshd, its sessions and what they run."""
    cgroups.signal_members(place, signal.SIGSTOP, under=f"host/{sshd.HOST}")


def thaw_sshd(place: Place) -> None:
    cgroups.signal_members(place, signal.SIGCONT, under=f"host/{sshd.HOST}")


@contextlib.contextmanager
def frozen_sshd(place: Place) -> Iterator[None]:
    freeze_sshd(place)
    try:
        yield
    finally:
        thaw_sshd(place)


def cut_ssh(place: Place) -> None:
    """Every connection to the host breaks, what ran in it stays running; new connections are accepted."""
    sshd.cut(place)


def stop_sshd(place: Place) -> None:
    """The host refuses connections. `lab.sshd.start(place, lab.sshd.HOST)` brings it back."""
    cgroups.end(place, under=f"host/{sshd.HOST}")


def change_host_key(place: Place) -> None:
    """Known hosts hold another key than the server's, as after a reinstalled host or with somebody in between."""
    other = place.state / "other_key"
    other.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    key = other.with_suffix(".pub").read_text().split()[1]
    lines = [line.split() for line in (place.state / "known_hosts").read_text().splitlines()]
    (place.state / "known_hosts").write_text("".join(f"{name} {kind} {key}\n" for name, kind, _ in lines))


def restore_host_key(place: Place) -> None:
    sshd.write_known_hosts(place)


def print_at_login(place: Place, text: str | None = "echo Welcome to pve-lab") -> None:
    """root's shell on the Proxmox host runs this first, as a ~/.bashrc that prints; None ends it. sshd starts its
    sftp-server through that shell too."""
    file = place.state / "home/.bashrc"
    if text is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(f"{text}\n")


def freeze_container(place: Place, vmid: int) -> None:
    """Everything in the container stops; `pct exec` hangs."""
    _lxc(place, "freeze", vmid)


def thaw_container(place: Place, vmid: int) -> None:
    _lxc(place, "unfreeze", vmid)


def _lxc(place: Place, command: str, vmid: int) -> None:
    done = container.lxc(place, command, vmid)
    if done.returncode:
        raise LabError(f"lxc-{command} of container {vmid} fails: {done.stderr.strip()}")


def stop_container(place: Place, vmid: int) -> None:
    """As `pct stop`: everything in it is killed."""
    container.stop(place, vmid)


def lock_container(place: Place, vmid: int, reason: str = "backup") -> None:
    """What a running backup or snapshot leaves in the configuration: start, stop and shutdown refuse, exec doesn't."""
    pve.put_lock(place, vmid, reason)


def unlock_container(place: Place, vmid: int) -> None:
    pve.put_lock(place, vmid, None)


def warn_at_start(place: Place, vmid: int, text: str = "old systemd (< v232) detected") -> None:
    """Every start of the container warns and succeeds: pct says so on stderr, a task ends with `WARNINGS: 1`."""
    pve.put_start_warning(place, vmid, text)


def set_workspace_access(place: Place, vmid: int, *, read_only: bool) -> None:
    """Makes /workspace of a running container refuse writes, or take them again."""
    _remount(place, vmid, "ro" if read_only else "rw")


def set_workspace_noexec(place: Place, vmid: int, *, noexec: bool) -> None:
    """Makes /workspace of a running container run no program of its files and map no library, or do so again."""
    _remount(place, vmid, "noexec" if noexec else "exec")


def _remount(place: Place, vmid: int, option: str) -> None:
    pid = container.init_pid(place, vmid)
    if pid is None:
        raise LabError(f"container {vmid} isn't running")
    argv = ["nsenter", "-t", str(pid), "-m", "mount", "-o", f"remount,bind,{option}", "/workspace"]
    subprocess.run(argv, check=True, capture_output=True)


def mend(place: Place, vmid: int) -> None:
    """Ends freezes, locks and a changed host key; `lab.host.up` starts what was stopped."""
    cgroups.thaw(place)
    thaw_sshd(place)
    unlock_container(place, vmid)
    pve.put_start_warning(place, vmid, None)
    restore_host_key(place)
    print_at_login(place, None)
