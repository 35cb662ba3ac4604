"""A host's key judged as OpenSSH judges it: known, unknown, changed or revoked; a new one recorded where asked.

Only what is recorded differs: a key that can't be recorded isn't accepted.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paramiko
from cryptography.hazmat.primitives.serialization import SSHCertificate

from rackhand.errors import HostKeyError, PreconditionError
from rackhand.transport import host_cert
from rackhand.transport.known_hosts import Entry, entries_in, entries_of
from rackhand.transport.ssh_config import Target
from rackhand.transport.tokens import TokenError, expand

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a server showed: its plain key as on the wire, and its certificate if that is how it showed it."""

    key: paramiko.PKey

    @property
    def plain(self) -> bytes:
        return bytes(self.key.asbytes())

    @property
    def certificate(self) -> SSHCertificate | None:
        blob = self.key.public_blob
        return None if blob is None else host_cert.load(blob.key_type, bytes(blob.key_blob))

    @property
    def authority(self) -> bytes:
        """The certificate's; empty without one."""
        return b"" if self.certificate is None else host_cert.authority(self.certificate)

    @property
    def line(self) -> bytes:
        """As in a .pub file: the certificate where there is one."""
        blob = self.key.public_blob
        kind, data = (self.key.get_name(), self.plain) if blob is None else (blob.key_type, bytes(blob.key_blob))
        return f"{kind} {base64.b64encode(data).decode()}\n".encode()

    def __str__(self) -> str:
        return f"{self.key.get_name()} {self.key.fingerprint}"


class Policy(paramiko.MissingHostKeyPolicy):
    """Asked by paramiko, which is told of no known keys: it takes one key of a type and knows no markers."""

    def __init__(self, target: Target, mode: Literal["strict", "accept-new"], where: str) -> None:
        self._target, self._mode, self._where = target, mode, where

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Returns for a key that may be talked to. HostKeyError for others."""
        target, shown = self._target, Shown(key)
        address = _address(client)
        if target.trust_loopback and address is not None and address.is_loopback:
            return
        if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
            hint = f"RequiredRSASize is {target.rsa_bits} here; make a longer key there"
            raise HostKeyError(f"host key {shown} has {key.get_bits()} bits only", where=self._where, hint=hint)
        check_revoked(target, shown, self._where)
        lines = lines_of(target, target.key_name, self._where, shown)
        verdict, why = judge(target, lines, shown)
        if verdict == "unknown" and target.bare_name is not None:
            bare = judge(target, lines_of(target, target.bare_name, self._where, shown), shown)[0]
            verdict = bare if bare in ("known", "revoked") else verdict
        if verdict == "known" and target.check_ip and address is not None:
            verdict = self._by_address(address, shown)
        self._act(verdict, why, lines, shown)

    def _by_address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, shown: Shown) -> Verdict:
        name = str(address) if self._target.port == 22 else f"[{address}]:{self._target.port}"
        there = judge(self._target, lines_of(self._target, name, self._where, shown), shown)[0]
        return there if there in ("changed", "revoked") else "known"

    def _act(self, verdict: Verdict, why: str, lines: Sequence[Entry], shown: Shown) -> None:
        if verdict == "revoked":
            what = f"host key {shown} of {self._target.key_name} was REVOKED"
            hint = "somebody else may have it: ask the host's owner"
            raise HostKeyError(what, where=self._where, hint=hint)
        if verdict == "changed":
            raise changed(self._target, lines, shown, self._where)
        if verdict == "unknown" and (self._mode == "strict" or self._target.new_keys is None):
            raise unknown(self._target, why, shown, self._where)
        if verdict == "unknown":
            record(self._target, shown, self._where)


def lines_of(target: Target, name: str, where: str, shown: Shown | None = None) -> tuple[Entry, ...]:
    """What the known_hosts files and KnownHostsCommand say of a name; `shown` is None before a key was shown."""
    files = entries_of(name, target.known_hosts)
    if not target.known_command:
        return files
    return files + entries_in(name, _ask(target, name, where, shown), "KnownHostsCommand")


def judge(target: Target, lines: Sequence[Entry], shown: Shown) -> tuple[Verdict, str]:
    """The verdict, and why a certificate of a known CA doesn't count. A key of any type may be the host's; a revoked
    one never."""
    why, revoked = "", {line.key for line in lines if line.marker == "REVOKED"}
    if shown.certificate is not None:
        if shown.authority in revoked:
            return "revoked", ""
        if any(line.marker == "CA" and line.key == shown.authority for line in lines):
            why = host_cert.fault(shown.certificate, target.cert_name, target.ca_algorithms)
            if not why and shown.plain not in revoked:
                return "known", ""
    if shown.plain in revoked:
        return "revoked", why
    keys = {line.key for line in lines if not line.marker}
    return ("known" if shown.plain in keys else "changed" if keys else "unknown"), why


def algorithms(target: Target, offered: Sequence[str], where: str) -> tuple[str, ...]:
    """`offered` as far as HostKeyAlgorithms lets them, in its order, those first by which the host is known."""
    allowed = [name for name in target.algorithms if name in offered] or list(offered)
    lines = lines_of(target, target.key_name, where)
    revoked = {line.key for line in lines if line.marker == "REVOKED"}
    kinds = {line.kind for line in lines if not line.marker and line.key not in revoked}
    has_ca = any(line.marker == "CA" for line in lines)

    def is_known(name: str) -> bool:
        if name.endswith(host_cert.SUFFIX):
            return has_ca
        return ("ssh-rsa" if name.startswith("rsa-sha2-") else name) in kinds

    return tuple(sorted(allowed, key=lambda name: not is_known(name)))


def check_revoked(target: Target, shown: Shown, where: str) -> None:
    """RevokedHostKeys, a KRL or a list of keys. As with ssh, a file that can't be read refuses every host."""
    for file in target.revoked:
        found = _in_krl(file, shown)
        if found is None:
            found = _in_list(file, shown)
        if found is None:
            what = f"RevokedHostKeys {file} can't be read, so no host key counts"
            raise HostKeyError(what, where=where, hint="mend the file, or take the option out of ssh_config")
        if found:
            what = f"host key {shown} of {target.key_name} was REVOKED by {file}"
            raise HostKeyError(what, where=where, hint="somebody else may have it: ask the host's owner")


def _in_krl(file: Path, shown: Shown) -> bool | None:
    """None where `file` is no KRL."""
    with tempfile.NamedTemporaryFile(suffix=".pub") as key:
        key.write(shown.line)
        key.flush()
        argv = ("ssh-keygen", "-Q", "-f", str(file), key.name)
        done = subprocess.run(argv, capture_output=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    if done.stdout.rstrip().endswith(b": REVOKED"):
        return True
    return None if done.returncode else False


def _in_list(file: Path, shown: Shown) -> bool | None:
    """None where it can't be read, or a line is no key."""
    keys: set[bytes] = set()
    try:
        for line in file.read_bytes().splitlines():
            if line.strip() and not line.strip().startswith(b"#"):
                keys.add(host_cert.public_key(line.strip()))
    except (OSError, ValueError):
        return None
    return bool(keys & ({shown.plain} if shown.certificate is None else {shown.plain, shown.authority}))


def _ask(target: Target, name: str, where: str, shown: Shown | None) -> bytes:
    """KnownHostsCommand's lines. As with ssh, none counts when it fails."""
    tokens = {**target.tokens, "H": name, "I": "ORDER", "t": "NONE", "f": "NONE", "K": "NONE"}
    if shown is not None:
        blob = base64.b64encode(shown.plain).decode()
        tokens |= {"I": "HOSTNAME", "t": shown.key.get_name(), "f": shown.key.fingerprint, "K": blob}
    try:
        argv = [expand(word, tokens, os.environ) for word in target.known_command]
        done = subprocess.run(argv, capture_output=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
        why = f"status {done.returncode}" if done.returncode else ""
    except (OSError, TokenError, subprocess.TimeoutExpired) as error:
        why = str(getattr(error, "strerror", None) or error)
    if why:
        hint = f"try: {shlex.join(target.known_command)}"
        raise HostKeyError(f"KnownHostsCommand failed: {why}", where=where, hint=hint)
    return done.stdout


def unknown(target: Target, why: str, shown: Shown, where: str) -> HostKeyError:
    file = target.new_keys or "a UserKnownHostsFile, which is none now"
    scan = f"ssh-keyscan -p {target.port} {shlex.quote(target.host)}"
    hint = f"compare the fingerprint on the host, then connect once with ssh, or add `{scan}` to {file}"
    if why:
        hint = f"a known CA signed its certificate, but {why}"
    elif target.asks_dns:
        hint = f"VerifyHostKeyDNS is not supported; {hint}"
    return HostKeyError(f"unknown host key {shown} of {target.key_name}", where=where, hint=hint)


def changed(target: Target, lines: Sequence[Entry], shown: Shown, where: str) -> HostKeyError:
    places = ", ".join(line.source for line in lines if not line.marker)
    hint = (
        "somebody may be in between: ask the host's owner; "
        f"if it was reinstalled: ssh-keygen -R {shlex.quote(target.key_name)} -f FILE, for {places}"
    )
    return HostKeyError(f"the host key of {target.key_name} has CHANGED to {shown}", where=where, hint=hint)


def record(target: Target, shown: Shown, where: str) -> None:
    """The plain key at the end of the user's first file."""
    file = target.new_keys or Path("~/.ssh/known_hosts").expanduser()
    name = paramiko.HostKeys.hash_host(target.key_name) if target.hash_names else target.key_name
    line = f"{name} {shown.key.get_name()} {base64.b64encode(shown.plain).decode()}\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        old = file.read_bytes() if file.is_file() else b""
        with file.open("ab") as out:
            out.write((b"\n" if old and not old.endswith(b"\n") else b"") + line.encode())
    except OSError as error:
        what = f"can't record the host key in {error.filename}: {error.strerror}"
        raise PreconditionError(what, where=where, hint="mend UserKnownHostsFile, or use host_keys: strict") from error


def _address(client: paramiko.SSHClient) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The peer's; None behind a ProxyCommand."""
    transport = client.get_transport()
    try:
        return None if transport is None else ipaddress.ip_address(transport.getpeername()[0])
    except (OSError, ValueError, IndexError, TypeError):
        return None
