"""Host keys as the real ssh judges them: one table of files, and ssh and rackhand must say the same of each row.

Each connection has an sshd of its own at the end of a ProxyCommand, so that hosts can have any name and port.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from lab import sshd
from lab.place import place_of
from rackhand import inventory
from rackhand.errors import HostKeyError
from rackhand.transport.connect import connect
from rackhand.transport.ssh_config import resolve

pytestmark = pytest.mark.lab
Mode = Literal["strict", "accept-new"]

SERVER = """AuthorizedKeysFile {folder}/id.pub
StrictModes no
UsePAM no
"""
CLIENT = """Host *
  User root
  BatchMode yes
  IdentityFile {folder}/id
  IdentitiesOnly yes
  KexAlgorithms curve25519-sha256
  ProxyCommand {sshd} -i -f {folder}/{server}.conf
  GlobalKnownHostsFile none
"""
SERVERS = {
    "two": ("ed", "rsa"),
    "rsa": ("rsa",),
    "ecdsa": ("ec", "ed"),
    "cert": ("ed", "cert-good"),
    "cert-rsa-ca": ("ed", "cert-rsa-ca"),
    "cert-wild": ("ed", "cert-wild"),
    "cert-none": ("ed", "cert-none"),
    "cert-other-name": ("ed", "cert-other-name"),
    "cert-old": ("ed", "cert-old"),
    "cert-future": ("ed", "cert-future"),
    "cert-user": ("ed", "cert-user"),
}
"""sshd's name → its host keys and, where it begins with cert, the certificate of the first."""
CERTIFICATES = {
    "cert-good": "-h -n gpu.example,gpu2.example",
    "cert-rsa-ca": "-h -n gpu.example",
    "cert-wild": "-h -n *.example",
    "cert-none": "-h",
    "cert-other-name": "-h -n elsewhere.example",
    "cert-old": "-h -n gpu.example -V 20200101:20210101",
    "cert-future": "-h -n gpu.example -V 20900101:20910101",
    "cert-user": "-n gpu.example",
}


@dataclass(frozen=True)
class Row:
    """A known_hosts file, and what else differs; `want` is the verdict in strict mode, written down so that a table
    that says nothing is seen. `then` is the file after accept-new where it isn't as before."""

    want: str
    known: str = ""
    server: str = "two"
    host: str = "gpu.example"
    options: str = ""
    files: dict[str, str] | None = None
    then: str | None = None
    accepted: bool = True


ROWS = {
    "nothing known": Row("unknown", then="gpu.example {ed}\n"),
    "the key": Row("ok", "gpu.example {ed}\n"),
    "another key": Row("changed", "gpu.example {other}\n"),
    "another key of another type only": Row("changed", "gpu.example {ec}\n"),
    "two keys of a type, right one first": Row("ok", "gpu.example {ed}\ngpu.example {other}\n"),
    "two keys of a type, right one last": Row("ok", "gpu.example {other}\ngpu.example {ed}\n"),
    "the other type is known": Row("ok", "gpu.example {rsa}\n"),
    "one type right, one wrong": Row("ok", "gpu.example {ed}\ngpu.example {rsa2}\n"),
    "an ECDSA key is known": Row("ok", "gpu.example {ec}\n", "ecdsa"),
    "hosts in a line": Row("ok", "a.example,gpu.example,10.0.0.1 {ed} a comment\n"),
    "tabs and a comment": Row("ok", "# first\n\n  \tgpu.example\t{ed}\tme@here\n"),
    "CRLF": Row("ok", "gpu.example {ed}\r\n"),
    "no newline at the end": Row("ok", "gpu.example {ed}"),
    "broken lines around": Row("ok", "gpu.example\ngpu.example ssh-ed25519 !!\n\xff\ngpu.example {ed}\n@x y\n"),
    "a broken line alone": Row(
        "unknown",
        "gpu.example ssh-ed25519 AAAA\n",
        then="gpu.example ssh-ed25519 AAAA\ngpu.example {ed}\n",
    ),
    "a type that doesn't fit its key": Row(
        "unknown", "gpu.example ssh-rsa {ed-blob}\n", then="gpu.example ssh-rsa {ed-blob}\ngpu.example {ed}\n"
    ),
    "a marker that nobody knows": Row(
        "unknown", "@trusted gpu.example {ed}\n", then="@trusted gpu.example {ed}\ngpu.example {ed}\n"
    ),
    "upper case in the file": Row("ok", "GPU.Example {ed}\n"),
    "upper case asked": Row("ok", "gpu.example {ed}\n", host="GPU.Example"),
    "hashed": Row("ok", "{hash:gpu.example} {ed}\n"),
    "hashed, changed": Row("changed", "{hash:gpu.example} {other}\n"),
    "hashed, of another host": Row(
        "unknown", "{hash:b.example} {ed}\n", then="{hash:b.example} {ed}\ngpu.example {ed}\n"
    ),
    "a pattern": Row("ok", "*.example {ed}\n"),
    "a pattern with ?": Row("ok", "gp?.example {ed}\n"),
    "a pattern that doesn't fit": Row("unknown", "gp??.example {ed}\n", then="gp??.example {ed}\ngpu.example {ed}\n"),
    "negation": Row("unknown", "*.example,!gpu.example {ed}\n", then="*.example,!gpu.example {ed}\ngpu.example {ed}\n"),
    "negation first": Row("unknown", "!gpu.example,* {ed}\n", then="!gpu.example,* {ed}\ngpu.example {ed}\n"),
    "negation of another": Row("ok", "*.example,!b.example {ed}\n"),
    "a negated changed key": Row("ok", "!gpu.example,*.example {other}\ngpu.example {ed}\n"),
    "a port": Row("ok", "[gpu.example]:2222 {ed}\n", options="Port 2222"),
    "a pattern with a port": Row("ok", "[*.example]:2222 {ed}\n", options="Port 2222"),
    "a name without its port": Row("ok", "gpu.example {ed}\n", options="Port 2222"),
    "another port": Row(
        "unknown",
        "[gpu.example]:2223 {ed}\n",
        options="Port 2222",
        then="[gpu.example]:2223 {ed}\n[gpu.example]:2222 {ed}\n",
    ),
    "another key without the port": Row(
        "unknown",
        "gpu.example {other}\n",
        options="Port 2222",
        then="gpu.example {other}\n[gpu.example]:2222 {ed}\n",
    ),
    "wrong with the port, right without": Row(
        "changed", "[gpu.example]:2222 {other}\ngpu.example {ed}\n", options="Port 2222"
    ),
    "a port, and the other type known without": Row(
        "unknown",
        "gpu.example {rsa}\n",
        options="Port 2222",
        then="gpu.example {rsa}\n[gpu.example]:2222 {ed}\n",
    ),
    "a port in the file, none asked": Row(
        "unknown", "[gpu.example]:2222 {ed}\n", then="[gpu.example]:2222 {ed}\ngpu.example {ed}\n"
    ),
    "an alias": Row("ok", "my-box {ed}\n", options="HostKeyAlias my-box"),
    "an alias and a port": Row("ok", "my-box {ed}\n", options="HostKeyAlias my-box\nPort 2222"),
    "an alias, the name known": Row(
        "unknown",
        "gpu.example {ed}\n",
        options="HostKeyAlias my-box",
        then="gpu.example {ed}\nmy-box {ed}\n",
    ),
    "another host name": Row("ok", "real.example {ed}\n", options="HostName real.example"),
    "revoked": Row("revoked", "@revoked gpu.example {ed}\n"),
    "revoked and listed": Row("revoked", "gpu.example {ed}\n@revoked * {ed}\n"),
    "another one is revoked": Row("ok", "gpu.example {ed}\n@revoked * {other}\n"),
    "only another one is revoked": Row(
        "unknown", "@revoked * {other}\n", then="@revoked * {other}\ngpu.example {ed}\n"
    ),
    "revoked for another host": Row("ok", "gpu.example {ed}\n@revoked b.example {ed}\n"),
    "revoked, hashed": Row("revoked", "@revoked {hash:gpu.example} {ed}\ngpu.example {ed}\n"),
    "revoked with the port": Row(
        "revoked", "@revoked [gpu.example]:2222 {ed}\ngpu.example {ed}\n", options="Port 2222"
    ),
    "the type that comes first is revoked": Row("ok", "gpu.example {ed}\ngpu.example {rsa}\n@revoked * {ed}\n"),
    "the only type offered is revoked": Row("revoked", "gpu.example {rsa}\n@revoked * {rsa}\n", "rsa"),
    "no file of one's own": Row("unknown", "gpu.example {ed}\n", options="UserKnownHostsFile /dev/null"),
    "no file to record it in": Row("unknown", "gpu.example {ed}\n", options="UserKnownHostsFile none", accepted=False),
    "a file named by tokens": Row(
        "ok", options="UserKnownHostsFile {folder}/%h-%p-%r", files={"gpu.example-22-root": "gpu.example {ed}\n"}
    ),
    "a file named by what was typed": Row(
        "ok",
        options="HostName real.example\nUserKnownHostsFile {folder}/%n-%k",
        files={"gpu.example-gpu.example": "real.example {ed}\n"},
    ),
    "a list of revoked keys named by tokens": Row(
        "revoked", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/rev-%h", files={"rev-gpu.example": "{ed}\n"}
    ),
    "a revoked certificate's key": Row(
        "revoked", "gpu.example {ed}\n", options="RevokedHostKeys {keys}/cert-good-cert.pub"
    ),
    "revoked, and another type known": Row("ok", "gpu.example {rsa}\n@revoked * {ed}\n"),
    "a list of revoked keys": Row(
        "revoked", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/rev", files={"rev": "# x\n\n{other}\n{ed}\n"}
    ),
    "a list of other revoked keys": Row(
        "ok", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/rev", files={"rev": "{other} with words\n"}
    ),
    "an empty list": Row("ok", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/rev", files={"rev": ""}),
    "a list with a broken line": Row(
        "revoked", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/rev", files={"rev": "nonsense here\n"}
    ),
    "a list that isn't there": Row("revoked", "gpu.example {ed}\n", options="RevokedHostKeys {folder}/gone"),
    "a KRL": Row("revoked", "gpu.example {ed}\n", options="RevokedHostKeys {keys}/krl-ed"),
    "a KRL of others": Row("ok", "gpu.example {ed}\n", options="RevokedHostKeys {keys}/krl-other"),
    "a KRL, nothing known": Row("revoked", "", options="RevokedHostKeys {keys}/krl-ed"),
    "two files": Row(
        "ok", "b.example {ed}\n", options="GlobalKnownHostsFile none", files={"known2": "gpu.example {ed}\n"}
    ),
    "a revoked line in the second file": Row("revoked", "gpu.example {ed}\n", files={"known2": "@revoked * {ed}\n"}),
    "a wrong key in the second file": Row("ok", "gpu.example {ed}\n", files={"known2": "gpu.example {other}\n"}),
    "in the global file": Row(
        "ok", "", options="GlobalKnownHostsFile {folder}/global", files={"global": "gpu.example {ed}\n"}
    ),
    "revoked in the global file": Row(
        "revoked",
        "gpu.example {ed}\n",
        options="GlobalKnownHostsFile {folder}/global",
        files={"global": "@revoked * {ed}\n"},
    ),
    "a command": Row("ok", "", options="KnownHostsCommand /bin/echo %H {ed}"),
    "a command with another key": Row("changed", "", options="KnownHostsCommand /bin/echo gpu.example {other}"),
    "a command that fails": Row("command", "gpu.example {ed}\n", options="KnownHostsCommand /bin/false"),
    "a command with words of its own": Row("ok", "", options='KnownHostsCommand /bin/sh -c "echo $0 $1" %h "{ed}"'),
    "a command that is told the key": Row("ok", "", options="KnownHostsCommand /bin/echo %H %t %K"),
    "a command with a revoked key": Row(
        "revoked", "gpu.example {ed}\n", options="KnownHostsCommand /bin/echo @revoked %H {ed}"
    ),
    "only RSA wanted": Row("ok", "gpu.example {rsa}\n", options="HostKeyAlgorithms rsa-sha2-512"),
    "only RSA wanted, the other known": Row("changed", "gpu.example {ed}\n", options="HostKeyAlgorithms rsa-sha2-512"),
    "RSA first": Row("ok", "gpu.example {rsa}\n", options="HostKeyAlgorithms rsa-sha2-256,ssh-ed25519"),
    "an RSA key that is too short": Row("short", "gpu.example {rsa}\n", "rsa", options="RequiredRSASize 3072"),
    "a certificate": Row("ok", "@cert-authority *.example {ca}\n", "cert"),
    "a certificate, the name without its port": Row(
        "ok", "@cert-authority gpu.example {ca}\n", "cert", options="Port 2222"
    ),
    "a certificate of an RSA authority": Row("ok", "@cert-authority *.example {rsa2}\n", "cert-rsa-ca"),
    "a certificate whose authority may not sign so": Row(
        "unknown",
        "@cert-authority * {rsa2}\n",
        "cert-rsa-ca",
        options="CASignatureAlgorithms ssh-ed25519",
        then="@cert-authority * {rsa2}\ngpu.example {ed}\n",
    ),
    "a certificate of an unknown authority": Row(
        "unknown",
        "@cert-authority * {other}\n",
        "cert",
        then="@cert-authority * {other}\ngpu.example {ed}\n",
    ),
    "an authority for another host": Row(
        "unknown",
        "@cert-authority b.example {ca}\n",
        "cert",
        then="@cert-authority b.example {ca}\ngpu.example {ed}\n",
    ),
    "an authority's key as a plain one": Row("changed", "gpu.example {ca}\n", "cert"),
    "a certificate, its key known": Row("ok", "gpu.example {ed}\n", "cert"),
    "a certificate for any host": Row("ok", "@cert-authority * {ca}\n", "cert-none"),
    "a certificate for a pattern": Row(
        "unknown", "@cert-authority * {ca}\n", "cert-wild", then="@cert-authority * {ca}\ngpu.example {ed}\n"
    ),
    "a certificate for another host": Row(
        "unknown", "@cert-authority * {ca}\n", "cert-other-name", then="@cert-authority * {ca}\ngpu.example {ed}\n"
    ),
    "a certificate for another host, by its alias": Row(
        "ok", "@cert-authority * {ca}\n", "cert-other-name", options="HostKeyAlias elsewhere.example"
    ),
    "an old certificate": Row(
        "unknown", "@cert-authority * {ca}\n", "cert-old", then="@cert-authority * {ca}\ngpu.example {ed}\n"
    ),
    "an old certificate, its key known": Row("ok", "@cert-authority * {ca}\ngpu.example {ed}\n", "cert-old"),
    "an old certificate, another key known": Row(
        "changed", "@cert-authority * {ca}\ngpu.example {other}\n", "cert-old"
    ),
    "a future certificate": Row(
        "unknown", "@cert-authority * {ca}\n", "cert-future", then="@cert-authority * {ca}\ngpu.example {ed}\n"
    ),
    "a revoked authority": Row("revoked", "@cert-authority * {ca}\n@revoked * {ca}\n", "cert"),
    "a certificate of a revoked key": Row("revoked", "@cert-authority * {ca}\n@revoked * {ed}\n", "cert"),
    "a certificate in a KRL": Row(
        "revoked", "@cert-authority * {ca}\n", "cert", options="RevokedHostKeys {keys}/krl-ed"
    ),
    "an authority in a list": Row(
        "revoked", "@cert-authority * {ca}\n", "cert", options="RevokedHostKeys {folder}/rev", files={"rev": "{ca}\n"}
    ),
    "an authority, and the server has no certificate": Row(
        "unknown", "@cert-authority * {ca}\n", then="@cert-authority * {ca}\ngpu.example {ed}\n"
    ),
    "an authority, and a plain key": Row("ok", "@cert-authority * {ca}\ngpu.example {rsa}\n"),
}


@dataclass(frozen=True)
class Bench:
    """Keys, certificates and the servers' configurations; `public` is a key's type and blob by name."""

    folder: Path
    public: dict[str, str]
    sshd: str

    def fill(self, text: str, folder: Path) -> str:
        for name, key in self.public.items():
            text = text.replace(f"{{{name}}}", key).replace(f"{{{name}-blob}}", key.split()[1])
        while (at := text.find("{hash:")) >= 0:
            name = text[at:].partition("}")[0].removeprefix("{hash:")
            text = text.replace(f"{{hash:{name}}}", HASHED[name])
        return text.replace("{folder}", str(folder)).replace("{keys}", str(self.folder))


HASHED = {
    "gpu.example": "|1|GVCvkmkGkOHvFp+RxbdVuHGL38Y=|HASH",
    "b.example": "|1|GVCvkmkGkOHvFp+RxbdVuHGL38Y=|HASH",
}


@pytest.fixture(scope="module")
def bench(root_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    import paramiko

    folder = tmp_path_factory.mktemp("keys")
    salt = "|1|GVCvkmkGkOHvFp+RxbdVuHGL38Y=|x"
    HASHED.update({name: paramiko.HostKeys.hash_host(name, salt) for name in HASHED})
    kinds = {"rsa": "rsa -b 2048", "rsa2": "rsa -b 2048", "ec": "ecdsa"}
    for name in ("ed", "rsa", "rsa2", "ec", "other", "ca", "id"):
        kind = kinds.get(name, "ed25519")
        run(f"ssh-keygen -q -t {kind} -N '' -C {name} -f {folder}/{name}")
    for name, words in CERTIFICATES.items():
        shutil.copy(folder / "ed.pub", folder / f"{name}.pub")
        run(f"ssh-keygen -q -s {folder / ('rsa2' if 'rsa' in name else 'ca')} -I x {words} {folder}/{name}.pub")
    for name in ("ed", "other"):
        run(f"ssh-keygen -q -k -f {folder}/krl-{name} {folder}/{name}.pub")
    for server, names in SERVERS.items():
        lines = [
            f"HostCertificate {folder}/{name}-cert.pub" if name in CERTIFICATES else f"HostKey {folder}/{name}"
            for name in names
        ]
        (folder / f"{server}.conf").write_text(SERVER.format(folder=folder) + "\n".join(lines) + "\n")
    public = {path.stem: " ".join(path.read_text().split()[:2]) for path in folder.glob("*.pub")}
    place = place_of(folder, folder / "state")
    sshd.make_privilege_separation(place)
    try:
        yield Bench(folder, public, shutil.which("sshd", path=sshd.SYSTEM_PATH) or "/usr/sbin/sshd")
    finally:
        sshd.remove_privilege_separation(place)


def run(command: str) -> None:
    subprocess.run(command, shell=True, check=True, stdin=subprocess.DEVNULL)  # noqa: S602


def lay(bench: Bench, row: Row, folder: Path) -> Path:
    """The row's files in a folder of its own; the path of its ssh_config."""
    folder.mkdir(parents=True)
    (folder / "known").write_bytes(bench.fill(row.known, folder).encode("latin-1"))
    for name, text in (row.files or {}).items():
        (folder / name).write_text(bench.fill(text, folder))
    options = bench.fill(row.options, folder)
    head = "Host *\n" + "".join(f"  {line}\n" for line in options.splitlines())
    client = CLIENT.format(folder=bench.folder, sshd=bench.sshd, server=row.server)
    known = f"  UserKnownHostsFile {folder}/known {folder}/known2\n"
    (folder / "config").write_text(f"{head}{client}{known}")
    return folder / "config"


def by_ssh(config: Path, host: str, mode: Mode) -> str:
    strict = {"strict": "yes", "accept-new": "accept-new"}[mode]
    argv = ("ssh", "-F", str(config), "-o", f"StrictHostKeyChecking={strict}", host, "true")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    signs = {
        "revoked": ("REVOKED HOST KEY", "revoked by file", "in revoked keys file"),
        "changed": ("IDENTIFICATION HAS CHANGED",),
        "command": ("KnownHostsCommand failed",),
        "short": ("key length", "Invalid key length"),
        "unknown": ("host key is known for", "Host key verification failed"),
    }
    if done.returncode == 0:
        return "ok"
    return next((name for name, texts in signs.items() if any(text in done.stderr for text in texts)), done.stderr)


def by_rackhand(config: Path, host: str, mode: Mode) -> str:
    ssh = inventory.Ssh(host, config=config, host_keys=mode)
    signs = {
        "command": ("KnownHostsCommand failed",),
        "short": ("bits only",),
        "revoked": ("REVOKED", "RevokedHostKeys"),
        "changed": ("CHANGED",),
        "unknown": ("unknown host key",),
    }
    try:
        connect(ssh, resolve(ssh, "pve1"), "pve1", threading.Event()).close()
    except HostKeyError as error:
        return next(name for name, texts in signs.items() if any(text in error.what for text in texts))
    return "ok"


def left(folder: Path) -> str:
    return (folder / "known").read_bytes().decode("latin-1")


def wrong(bench: Bench, name: str, row: Row, folder: Path) -> list[str]:
    """What ssh and rackhand don't agree about, and what the table says otherwise."""
    found = []
    modes: list[tuple[Mode, str]] = [("strict", row.want)]
    if row.want != "ok":
        modes.append(("accept-new", "ok" if row.want == "unknown" and row.accepted else row.want))
    for mode, want in modes:
        places = [folder / f"{mode}-{who}" for who in ("ssh", "ours")]
        configs = [lay(bench, row, place) for place in places]
        verdicts = [by_ssh(configs[0], row.host, mode), by_rackhand(configs[1], row.host, mode)]
        if verdicts != [want, want]:
            found.append(f"{name}, {mode}: ssh {verdicts[0]!r}, ours {verdicts[1]!r}, table {want!r}")
        files = [left(place) for place in places]
        then = bench.fill(row.known if mode == "strict" or row.then is None else row.then, folder)
        if files != [then, then]:
            found.append(f"{name}, {mode}: ssh left {files[0]!r}, ours {files[1]!r}, table {then!r}")
    return found


def test_a_host_key_gets_the_verdict_of_the_real_ssh_in_every_row(bench: Bench, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        ways = [
            pool.submit(wrong, bench, name, row, tmp_path / str(number))
            for number, (name, row) in enumerate(ROWS.items())
        ]
        found = [line for way in ways for line in way.result()]
    assert not found, "\n".join(found)
