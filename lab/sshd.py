"""The lab's two SSH servers: the Proxmox host's, and one that lands inside the container.

Both are OpenSSH's sshd with keys of their own on the lab's loopback address. The second one plays a GPU machine that is
reached by plain SSH; what is simulated there: the container has no network, so the server runs on this machine and its
ForceCommand carries every command (SFTP too) into the container with lxc-attach.

HOME on the host is an empty directory of the lab, so that the shell files of this machine's root change nothing; pct
says HOME=/root, as on a real host.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from lab import cgroups, container
from lab.place import NODE, PLAIN_SSH_ALIAS, PLAIN_SSH_PORT, SSH_ALIAS, SSH_PORT, LabError, Place

HOST, PLAIN = "sshd", "plain-sshd"
PORTS = {HOST: SSH_PORT, PLAIN: PLAIN_SSH_PORT}
PRIVILEGE_SEPARATION = Path("/run/sshd")
MADE_BY_A_LAB = "made-by-rackhand-lab"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIG = """\
ListenAddress {address}:{port}
HostKey "{state}/ssh_host_ed25519_key"
PidFile "{state}/{name}.pid"
AuthorizedKeysFile "{escaped}/authorized_keys"
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
X11Forwarding no
PrintMotd no
PrintLastLog no
MaxSessions 10
MaxStartups 64:30:128
AcceptEnv LANG LC_*
"""

SFTP = "Subsystem sftp /usr/lib/openssh/sftp-server\n"
"""Debian's and Proxmox's: sshd starts it through the login shell."""

CLIENT = """\
Host {alias}
  HostName {address}
  Port {port}
  User root
  IdentityFile "{escaped}/id_ed25519"
  UserKnownHostsFile "{escaped}/known_hosts"
  IdentitiesOnly yes
  BatchMode yes
"""


def write_files(place: Place, vmid: int) -> None:
    """Keys, known_hosts, server and client configuration, and the commands the servers need."""
    state, escaped = place.state, str(place.state).replace("%", "%%")
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        if not (state / name).exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", SSH_ALIAS, "-f", str(state / name)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(state / "id_ed25519.pub", state / "authorized_keys")
    write_known_hosts(place)
    extra = {
        HOST: f'{SFTP}SetEnv "PATH={state}/bin:{SYSTEM_PATH}" "HOME={state}/home"\n',
        PLAIN: f"{SFTP}ForceCommand {shlex.quote(str(state / 'bin/enter'))}\n",
    }
    for name, port in PORTS.items():
        text = CONFIG.format(address=place.address, port=port, state=state, escaped=escaped, name=name)
        (state / f"{name}.conf").write_text(text + extra[name])
    aliases = {SSH_ALIAS: PORTS[HOST], PLAIN_SSH_ALIAS: PORTS[PLAIN]}
    clients = [
        CLIENT.format(alias=alias, address=place.address, port=port, escaped=escaped) for alias, port in aliases.items()
    ]
    place.ssh_config.write_text(f"# Node {NODE} of the rackhand lab; written by lab.up, removed by lab.down\n")
    with place.ssh_config.open("a") as file:
        file.write("\n".join(clients))
    _write_enter(place, vmid)


def write_known_hosts(place: Place) -> None:
    """The servers' true key, for both ports."""
    kind, key = (place.state / "ssh_host_ed25519_key.pub").read_text().split()[:2]
    known = [f"[{place.address}]:{port} {kind} {key}\n" for port in PORTS.values()]
    (place.state / "known_hosts").write_text("".join(known))


def _write_enter(place: Place, vmid: int) -> None:
    argv = container.attach_argv(place, vmid, "/bin/sh", "-c", keep_env=False)
    words = shlex.join(["lxc-attach", "-v", "HOME=/root", "-v", "USER=root", "-v", f"PATH={SYSTEM_PATH}", *argv[1:]])
    enter = place.state / "bin/enter"
    enter.parent.mkdir(exist_ok=True)
    enter.write_text(
        f'#!/bin/sh\ncommand="cd; ${{SSH_ORIGINAL_COMMAND:-exec /bin/bash -l}}"\nexec {words} "$command"\n'
    )
    enter.chmod(0o755)


def start(place: Place, name: str) -> None:
    """Starts one of the servers unless it runs; returns when it greets."""
    if greets(place, name):
        return
    cgroups.end(place, under=f"host/{name}")
    make_privilege_separation(place)
    log = place.state / f"{name}.log"
    log.unlink(missing_ok=True)
    sshd = shutil.which("sshd", path=SYSTEM_PATH) or "/usr/sbin/sshd"
    daemon(place, name, sshd, "-f", str(place.state / f"{name}.conf"), "-E", str(log))
    deadline = time.monotonic() + 5
    while not greets(place, name):
        reason = log.read_text().strip() if log.exists() else ""
        if "Cannot bind" in reason or "fatal" in reason or time.monotonic() > deadline:
            raise LabError(f"sshd on {place.address}:{PORTS[name]} doesn't answer: {reason or 'no reason given'}")
        time.sleep(0.01)


def greets(place: Place, name: str) -> bool:
    """Whether a server of this lab answers on the port (somebody else's isn't one)."""
    if not cgroups.members(place, f"host/{name}"):
        return False
    with contextlib.suppress(OSError), socket.create_connection((place.address, PORTS[name]), timeout=2) as peer:
        return peer.recv(8).startswith(b"SSH-2.0")
    return False


def daemon(place: Place, name: str, *argv: str, log: Path | None = None) -> None:
    """Starts a daemon in its control group `host/NAME`, with no parent to wait for it; `log` gets what it prints."""
    group = cgroups.leaf(place, name)
    script = 'echo $$ >"$1/cgroup.procs" || exit 1; log=$2; shift 2; "$@" </dev/null >>"$log" 2>&1 &'
    argv = ("/bin/sh", "-c", script, "sh", str(group), str(log or "/dev/null"), *argv)
    environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)


def listener(place: Place, name: str = HOST) -> int:
    """The pid of the listening server."""
    return int((place.state / f"{name}.pid").read_text())


def cut(place: Place) -> None:
    """Ends every connection to the Proxmox host as a broken line does: what ran for it there stays running."""
    for pid in cgroups.members(place, f"host/{HOST}") - {listener(place)}:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd":
                os.kill(pid, signal.SIGKILL)


def make_privilege_separation(place: Place) -> None:
    """sshd wants /run/sshd. Labs share it: each has a mark in it, the last one removes it if a lab made it."""
    if not PRIVILEGE_SEPARATION.exists():
        PRIVILEGE_SEPARATION.mkdir(mode=0o755)
        (PRIVILEGE_SEPARATION / MADE_BY_A_LAB).touch()
    (PRIVILEGE_SEPARATION / place.cgroup).touch()


def remove_privilege_separation(place: Place) -> None:
    (PRIVILEGE_SEPARATION / place.cgroup).unlink(missing_ok=True)
    if PRIVILEGE_SEPARATION.is_dir() and [path.name for path in PRIVILEGE_SEPARATION.iterdir()] == [MADE_BY_A_LAB]:
        (PRIVILEGE_SEPARATION / MADE_BY_A_LAB).unlink()
        with contextlib.suppress(OSError):
            PRIVILEGE_SEPARATION.rmdir()
