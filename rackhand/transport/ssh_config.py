"""An SSH destination, settled by `ssh -G`: OpenSSH knows Include, Match and tokens; paramiko's own parser doesn't."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rackhand import inventory
from rackhand.command import Argv
from rackhand.errors import PreconditionError
from rackhand.transport.tokens import TokenError, expand, path_of, tokens_of

DEFAULT_KEYS = {"id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss", "id_dsa"}
"""ssh tries these in ~/.ssh where no IdentityFile is set: nobody named them, so nobody misses them."""
AGENT = "SSH_AUTH_SOCK"


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to connect. `key_name` is the name under which known_hosts files hold the host's keys,
    `bare_name` the one without the port that ssh falls back on, `agent` the agent's socket.

    `known_hosts` are the user's files, then the global ones; accept-new writes into `new_keys`. `algorithms` are
    HostKeyAlgorithms, best first; `tokens` what KnownHostsCommand's words may hold.
    """

    host: str
    port: int
    user: str
    key_name: str
    key_files: tuple[Path, ...] = ()
    cert_files: tuple[Path, ...] = ()
    only_key_files: bool = False
    agent: Path | None = None
    known_hosts: tuple[Path, ...] = ()
    new_keys: Path | None = None
    proxy_command: str | None = None
    bare_name: str | None = None
    cert_name: str = ""
    known_command: Argv = ()
    revoked: tuple[Path, ...] = ()
    algorithms: tuple[str, ...] = ()
    ca_algorithms: tuple[str, ...] = ()
    rsa_bits: int = 1024
    hash_names: bool = False
    check_ip: bool = False
    trust_loopback: bool = False
    asks_dns: bool = False
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def named_keys(self) -> tuple[Path, ...]:
        """The key files that the configuration names, without those that ssh tries by default."""
        home = Path.home() / ".ssh"
        return tuple(file for file in self.key_files if not (file.parent == home and file.name in DEFAULT_KEYS))


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
    try:
        return parse_ssh_g(done.stdout, ssh, os.environ)
    except TokenError as error:
        raise PreconditionError(f"ssh_config: {error}", where=where, hint=f"try: {shlex.join(argv)}") from error


def parse_ssh_g(text: str, ssh: inventory.Ssh, env: Mapping[str, str]) -> Target:
    """`ssh -G` output to a Target. TokenError for a value that ssh itself would stop at."""
    options = _options(text)
    host, port = _one(options, "hostname") or ssh.destination, int(_one(options, "port") or 22)
    user = _one(options, "user")
    given = ssh.destination.rpartition("@")[2]
    alias, jump = _one(options, "hostkeyalias"), _one(options, "proxyjump")
    tokens = tokens_of(host=host, port=port, user=user, alias=given, key_name=alias or given, jump=jump)

    def paths(name: str) -> tuple[Path, ...]:
        """Of an option that may stand more than once, each time with one path."""
        return tuple(_path(name, text, tokens, env) for text in options[name] if text not in ("none", ""))

    def listed(name: str) -> tuple[Path, ...]:
        return tuple(_path(name, text, tokens, env) for text in _split(_one(options, name)))

    users = listed("userknownhostsfile")
    return Target(
        host=host,
        port=port,
        user=user,
        key_name=alias or (host if port == 22 else f"[{host}]:{port}"),
        bare_name=None if alias or port == 22 else host,
        cert_name=alias or host,
        key_files=paths("identityfile"),
        cert_files=paths("certificatefile"),
        only_key_files=_one(options, "identitiesonly") == "yes",
        agent=_agent(options["identityagent"], tokens, env),
        known_hosts=users + listed("globalknownhostsfile"),
        new_keys=users[0] if users else None,
        proxy_command=_proxy(_one(options, "proxycommand"), jump, ssh, tokens),
        known_command=tuple(shlex.split(_one(options, "knownhostscommand"))),
        revoked=listed("revokedhostkeys"),
        algorithms=tuple(filter(None, _one(options, "hostkeyalgorithms").split(","))),
        ca_algorithms=tuple(filter(None, _one(options, "casignaturealgorithms").split(","))),
        rsa_bits=int(_one(options, "requiredrsasize") or 1024),
        hash_names=_one(options, "hashknownhosts") == "yes",
        check_ip=_one(options, "checkhostip") == "yes" and not alias,
        trust_loopback=_one(options, "nohostauthenticationforlocalhost") == "yes" and not alias,
        asks_dns=_one(options, "verifyhostkeydns") not in ("", "no", "false"),
        tokens=tokens,
    )


def _options(text: str) -> defaultdict[str, list[str]]:
    options = defaultdict(list)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        options[name.lower()].append(value)
    return options


def _one(options: Mapping[str, list[str]], name: str) -> str:
    """The option's value; empty where there is none."""
    value = (options[name] or [""])[0] if name in options else ""
    return "" if value == "none" else value


def _split(text: str) -> list[str]:
    """`ssh -G` prints paths unquoted: a list is cut before each `/`, `~`, `%` or `$` after a blank."""
    return [part for part in re.split(r" (?=[/~%$])", text) if part not in ("", "none")]


def _path(name: str, text: str, tokens: Mapping[str, str], env: Mapping[str, str]) -> Path:
    try:
        return path_of(text, tokens, env)
    except TokenError as error:
        if name == "userknownhostsfile":  # expanded by ssh -G: a sign that is left is a part of the name
            return Path(text).expanduser()
        raise TokenError(f"{name} {text}: {error}") from error


def _agent(said: list[str], tokens: Mapping[str, str], env: Mapping[str, str]) -> Path | None:
    """IdentityAgent: a socket, `none`, or the variable that holds it."""
    text = said[0] if said else AGENT
    if text == "none":
        return None
    if text == AGENT or (text.startswith("$") and not text.startswith("${")):
        found = env.get(text.removeprefix("$"), "")
        return Path(found) if found else None
    return _path("identityagent", text, tokens, env)


def _proxy(command: str, jump: str, ssh: inventory.Ssh, tokens: Mapping[str, str]) -> str | None:
    if command:
        return expand(command, {sign: tokens[sign] for sign in "%hnpr"}, {}, variables=False)
    if not jump:
        return None
    *before, last = jump.split(",")
    words = ["ssh", "-o", "BatchMode=yes", *(("-F", str(ssh.config)) if ssh.config else ())]
    words += [*(("-J", ",".join(before)) if before else ()), "-W", f"[{tokens['h']}]:{tokens['p']}", "--", last]
    return shlex.join(words)
