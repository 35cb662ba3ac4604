"""An SSH destination, settled by `ssh -G`: OpenSSH knows Include, Match and tokens; paramiko's own parser doesn't."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rackhand import inventory
from rackhand.errors import PreconditionError


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect. `key_name` is the name under which known_hosts files hold the host's keys."""

    host: str
    port: int
    user: str
    key_name: str
    key_files: tuple[Path, ...] = ()
    only_key_files: bool = False
    agent: bool = True
    known_hosts: tuple[Path, ...] = ()
    proxy_command: str | None = None


def resolve(ssh: inventory.Ssh, where: str) -> Target:
    """Asks the ssh program; connects nowhere. PreconditionError when there is none or it refuses the configuration."""
    argv = ["ssh", *(("-F", str(ssh.config)) if ssh.config else ()), "-G", "--", ssh.destination]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise PreconditionError("no ssh program on this machine", where=where, hint="install openssh-client") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        what = f"ssh can't read its configuration: {said[0] if said else 'no reason given'}"
        gone = ssh.config is not None and not ssh.config.exists()
        hint = "mend ssh_config; the lab's is made by ./inv lab.up" if gone else f"try: {shlex.join(argv)}"
        raise PreconditionError(what, where=where, hint=hint, detail=done.stderr)
    return parse_ssh_g(done.stdout, ssh)


def parse_ssh_g(text: str, ssh: inventory.Ssh) -> Target:
    """`ssh -G` output to a Target. Paths come unquoted there: a list is cut before each `/` or `~` after a blank."""
    options = defaultdict(list)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        options[name.lower()].append(value)

    def one(name: str, default: str = "") -> str:
        return options[name][0] if options[name] else default

    host, port = one("hostname", ssh.destination), int(one("port", "22"))
    alias = one("hostkeyalias", "none")
    plain = host if port == 22 else f"[{host}]:{port}"
    return Target(
        host=host,
        port=port,
        user=one("user"),
        key_name=plain if alias == "none" else alias,
        key_files=tuple(Path(path).expanduser() for path in options["identityfile"] if path != "none"),
        only_key_files=one("identitiesonly") == "yes",
        agent=one("identityagent", "SSH_AUTH_SOCK") != "none",
        known_hosts=_paths(one("userknownhostsfile")) + _paths(one("globalknownhostsfile")),
        proxy_command=_proxy(one("proxycommand", "none"), one("proxyjump", "none"), ssh, (host, port, one("user"))),
    )


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).expanduser() for part in re.split(r" (?=[/~])", text) if part not in ("", "none"))


def _proxy(command: str, jump: str, ssh: inventory.Ssh, target: tuple[str, int, str]) -> str | None:
    host, port, user = target
    if command != "none":
        tokens = {"%h": host, "%p": str(port), "%r": user, "%n": ssh.destination.rpartition("@")[2], "%%": "%"}
        return re.sub("%[hprn%]", lambda found: tokens[found.group()], command)
    if jump == "none":
        return None
    *before, last = jump.split(",")
    words = ["ssh", "-o", "BatchMode=yes", *(("-F", str(ssh.config)) if ssh.config else ())]
    words += [*(("-J", ",".join(before)) if before else ()), "-W", f"[{host}]:{port}", "--", last]
    return shlex.join(words)
