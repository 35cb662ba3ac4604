"""Host keys: an unknown one is refused or recorded, as asked; a changed one is always refused."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Literal

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from rackhand.errors import HostKeyError
from rackhand.transport.ssh_config import Target


class Policy(paramiko.MissingHostKeyPolicy):
    """Asked by paramiko when it knows no key of the host. paramiko itself refuses a changed one."""

    def __init__(self, target: Target, mode: Literal["strict", "accept-new"], where: str) -> None:
        self._target, self._mode, self._where = target, mode, where

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if self._mode == "strict":
            scan = f"ssh-keyscan -p {self._target.port} {shlex.quote(self._target.host)}"
            hint = f"compare the fingerprint on the host, then connect once with ssh, or add `{scan}` to {self._file()}"
            what = f"unknown host key {key.get_name()} {key.fingerprint} of {self._target.key_name}"
            raise HostKeyError(what, where=self._where, hint=hint)
        line = f"{self._target.key_name} {key.get_name()} {key.get_base64()}\n"
        file = self._file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = file.read_bytes() if file.exists() else b""
        with file.open("ab") as out:
            out.write((b"\n" if old and not old.endswith(b"\n") else b"") + line.encode())
        client.get_host_keys().add(hostname, key.get_name(), key)

    def _file(self) -> Path:
        return self._target.known_hosts[0] if self._target.known_hosts else Path("~/.ssh/known_hosts").expanduser()


def known_keys(target: Target) -> tuple[paramiko.PKey, ...]:
    """The keys that the known_hosts files hold for the host. As with ssh, a file that can't be read is empty, and a
    line that can't be read is left out."""
    keys = paramiko.HostKeys()
    for file in target.known_hosts:
        for line in _lines(file):
            with contextlib.suppress(paramiko.SSHException, InvalidHostKey, ValueError):
                entry = HostKeyEntry.from_line(line)
                if entry is not None:
                    for name in entry.hostnames:
                        keys.add(name, entry.key.get_name(), entry.key)
    return tuple((keys.lookup(target.key_name) or {}).values())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def changed(target: Target, error: paramiko.BadHostKeyException, where: str) -> HostKeyError:
    files = ", ".join(str(file) for file in target.known_hosts if file.is_file())
    hint = (
        "somebody may be in between: ask the host's owner; "
        f"if it was reinstalled: ssh-keygen -R {shlex.quote(target.key_name)} -f FILE, for {files}"
    )
    what = f"the host key of {target.key_name} has CHANGED to {error.key.get_name()} {error.key.fingerprint}"
    return HostKeyError(what, where=where, hint=hint)
