"""What `ssh -G` prints, as ssh itself goes on with it; and known_hosts where no server is needed for it."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import subprocess
from pathlib import Path

import paramiko
import pytest
from paramiko.message import Message

from rackhand import inventory
from rackhand.errors import HostKeyError, PreconditionError
from rackhand.transport.host_keys import Policy, Shown, record
from rackhand.transport.known_hosts import entries_of
from rackhand.transport.ssh_config import Target, parse_ssh_g, resolve
from rackhand.transport.tokens import TokenError, expand, tokens_of

SSH_G = Path(__file__).parent / "ssh_g"
HOME = str(Path.home())


@pytest.mark.parametrize("name", sorted(path.stem for path in SSH_G.glob("*.txt")))
def test_ssh_g_is_read_as_openssh_means_it(name: str) -> None:
    text, _, wanted = (SSH_G / f"{name}.txt").read_text().partition("=====\n")
    env = {"KEYS": "/k", "SSH_AUTH_SOCK": "/agent"}
    target = parse_ssh_g(text, inventory.Ssh("alias", config=Path("/c f/ssh_config")), env)
    shown = (
        f"{target.user}@{target.host}:{target.port} as {target.key_name}\n"
        f"keys {'|'.join(map(str, target.key_files))} only={target.only_key_files} agent={target.agent}\n"
        f"certificates {'|'.join(map(str, target.cert_files))}\n"
        f"known {'|'.join(map(str, target.known_hosts))} revoked {'|'.join(map(str, target.revoked))}\n"
        f"proxy {target.proxy_command}\n"
    )
    assert shown.replace(HOME, "~") == wanted


def test_a_configuration_that_ssh_refuses_is_a_precondition(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"ssh can't read its configuration.*lab\.up"):
        resolve(inventory.Ssh("alias", config=tmp_path / "none"), "pve1")


def test_an_alias_with_an_include_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host alias\n HostName 127.9.9.9\n Port 2222\n User root\n")
    (tmp_path / "config").write_text(f'Include "{tmp_path}/more"\n')
    target = resolve(inventory.Ssh("alias", config=tmp_path / "config"), "pve1")
    assert (target.host, target.port, target.user) == ("127.9.9.9", 2222, "root")
    assert target.key_name == "[127.9.9.9]:2222"


TOKENS = tokens_of(host="h.example", port=2222, user="root", alias="gpu", key_name="box")
C = hashlib.sha1(f"{socket.gethostname()}h.example2222root".encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("%h:%p %r@%n %k %%h %u", f"h.example:2222 root@gpu box %h {getpass.getuser()}"),
        ("%d/x", f"{HOME}/x"),
        ("%l", socket.gethostname()),
        ("%L", socket.gethostname().partition(".")[0]),
        ("%i", str(os.getuid())),
        ("%C", C),
        ("${A}/${B_2}", "one/%h"),
        ("$A ${", "$A ${"),
        ("%%%h%%", "%h.example%"),
    ],
)
def test_tokens_and_variables_are_replaced_once(text: str, wanted: str) -> None:
    assert expand(text, TOKENS, {"A": "one", "B_2": "%h"}) == wanted


@pytest.mark.parametrize(
    ("text", "why"), [("%z", "%z is no token"), ("a%", "% is no token"), ("${NO}", "NO is not set")]
)
def test_a_token_that_stops_ssh_is_named(text: str, why: str) -> None:
    with pytest.raises(TokenError, match=why):
        expand(text, TOKENS, {})


TOKEN_CONFIG = """Host gpu
  HostName h.example
  Port 2222
  User root
  UserKnownHostsFile /{}
"""


def test_the_tokens_are_those_that_ssh_itself_replaces(tmp_path: Path) -> None:
    """`ssh -G` replaces them in UserKnownHostsFile: its own values are the measure."""
    signs = ["C", "d", "h", "i", "k", "L", "l", "n", "p", "r", "u", "%"]
    (tmp_path / "config").write_text(TOKEN_CONFIG.format("|".join(f"%{sign}" for sign in signs)))
    argv = ("ssh", "-F", str(tmp_path / "config"), "-G", "gpu")
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    value = next(line for line in said.splitlines() if line.startswith("userknownhostsfile "))
    ours = tokens_of(host="h.example", port=2222, user="root", alias="gpu", key_name="gpu")
    assert value == "userknownhostsfile /" + "|".join(ours[sign] for sign in signs)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("IdentityFile ${RACKHAND_NO_SUCH}/id", "identityfile .*RACKHAND_NO_SUCH is not set"),
        ("IdentityFile ~/%z", "identityfile ~/%z: %z is no token of ssh"),
        ("IdentityFile ~nobody-of-that-name/id", "no such user: ~nobody-of-that-name"),
        ("ProxyCommand nc %h %z", "%z is no token of ssh"),
    ],
)
def test_a_value_that_cannot_be_expanded_is_a_precondition(line: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"Host alias\n  {line}\n")
    with pytest.raises(PreconditionError, match=text):
        resolve(inventory.Ssh("alias", config=tmp_path / "config"), "pve1")


GOOD_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJKEfTAcuMiLwYTm9o9YAqZMVxEkxnT7iGPMRvFGsDnC"


def good() -> Shown:
    from base64 import b64decode

    return Shown(paramiko.Ed25519Key(Message(b64decode(GOOD_KEY))))


@pytest.mark.parametrize(
    "line",
    [
        "h ssh-ed25519 !!!notbase64",
        "h ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB",
        "h ssh-ed25519 AAAA",
        "\xff\xfe",
        "# a comment",
        "h",
    ],
)
def test_a_line_of_known_hosts_that_cannot_be_read_hides_no_other(line: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(f"{line}\nh ssh-ed25519 {GOOD_KEY}\n".encode("latin-1"))
    found = entries_of("h", (file, tmp_path / "missing", tmp_path))
    assert [(entry.key, entry.source) for entry in found] == [(good().plain, f"{file}:2")]


def target(file: Path, **change: object) -> Target:
    options: dict[str, object] = {"known_hosts": (file,), "new_keys": file, **change}
    return Target("h", 22, "root", "h", **options)  # type: ignore[arg-type]


def test_a_new_key_goes_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    record(target(file), good(), "pve1")
    assert file.read_text() == f"h ssh-ed25519 {GOOD_KEY}\n"
    file.write_text("b ssh-rsa x")
    record(target(file), good(), "pve1")
    assert file.read_text() == f"b ssh-rsa x\nh ssh-ed25519 {GOOD_KEY}\n"


def test_a_new_key_is_recorded_under_a_hashed_name_where_ssh_would_hash_it(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    record(target(file, hash_names=True), good(), "pve1")
    assert file.read_text().startswith("|1|")
    assert [entry.key for entry in entries_of("h", (file,))] == [good().plain]


def test_a_key_that_cannot_be_recorded_is_not_accepted(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=f"can't record the host key in {tmp_path}: Is a directory"):
        record(target(tmp_path), good(), "pve1")


class Client(paramiko.SSHClient):
    """Connected to `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get_transport(self) -> Client:  # type: ignore[override]
        return self

    def getpeername(self) -> tuple[str, int]:
        return self.address, 22


@pytest.mark.parametrize(
    ("known", "options", "address", "text"),
    [
        ("h", {}, "10.0.0.5", ""),
        ("h", {"check_ip": True}, "10.0.0.5", ""),
        ("h,10.0.0.5", {"check_ip": True}, "10.0.0.5", ""),
        ("other 10.0.0.5", {"check_ip": True}, "10.0.0.5", "CHANGED"),
        ("revoked 10.0.0.5", {"check_ip": True}, "10.0.0.5", "REVOKED"),
        ("other 10.0.0.5", {}, "10.0.0.5", ""),
        ("nobody", {"trust_loopback": True}, "127.0.0.1", ""),
        ("nobody", {"trust_loopback": True}, "::1", ""),
        ("nobody", {"trust_loopback": True}, "10.0.0.5", "unknown host key"),
        ("nobody", {"asks_dns": True}, "10.0.0.5", "VerifyHostKeyDNS is not supported"),
    ],
)
def test_an_address_counts_where_ssh_config_asks_for_it(
    known: str, options: dict[str, object], address: str, text: str, tmp_path: Path
) -> None:
    file, kind = tmp_path / "known_hosts", "ssh-ed25519"
    other = paramiko.ECDSAKey.generate()
    lines = {
        "other 10.0.0.5": f"h {kind} {GOOD_KEY}\n10.0.0.5 {other.get_name()} {other.get_base64()}\n",
        "revoked 10.0.0.5": f"h {kind} {GOOD_KEY}\n@revoked 10.0.0.5 {kind} {GOOD_KEY}\n",
    }
    file.write_text(lines.get(known, f"{known} {kind} {GOOD_KEY}\n"))
    policy = Policy(target(file, **options), "strict", "pve1")
    if not text:
        policy.missing_host_key(Client(address), "h", good().key)
        return
    with pytest.raises(HostKeyError, match=text):
        policy.missing_host_key(Client(address), "h", good().key)
