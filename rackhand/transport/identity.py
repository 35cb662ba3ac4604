"""Which keys an SSH connection offers, in ssh's order, and why none of them was taken."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from rackhand.errors import AuthError
from rackhand.transport import host_cert
from rackhand.transport.ssh_config import Target

CERT = "-cert.pub"
LOCKED = "has a passphrase"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One IdentityFile. `public` is its public half as on the wire, `problem` why it can't be offered by itself."""

    path: Path
    key: paramiko.PKey | None
    public: bytes | None
    problem: str = ""


@dataclass
class Keys:
    """Offers keys to a server; what paramiko calls a strategy. Afterwards it knows what was tried."""

    target: Target
    where: str
    files: tuple[KeyFile, ...] = ()
    tried: list[str] = field(default_factory=list)
    held: frozenset[bytes] = frozenset()
    agent_problem: str = ""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """AuthError when no key was taken."""
        paths = (path for path in self.target.key_files if path.exists() or _public(path).exists())
        self.files = tuple(read_key(path) for path in paths)
        with contextlib.closing(_Agent()) as agent:
            self._connect(agent)
            for name, key in self._offers(agent):
                self.tried.append(name)
                try:
                    left = transport.auth_publickey(self.target.user, key)
                except paramiko.BadAuthenticationType as error:
                    raise self._other_way(error.allowed_types) from error
                except paramiko.SSHException as error:
                    farewell = getattr(transport, "farewell", "")
                    if transport.is_active():
                        continue
                    if farewell or len(self.tried) > 1:
                        raise self._hung_up(farewell) from error
                    raise
                if left:
                    raise self._other_way(left, "after the key ")
                return
        raise self._refused()

    def _connect(self, agent: _Agent) -> None:
        if self.target.agent is None:
            return
        try:
            agent.open(self.target.agent)
        except (OSError, paramiko.SSHException) as error:
            self.agent_problem = f"no agent at {self.target.agent}: {getattr(error, 'strerror', None) or error}"

    def _offers(self, agent: _Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        """The agent's keys that are named, then its others unless IdentitiesOnly is set, then files."""
        certificates = [*self.target.cert_files, *(file.path.with_name(file.path.name + CERT) for file in self.files)]
        held = {bytes(key.blob): key for key in agent.get_keys()}
        self.held = frozenset(held)
        for file in self.files:
            if file.public in held:
                key = held.pop(file.public)
                yield from _with_certificates(f"{file.path} (agent)", key, file.public, certificates)
        if not self.target.only_key_files:
            yield from ((f"{key.comment or key.get_name()} (agent)", key) for key in held.values())
        for file in self.files:
            if file.key is not None and file.public not in self.held:
                yield from _with_certificates(str(file.path), file.key, file.public, certificates)

    def _refused(self) -> AuthError:
        target, missing = self.target, self._missing()
        bad = [file for file in self.files if file.problem and file.public not in self.held]
        said = [f"{file.path} {file.problem}" for file in bad]
        if missing:
            hint = f"ssh_config names {', '.join(missing)}, which isn't there; offered: {self._offered()}"
        elif bad and bad[0].problem == LOCKED:
            hint = f"{said[0]}: unlock it in an agent, ssh-add {bad[0].path}"
        elif bad:
            hint = f"{'; '.join(said)}; offered: {self._offered()}"
        else:
            hint = f"offered: {self._offered()}; put the public key into {target.user}'s authorized_keys"
        detail = "\n".join([*said, *missing, *([self.agent_problem] if self.agent_problem else [])])
        return AuthError(f"{target.user}@{target.host} was refused", where=self.where, hint=hint, detail=detail)

    def _hung_up(self, farewell: str) -> AuthError:
        target = self.target
        what = f"{target.user}@{target.host} hung up after {len(self.tried)} refused keys"
        hint = "too many keys before the right one: set IdentitiesOnly yes and IdentityFile in ssh_config"
        if missing := self._missing():
            hint = f"ssh_config names {', '.join(missing)}, which isn't there; {hint}"
        return AuthError(what, where=self.where, hint=hint, detail=f"offered: {self._offered()}\n{farewell}")

    def _other_way(self, ways: list[str], when: str = "") -> AuthError:
        what = f"{self.target.user}@{self.target.host} wants {' or '.join(ways)} {when}".rstrip()
        return AuthError(what, where=self.where, hint="rackhand logs in with keys alone: allow publickey there")

    def _offered(self) -> str:
        return ", ".join(self.tried) or "no key"

    def _missing(self) -> list[str]:
        named = (*self.target.named_keys, *self.target.cert_files)
        return [str(path) for path in named if not path.exists() and not _public(path).exists()]


class _Agent(AgentSSH):
    """paramiko's Agent asks SSH_AUTH_SOCK alone."""

    def open(self, path: Path) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(30)
            connection.connect(str(path))
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def read_key(path: Path) -> KeyFile:
    """What a key file can do, as ssh takes it: one that others may read is left out."""
    public = read_public(_public(path))
    if path.suffix == ".pub" or not path.exists():
        return KeyFile(path, None, public)
    try:
        mode = path.stat()
        if mode.st_uid == os.getuid() and stat.S_IMODE(mode.st_mode) & 0o077:
            what = f"may be read by others (mode {stat.S_IMODE(mode.st_mode):04o}): chmod 600 {path}"
            return KeyFile(path, None, public, what)
        key = paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        return KeyFile(path, None, public, LOCKED)
    except OSError as error:
        return KeyFile(path, None, public, f"can't be read: {error.strerror}")
    except Exception as error:  # noqa: BLE001  cryptography and paramiko raise all kinds for a file that is no key
        return KeyFile(path, None, public, _why_not(path, error))
    key.public_blob = None
    return KeyFile(path, key, bytes(key.asbytes()))


def _why_not(path: Path, error: Exception) -> str:
    if isinstance(error, UnknownKeyType) or "sk-" in str(error):
        return f"is of a kind that only an agent can use: ssh-add {path}"
    return "is no private key"


def read_public(path: Path) -> bytes | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(path.read_bytes().split()[1], validate=True)
    return None


def _public(path: Path) -> Path:
    return path if path.suffix == ".pub" else path.with_name(path.name + ".pub")


def _with_certificates(
    name: str, key: paramiko.PKey, public: bytes | None, certificates: list[Path]
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Each certificate of the key, then the key alone."""
    for path in certificates:
        with contextlib.suppress(OSError, IndexError, ValueError, paramiko.SSHException):
            kind, text = path.read_text().split()[:2]
            certificate = host_cert.load(kind, base64.b64decode(text))
            if certificate is not None and host_cert.plain_key(certificate) == public:
                key.load_certificate(str(path))
                yield f"{name} with {path.name}", key
    key.public_blob = None
    yield name, key
