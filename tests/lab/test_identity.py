"""Which keys are offered to a real sshd, and what is said when it takes none."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import sshd
from lab.place import place_of
from rackhand import inventory
from rackhand.errors import AuthError
from rackhand.transport.connect import connect
from rackhand.transport.ssh_config import resolve

pytestmark = pytest.mark.lab


def run(*argv: str, **env: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, env={**os.environ, **env})


@pytest.fixture(scope="module")
def keys(root_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the key that sshd takes (`good`), six that it doesn't, one with a passphrase and certificates."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("host", "good", "ca", "signed", *(f"bad{n}" for n in range(7))):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name))
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(folder / "locked"))
    run("ssh-keygen", "-q", "-s", str(folder / "ca"), "-I", "x", "-n", "root", str(folder / "signed.pub"))
    (folder / "signed-cert.pub").rename(folder / "elsewhere-cert.pub")
    (folder / "authorized").write_text((folder / "good.pub").read_text() + (folder / "locked.pub").read_text())
    (folder / "sshd.conf").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nTrustedUserCAKeys {folder}/ca.pub\n"
        "StrictModes no\nUsePAM no\nKbdInteractiveAuthentication no\n"
    )
    place = place_of(folder, folder / "state")
    sshd.make_privilege_separation(place)
    try:
        yield folder
    finally:
        sshd.remove_privilege_separation(place)


Add = Callable[..., str]


@pytest.fixture
def agent(keys: Path, tmp_path: Path) -> Iterator[Add]:
    """agent(names...): an agent that holds these keys; its socket."""
    socket = tmp_path / "agent"
    said = subprocess.run(("ssh-agent", "-s", "-a", str(socket)), capture_output=True, text=True, check=True).stdout
    found = re.search(r"SSH_AGENT_PID=(\d+)", said)
    assert found

    def add(*names: str) -> str:
        for name in names:
            run("ssh-add", str(keys / name), SSH_AUTH_SOCK=str(socket))
        return str(socket)

    yield add
    os.kill(int(found[1]), signal.SIGTERM)


def offered(keys: Path, tmp_path: Path, options: str) -> None:
    """Connects once with these options of ssh_config."""
    binary = shutil.which("sshd", path=sshd.SYSTEM_PATH) or "/usr/sbin/sshd"
    host = " ".join((keys / "host.pub").read_text().split()[:2])
    (tmp_path / "known").write_text(f"gpu.example {host}\n")
    (tmp_path / "config").write_text(
        f"Host gpu\n  HostName gpu.example\n  User root\n  ProxyCommand {binary} -i -f {keys}/sshd.conf\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  GlobalKnownHostsFile none\n"
        + "".join(f"  {line}\n" for line in options.format(keys=keys, tmp=tmp_path).splitlines())
    )
    ssh = inventory.Ssh("gpu", config=tmp_path / "config")
    connect(ssh, resolve(ssh, "pve1"), "pve1", threading.Event()).close()


def refusal(keys: Path, tmp_path: Path, options: str) -> str:
    with pytest.raises(AuthError) as caught:
        offered(keys, tmp_path, options)
    return str(caught.value).replace(str(keys), "K")


BAD = tuple(f"bad{n}" for n in range(7))


@pytest.mark.parametrize(
    "options",
    [
        "IdentityAgent {tmp}/agent\nIdentityFile {keys}/good",
        "IdentityAgent {tmp}/agent\nIdentityFile {keys}/good.pub",
        "IdentityAgent {tmp}/agent\nIdentityFile {keys}/good.pub\nIdentitiesOnly yes",
        "IdentityAgent {tmp}/%r-agent\nIdentityFile {keys}/good",
    ],
)
def test_the_agents_key_that_is_named_is_offered_first(keys: Path, agent: Add, tmp_path: Path, options: str) -> None:
    socket = agent(*BAD, "good")
    (tmp_path / "root-agent").symlink_to(socket)
    offered(keys, tmp_path, options)


def test_the_socket_may_stand_in_a_variable(
    keys: Path, agent: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_AGENT", agent("good"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    offered(keys, tmp_path, "IdentityAgent $MY_AGENT\nIdentityFile {keys}/bad0")


def test_too_many_keys_are_said_to_be_that(keys: Path, agent: Add, tmp_path: Path) -> None:
    agent(*BAD, "good")
    said = refusal(keys, tmp_path, "IdentityAgent {tmp}/agent\nIdentityFile {keys}/bad6")
    assert re.search(r"hung up after \d refused keys; too many keys before the right one: set IdentitiesOnly yes", said)


def test_identities_only_leaves_the_agents_other_keys_out(keys: Path, agent: Add, tmp_path: Path) -> None:
    agent(*BAD, "good")
    said = refusal(keys, tmp_path, "IdentityAgent {tmp}/agent\nIdentityFile {keys}/bad0.pub\nIdentitiesOnly yes")
    assert "offered: K/bad0.pub (agent); put the public key" in said


@pytest.mark.parametrize(
    "options",
    [
        "IdentityFile {keys}/%n",
        "IdentityFile {keys}/${{WHICH}}",
        "IdentityFile {keys}/%d/../good",
        "IdentityFile {keys}/bad0\nIdentityFile {keys}/good",
        "IdentityFile {keys}/gone\nIdentityFile {keys}/good",
        "IdentityFile {keys}/signed\nCertificateFile {keys}/elsewhere-cert.pub",
        "IdentityFile {keys}/signed\nCertificateFile {keys}/%r-elsewhere-cert.pub",
    ],
)
def test_a_key_file_is_found_as_ssh_finds_it(
    keys: Path, tmp_path: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHICH", "good")
    for link, name in (("gpu", "good"), ("root-elsewhere-cert.pub", "elsewhere-cert.pub")):
        if not (keys / link).exists():
            (keys / link).symlink_to(keys / name)
    home = str(Path.home())
    options = options.replace("{keys}/%d/..", "{tmp}%d")
    (tmp_path / home.lstrip("/")).mkdir(parents=True)
    (tmp_path / home.lstrip("/") / "good").symlink_to(keys / "good")
    offered(keys, tmp_path, f"IdentityAgent none\n{options}")


def test_an_agents_certificate_is_found_beside_its_key(keys: Path, agent: Add, tmp_path: Path) -> None:
    agent("signed")
    offered(
        keys,
        tmp_path,
        "IdentityAgent {tmp}/agent\nIdentityFile {keys}/signed.pub\nCertificateFile {keys}/elsewhere-cert.pub",
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("IdentityFile {keys}/bad0", "root@gpu.example was refused; offered: K/bad0; put the public key into root's"),
        ("IdentityFile {keys}/gone", "ssh_config names K/gone, which isn't there; offered: no key"),
        (
            "IdentityFile {keys}/gone\nIdentityFile {keys}/bad0",
            "ssh_config names K/gone, which isn't there; offered: K/bad0",
        ),
        ("IdentityFile {keys}/locked", "K/locked has a passphrase: unlock it in an agent, ssh-add K/locked"),
        ("IdentityFile {keys}/sshd.conf", "K/sshd.conf is no private key; offered: no key"),
        ("IdentityFile {keys}/open", "K/open may be read by others (mode 0644): chmod 600 K/open; offered: no key"),
        (
            "IdentityFile {keys}/bad0\nCertificateFile {keys}/none-cert.pub",
            "ssh_config names K/none-cert.pub, which isn't there; offered: K/bad0",
        ),
    ],
)
def test_a_refusal_names_what_is_wrong_with_the_keys(keys: Path, tmp_path: Path, options: str, text: str) -> None:
    shutil.copy(keys / "good", keys / "open")
    (keys / "open").chmod(0o644)
    (keys / "sshd.conf").chmod(0o600)
    assert text in refusal(keys, tmp_path, f"IdentityAgent none\n{options}")


def test_an_agent_that_is_gone_is_told_with_the_details(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(AuthError) as caught:
        offered(keys, tmp_path, "IdentityAgent {tmp}/gone\nIdentityFile {keys}/bad0")
    assert f"no agent at {tmp_path}/gone: No such file" in caught.value.detail


def test_a_locked_key_that_the_agent_holds_is_used(keys: Path, agent: Add, tmp_path: Path) -> None:
    socket = agent()
    askpass = tmp_path / "askpass"
    askpass.write_text("#!/bin/sh\necho secret\n")
    askpass.chmod(0o700)
    run("ssh-add", str(keys / "locked"), SSH_AUTH_SOCK=socket, SSH_ASKPASS=str(askpass), SSH_ASKPASS_REQUIRE="force")
    offered(keys, tmp_path, "IdentityAgent {tmp}/agent\nIdentityFile {keys}/locked\nIdentitiesOnly yes")
