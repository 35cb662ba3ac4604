from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from proxmoxer import ResourceException

from rackhand import proxmox
from rackhand.apply.container import start_container
from rackhand.command import Argv, Completed
from rackhand.errors import AuthError, PreconditionError, RackhandError, RemoteError, UnreachableError
from rackhand.inventory import Api, Host, ProxmoxLxc, SecretRef, Ssh
from rackhand.proxmox import Node
from rackhand.secrets import Secret
from rackhand.transport import Stdin
from rackhand.transport.via import pct

UPID = "UPID:pve1:1:2:3:vzstart:200:root@pam!t:"


class Client:
    """proxmoxer's way of building paths, over answers by path; a list is used up one by one, an error is raised."""

    def __init__(self, answers: dict[str, Any], path: str = "") -> None:
        self._answers, self._path = answers, path

    def __getattr__(self, name: str) -> Client:
        return Client(self._answers, f"{self._path}/{name}")

    def __call__(self, part: object) -> Client:
        return Client(self._answers, f"{self._path}/{part}")

    def get(self, **_: object) -> Any:
        return self._answer()

    def post(self, **_: object) -> Any:
        return self._answer()

    def _answer(self) -> Any:
        found = self._answers[self._path]
        answer = found.pop(0) if isinstance(found, list) else found
        if isinstance(answer, Exception):
            raise answer
        return answer


def node(**answers: Any) -> Node:
    api = Api("root@pam!t", SecretRef(env="T"), url="https://pve1:8006")
    made = Node(ProxmoxLxc(Ssh("pve1"), 200, api), Secret("s"), where="pve1", limit_s=20)
    base = "/nodes/n1/lxc/200/status"
    known = {
        "/version": {"release": "8.4"},
        "/cluster/resources": [[{"vmid": 100, "node": "n0"}, {"vmid": 200, "node": "n1"}]],
        f"{base}/current": {"status": "stopped"},
        f"{base}/start": UPID,
        f"/nodes/n1/tasks/{UPID}/status": answers.pop("task", {"status": "stopped", "exitstatus": "OK"}),
    }
    vars(made)["_client"] = Client(known | {f"/{name}": answer for name, answer in answers.items()})
    return made


@pytest.mark.parametrize("end", ["OK", "WARNINGS: 2"])
def test_a_task_is_awaited_and_warnings_are_a_success(end: str) -> None:
    node(task=[{"status": "running"}, {"status": "stopped", "exitstatus": end}]).start(200)


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        ("startup for container '200' failed", RemoteError, "pve1: the start of 200 failed: startup for container"),
        ("CT is locked (backup)", PreconditionError, r"pve1: 200 was not started: CT is locked \(backup\); wait for"),
        ("can't lock file 'x' - got timeout", PreconditionError, "200 was not started: can't lock file"),
        (
            "Configuration file 'nodes/n1/lxc/200.conf' does not exist",
            PreconditionError,
            "pve1: no container 200; mend",
        ),
    ],
)
def test_a_task_that_failed_is_told_in_its_own_words(end: str, kind: type[RackhandError], text: str) -> None:
    with pytest.raises(kind, match=text):
        node(task={"exitstatus": end}).start(200)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            ResourceException(403, "Forbidden", "Permission check failed (/vms/200, VM.Audit)"),
            "root@pam!t may not ask for status of 200; give it VM.Audit and VM.PowerMgmt on /vms/200 (a privilege",
        ),
        (
            ResourceException(500, "hostname lookup 'n1' failed - failed to get address info for: n1", ""),
            "no node n1 in this cluster; mend node in the inventory, or leave it out",
        ),
        (
            ResourceException(500, "Configuration file 'nodes/n1/lxc/200.conf' does not exist", ""),
            "no container 200; mend vmid in the inventory, and node if it is set there",
        ),
    ],
)
def test_a_refused_look_at_the_container_says_what_to_do(said: ResourceException, text: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        node(**{"nodes/n1/lxc/200/status/current": said}).start(200)
    assert text in str(caught.value)


def test_a_container_that_the_api_does_not_show_is_a_precondition() -> None:
    with pytest.raises(PreconditionError, match=r"the API shows no container 300; .*VM.Audit on /vms/300"):
        node().start(300)


def test_a_login_page_is_not_taken_for_an_answer() -> None:
    with pytest.raises(RemoteError, match=r"answered with an HTML page; is a proxy's login page in between\?"):
        node(version={"errors": b"<!doctype html><HTML>login"}).version()


def test_a_question_is_asked_again_and_a_start_is_not() -> None:
    assert node(version=[requests.exceptions.ReadTimeout("slow"), {"release": "9.0"}]).version() == "9.0"
    with pytest.raises(UnreachableError):
        node(**{"nodes/n1/lxc/200/status/start": [requests.exceptions.ConnectionError("x"), UPID]}).start(200)


@pytest.mark.parametrize(
    ("problem", "kind", "text"),
    [
        (ResourceException(401, "Unauthorized", "no such token"), RackhandError, "the API refused root@pam!t"),
        (
            ResourceException(403, "Forbidden", "Permission check failed"),
            PreconditionError,
            "VM.Audit and VM.PowerMgmt",
        ),
        (ResourceException(500, "Error", "odd"), RemoteError, "version: 500 Error: odd"),
        (requests.exceptions.SSLError("CA cert does not include key usage extension"), PreconditionError, "pin it"),
        (requests.exceptions.SSLError("certificate verify failed: self-signed"), PreconditionError, "pve-root-ca.pem"),
        (requests.exceptions.SSLError("Fingerprints did not match"), PreconditionError, "another fingerprint"),
    ],
)
def test_what_the_api_refuses_says_what_to_do(problem: Exception, kind: type[RackhandError], text: str) -> None:
    with pytest.raises(kind) as caught:
        node(version=problem).version()
    assert text in str(caught.value)


def test_the_token_shows_in_no_error_or_repr() -> None:
    api = Api("root@pam!t", SecretRef(env="T"), url="https://127.0.0.1:9")
    made = Node(ProxmoxLxc(Ssh("pve1"), 200, api), Secret("tok-s3cret"), where="pve1")
    with pytest.raises(UnreachableError) as caught:
        made.version()
    assert "s3cret" not in f"{caught.value!r} {caught.value.detail} {made!r} {vars(made)['_client']!r}"


class Pct:
    """The Proxmox host's shell: it starts what it is asked to."""

    where = "pve1"

    def __init__(self, stderr: bytes = b"") -> None:
        self.asked: list[Argv] = []
        self._stderr = stderr

    def exec(self, argv: Argv, *, stdin: Stdin = b"", deadline_s: float = 60.0) -> Completed:
        self.asked.append(argv)
        return Completed(argv, 0, b"", self._stderr, 0.0)

    def stream(self, *_: object, **__: object) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def started(url: str) -> tuple[list[Argv], list[str]]:
    """The commands that came to the Proxmox host, and what was said."""
    api, shell, said = Api("root@pam!t", SecretRef(command=("echo", "s")), url=url), Pct(), list[str]()
    host = Host("pve1", ProxmoxLxc(Ssh("pve1"), 200, api, "n1"))
    try:
        start_container(pct(shell, 200), host, said.append)
    except RackhandError as error:
        said.append(str(error))
    return shell.asked, said


def test_an_api_that_is_down_or_stuck_is_done_without_after_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxmox, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(proxmox, "ASKED_AGAIN_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        stuck_url = f"https://127.0.0.1:{stuck.getsockname()[1]}"
        for url, why in (
            ("https://127.0.0.1:9", "no API at https://127.0.0.1:9; doing without it"),
            (stuck_url, f"{stuck_url} gave no answer to status of 200; doing without it"),
        ):
            asked, said = started(url)
            assert asked == [("pct", "start", "200")]
            assert said == ["starting container 200 through the API", why, "pct start 200"]


def test_a_start_that_warns_is_a_success_and_the_warning_is_told() -> None:
    said: list[str] = []
    shell = Pct(b"WARN: old systemd (< v232) detected\nTask finished with 1 warning(s)!\n")
    start_container(pct(shell, 200), Host("pve1", ProxmoxLxc(Ssh("pve1"), 200)), said.append)
    assert said == ["pct start 200", "pct start 200: WARN: old systemd (< v232) detected"]


@pytest.mark.parametrize("refusal", [AuthError("401"), PreconditionError("403"), RemoteError("the start failed")])
def test_what_the_api_refuses_is_done_no_other_way(refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_node: Node, _vmid: int) -> None:
        raise refusal

    monkeypatch.setattr(Node, "start", refuse)
    asked, said = started("https://127.0.0.1:9")
    assert (asked, said[1:]) == ([], [str(refusal)])
