"""deploy on the lab: how many calls it makes, and what each fault looks like."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import host as lab_host
from lab import sshd, trouble
from lab.place import NO_ACL_TOKEN_ID, NODE, TOKEN_ID, LabOptions, Place
from rackhand import observe
from rackhand.apply import files as apply_files
from rackhand.inventory import Api, Env, FileSpec, Fleet, Host, PlainSsh, ProxmoxLxc, SecretRef, ServerSpec, Ssh
from rackhand.report import Report
from rackhand.transport import ssh as ssh_module
from rackhand.transport.ssh import Ssh as SshRoad
from rackhand.workflows.deploy import Choice, deploy

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def lab_up(folder: Path, options: LabOptions) -> Iterator[Place]:
    place = lab_host.up(ROOT, options, state=folder / "lab")
    try:
        yield place
    finally:
        lab_host.down(ROOT, state=folder / "lab")


@pytest.fixture(scope="module")
def place(root_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with lab_up(tmp_path_factory.mktemp("deploy"), LabOptions(gpus=2)) as place:
        yield place


def host_of(place: Place, tmp_path: Path, *, api: bool = False) -> Host:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\necho {tmp_path.name}\n")
    token = Api(TOKEN_ID, SecretRef(command=("cat", str(place.token))), ca=place.ca)
    road = ProxmoxLxc(Ssh("pve-lab", place.ssh_config, connect_timeout_s=5), 200, token if api else None, NODE)
    return Host(
        "pve1",
        road,
        workspace="/workspace",
        python="/opt/sglang/bin/python",
        env=Env({"MODE": "a b"}, source="/root/sglang_env.sh"),
        files=(FileSpec(script, "/workspace/scripts/run.sh", 0o755),),
        servers=(ServerSpec("Qwen/Qwen3.6-27B"),),
    )


@pytest.fixture
def host(place: Place, tmp_path: Path) -> Host:
    return host_of(place, tmp_path)


def run(host: Host, **choice: Any) -> Report:
    fleet = Fleet(Path("x.yaml"), (host,))
    return deploy(fleet, fleet.hosts, say=lambda *_: None, choice=Choice(**choice))


def error(report: Report) -> str:
    return str(report.rows[0].error)


def what(report: Report) -> list[str]:
    assert report.rows[0].error is None, report.rows[0].error.detail or report.rows[0].error
    return [outcome.what for outcome in report.rows[0].outcomes]


def with_ssh(host: Host, **change: Any) -> Host:
    assert isinstance(host.road, ProxmoxLxc)
    return replace(host, road=replace(host.road, ssh=replace(host.road.ssh, **change)))


def calls(place: Place) -> list[str]:
    lines = place.pct_calls.read_text().splitlines() if place.pct_calls.exists() else []
    return [json.loads(line)["verb"] for line in lines]


def tree(place: Place) -> dict[str, bytes]:
    workspace = place.workspace(200)
    files = [path for path in workspace.rglob("*") if path.is_file() and path.name != ".deploy.lock"]
    return {str(path.relative_to(workspace)): path.read_bytes() for path in files}


def change(host: Host, text: str) -> Host:
    host.files[0].src.write_text(text * 1000)
    return host


def during_the_stream(monkeypatch: pytest.MonkeyPatch, place: Place, act: Callable[[], None]) -> None:
    """`act` runs once, when `receive` holds its lock in the container and a part of the files has been sent."""
    whole = apply_files._body

    def body(sources: Any) -> Iterator[bytes]:
        pieces = whole(sources)
        yield next(pieces)
        monkeypatch.setattr(apply_files, "_body", whole)
        await_true(lambda: is_locked(place.workspace(200) / "rackhand/.deploy.lock"))
        act()
        yield from pieces

    monkeypatch.setattr(apply_files, "_body", body)


def is_locked(file: Path) -> bool:
    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def await_true(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_connection_and_one_pct_call_whether_everything_changed_or_nothing_did(
    place: Place, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    connect = ssh_module.connect
    monkeypatch.setattr(ssh_module, "connect", lambda *args: opened.append(args) or connect(*args))
    before = len(calls(place))
    first = run(host)
    assert what(first) == ["sent 5 files"]
    assert first.rows[0].facts["CUDA_HOME"].endswith("cu13")
    assert first.rows[0].facts["library paths"] == "9"
    assert calls(place)[before:] == ["exec"]
    assert len(opened) == 1
    assert what(run(host)) == ["nothing to do"]
    assert calls(place)[before:] == ["exec"] * 2
    assert len(opened) == 2
    assert tree(place)["scripts/run.sh"] == host.files[0].src.read_bytes()


def test_a_plain_host_takes_the_same_files_without_pct(place: Place, host: Host) -> None:
    run(host)
    before = len(calls(place))
    plain = replace(host, road=PlainSsh(Ssh("gpu-ssh", place.ssh_config)))
    assert what(run(plain)) == ["nothing to do"]
    assert what(run(change(plain, "plain"))) == ["sent 1 file"]
    assert tree(place)["scripts/run.sh"] == b"plain" * 1000
    assert len(calls(place)) == before


def test_an_environment_is_made_in_a_container_without_a_network_by_one_call(place: Place, host: Host) -> None:
    bare = replace(host, python=None, workspace="/root/bare")
    (place.upper(200) / "root/bare").mkdir(exist_ok=True)
    before = len(calls(place))
    report = run(bare)
    assert re.fullmatch(r"sent 5 files and Python environment \w+", what(report)[0])
    assert calls(place)[before:] == ["exec"]
    assert what(run(bare)) == ["nothing to do"]


def test_pushed_files_arrive_checked_and_nothing_stays_on_the_host(place: Place, host: Host) -> None:
    run(host)
    before, temporary = len(calls(place)), set(Path("/tmp").glob("rackhand-stage-*"))
    assert what(run(replace(change(host, "pushed"), put="push"))) == ["sent 1 file"]
    assert calls(place)[before:] == ["exec", "push"]
    assert tree(place)["scripts/run.sh"] == b"pushed" * 1000
    assert not [name for name in tree(place) if "push" in name]
    assert set(Path("/tmp").glob("rackhand-stage-*")) <= temporary


def test_a_shell_that_prints_breaks_sftp_and_no_push(place: Place, host: Host, tmp_path: Path) -> None:
    run(host)
    (tmp_path / "batch").write_text("ls /\n")
    sftp = ("sftp", "-F", str(place.ssh_config), "-b", str(tmp_path / "batch"), "pve-lab")
    assert subprocess.run(sftp, capture_output=True, timeout=30, check=False).returncode == 0
    trouble.print_at_login(place)
    try:
        assert subprocess.run(sftp, capture_output=True, timeout=30, check=False).returncode != 0
        assert what(run(replace(change(host, "printed"), put="push"))) == ["sent 1 file"]
    finally:
        trouble.print_at_login(place, None)
    assert tree(place)["scripts/run.sh"] == b"printed" * 1000


def test_a_push_against_a_held_lock_says_what_holds_it(place: Place, host: Host) -> None:
    run(host)
    with (place.lock_dir / "pve-config-200.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        report = run(replace(change(host, "locked"), put="push"))
    assert "pve1/ct200: something else holds the container's configuration lock" in error(report)
    assert report.exit_code == 4


@pytest.mark.parametrize("api", [True, False])
def test_a_stopped_container_is_started_only_when_asked(place: Place, tmp_path: Path, api: bool) -> None:
    host = host_of(place, tmp_path, api=api)
    trouble.stop_container(place, 200)
    report = run(host)
    assert "pve1/ct200: the container is stopped; run again with --yes to start it" in error(report)
    assert report.exit_code == 4
    asked: list[str] = []
    report = run(host, confirm=lambda question: bool(asked.append(question)) or True)
    assert what(report)[0] == "started container 200"
    assert asked == ["pve1/ct200 is stopped. Start it?"]
    assert report.exit_code == 0


def test_a_full_disk_leaves_the_old_files_whole(tmp_path: Path) -> None:
    with lab_up(tmp_path, LabOptions(gpus=1, disk_mib=4)) as small:
        host = host_of(small, tmp_path)
        what(run(host))
        road = SshRoad(Ssh("pve-lab", small.ssh_config), "pve1")
        pct = ("pct", "exec", "200", "--")
        road.exec((*pct, "sh", "-c", "head -c 3500000 /dev/zero >/workspace/fill"))
        kept = road.exec((*pct, "cat", "/workspace/scripts/run.sh")).stdout
        host.files[0].src.write_bytes(os.urandom(2_000_000))
        for put in ("stream", "push"):
            report = run(replace(host, put=put))
            assert error(report).startswith("pve1/ct200: the disk is full; make room there")
            assert report.exit_code == 4
            assert road.exec((*pct, "cat", "/workspace/scripts/run.sh")).stdout == kept
            left = road.exec((*pct, "find", "/workspace", "-name", "*rackhand-*")).stdout
            assert left == b""
        road.close()


def test_a_read_only_workspace_is_said_before_anything_is_sent(place: Place, host: Host) -> None:
    trouble.set_workspace_access(place, 200, read_only=True)
    try:
        report = run(change(host, "new"))
    finally:
        trouble.set_workspace_access(place, 200, read_only=False)
    assert "pve1/ct200: /workspace: Read-only file system; mount it read-write" in error(report)
    assert report.exit_code == 4


def test_a_noexec_workspace_holds_no_environment_and_all_the_rest(place: Place, host: Host) -> None:
    trouble.set_workspace_noexec(place, 200, noexec=True)
    try:
        refused = [run(replace(host, python=None), dry_run=dry_run) for dry_run in (True, False)]
        rest = run(change(host, "on noexec"))
    finally:
        trouble.set_workspace_noexec(place, 200, noexec=False)
    for report in refused:
        assert error(report).startswith("pve1/ct200: /workspace is mounted noexec: a Python environment can't run")
        assert report.exit_code == 4
    assert what(rest)[0].startswith("sent")


def test_a_vmid_that_is_not_there_is_named(place: Place, host: Host) -> None:
    assert isinstance(host.road, ProxmoxLxc)
    report = run(replace(host, road=replace(host.road, vmid=999)))
    assert error(report).startswith("pve1/ct999: no container 999 here; `pct list`")
    assert report.exit_code == 4


def other_config(place: Place, tmp_path: Path, **options: str) -> Path:
    """The lab's ssh_config with other options in front: the first value counts."""
    head = "Host pve-lab\n" + "".join(f'  {name} "{value}"\n' for name, value in options.items())
    config = tmp_path / "ssh_config"
    lines = place.ssh_config.read_text().splitlines()
    kept = [line for line in lines if line.split()[:1] not in [[name] for name in options]]
    config.write_text(head + "\n".join(kept) + "\n")
    return config


def test_a_refused_key_is_an_auth_error_that_names_it(place: Place, host: Host, tmp_path: Path) -> None:
    key = tmp_path / "id"
    os.system(f"ssh-keygen -q -t ed25519 -N '' -f {key}")  # noqa: S605
    report = run(with_ssh(host, config=other_config(place, tmp_path, IdentityFile=str(key))))
    assert re.search(rf"pve1: root@\S+ was refused; offered: {key}; put the public key", error(report))
    assert report.exit_code == 1


def test_a_changed_host_key_is_refused_in_either_mode(place: Place, host: Host) -> None:
    trouble.change_host_key(place)
    try:
        for mode in ("strict", "accept-new"):
            report = run(with_ssh(host, host_keys=mode))
            assert "has CHANGED" in error(report)
            assert "ssh-keygen -R" in error(report)
    finally:
        trouble.restore_host_key(place)
    assert what(run(host))


def test_an_unknown_host_key_is_refused_or_recorded_as_asked(place: Place, host: Host, tmp_path: Path) -> None:
    known = tmp_path / "known hosts"
    config = other_config(place, tmp_path, UserKnownHostsFile=str(known))
    report = run(with_ssh(host, config=config))
    assert "pve1: unknown host key ssh-ed25519 SHA256:" in error(report)
    assert "ssh-keyscan -p" in error(report)
    assert not known.exists()
    assert what(run(with_ssh(host, config=config, host_keys="accept-new")))
    assert known.read_text().count("ssh-ed25519") == 1
    assert what(run(with_ssh(host, config=config)))


def test_a_jump_host_is_gone_through(place: Place, host: Host, tmp_path: Path) -> None:
    proxy = f"ssh -F {place.ssh_config} -W %h:%p pve-lab"
    config = other_config(place, tmp_path, ProxyCommand=proxy)
    config.write_text(config.read_text().replace(f'"{proxy}"', proxy))
    assert what(run(with_ssh(host, config=config)))
    config.write_text(config.read_text().replace(proxy, "echo no road >&2; false"))
    assert "no road" in error(run(with_ssh(host, config=config)))


def test_a_host_without_sshd_is_unreachable(place: Place, host: Host) -> None:
    trouble.stop_sshd(place)
    try:
        report = run(host)
    finally:
        sshd.start(place, sshd.HOST)
    assert re.search(r"pve1: \S+ port \d+: Connection refused; is the host up, and sshd running\?", error(report))
    assert report.exit_code == 1


def test_a_frozen_host_is_given_up_in_time(place: Place, host: Host) -> None:
    with trouble.frozen_sshd(place):
        report = run(with_ssh(host, connect_timeout_s=1))
    assert "sshd said nothing; is the machine frozen or overloaded?" in error(report)


def test_a_frozen_container_is_given_up_in_time(place: Place, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "DEADLINE_S", 1.5)
    trouble.freeze_container(place, 200)
    try:
        report = run(host)
    finally:
        trouble.thaw_container(place, 200)
    assert "pve1: no end of pct exec 200 -- within 2 s; it may still be running there" in error(report)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (trouble.cut_ssh, "pve1: the connection was cut"),
        (lambda place: trouble.stop_container(place, 200), "pve1/ct200: receive was killed; was the container stopped"),
    ],
)
def test_a_deploy_that_loses_its_road_leaves_the_old_files_whole(
    place: Place, host: Host, monkeypatch: pytest.MonkeyPatch, act: Callable[[Place], None], text: str
) -> None:
    run(host, yes=True)
    old = tree(place)
    during_the_stream(monkeypatch, place, lambda: act(place))
    report = run(change(host, "new" * 1000))
    assert text in error(report)
    await_true(lambda: not is_locked(place.workspace(200) / "rackhand/.deploy.lock"))
    assert {name: data for name, data in tree(place).items() if "rackhand-tmp" not in name} == old
    assert what(run(host, yes=True))[-1] == "sent 1 file"
    assert not [name for name in tree(place) if "rackhand-tmp" in name]


def test_the_second_of_two_deploys_at_once_is_told_to_wait(
    place: Place, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(host, yes=True)
    second: list[Report] = []
    during_the_stream(monkeypatch, place, lambda: second.append(run(host)))
    first = run(change(host, "two"))
    assert what(first) == ["sent 1 file"]
    assert "another deploy is writing here; wait for it, or end process" in error(second[0])
    assert second[0].exit_code == 4


def test_ctrl_c_ends_a_deploy_clean(place: Place, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    run(host, yes=True)
    old = tree(place)
    closed, close = threading.Event(), SshRoad.close

    def act() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert closed.wait(30)

    monkeypatch.setattr(SshRoad, "close", lambda road: close(road) or closed.set())
    during_the_stream(monkeypatch, place, act)
    report = run(change(host, "ctrl-c" * 1000))
    assert report.exit_code == 130
    assert report.rows[0].interrupted
    await_true(lambda: not is_locked(place.workspace(200) / "rackhand/.deploy.lock"))
    assert tree(place) == old


INV = "import sys; sys.path.insert(0, sys.argv[1]); from rackhand.program import main; main(sys.argv[2:])"


def inv(place: Place, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    inventory = tmp_path / "mine.yaml"
    inventory.write_text((ROOT / "inventory/lab.yaml").read_text().replace("../.lab", str(place.state)))
    argv = (sys.executable, "-c", INV, str(ROOT), *words, "--inventory", str(inventory))
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def test_sigterm_ends_the_command_at_once_though_the_container_is_frozen(place: Place, tmp_path: Path) -> None:
    before = len(calls(place))
    trouble.freeze_container(place, 200)
    try:
        with inv(place, tmp_path, "deploy") as process:
            await_true(lambda: len(calls(place)) > before)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
    finally:
        trouble.thaw_container(place, 200)
    assert process.returncode == 143
    assert "interrupted" in out + err
    assert "Traceback" not in out + err


def test_the_command_says_what_it_did_and_then_that_there_is_nothing_to_do(place: Place, tmp_path: Path) -> None:
    for words in (("deploy", "--yes"), ("deploy", "--json")):
        with inv(place, tmp_path, *words) as process:
            out, err = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in err) == (0, False), err
    assert json.loads(out)["hosts"][0]["outcomes"] == [{"what": "nothing to do", "state": "unchanged", "detail": ""}]


def node(place: Place, **change: Any) -> Any:
    from rackhand.proxmox import Node
    from rackhand.secrets import resolve

    api = replace(Api(TOKEN_ID, SecretRef(command=("cat", str(place.token))), url=place.api_url, ca=place.ca), **change)
    road = ProxmoxLxc(Ssh("pve-lab", place.ssh_config), 200, api, None)
    return Node(road, resolve(api.token, os.environ), where="pve1")


def fingerprint(place: Place) -> str:
    import hashlib
    import ssl

    der = ssl.PEM_cert_to_DER_cert((place.state / "pve-ssl.pem").read_text())
    digest = hashlib.sha256(der).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, 64, 2))


def test_the_api_is_trusted_by_its_ca_or_its_fingerprint(place: Place) -> None:
    assert node(place).version()
    assert node(place, ca=None, fingerprint=fingerprint(place)).version()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ca": None}, "certificate can't be verified"),
        ({"ca": None, "fingerprint": ":".join(["AB"] * 32)}, "has another fingerprint than AB:AB"),
        ({"token": SecretRef(command=("echo", "wrong"))}, "the API refused root@pam!rackhand"),
        ({"url": "https://127.0.0.1:9"}, "no API at https://127.0.0.1:9; is pveproxy running"),
        ({"token_id": "root@pam"}, "token_id is user@realm!name"),
    ],
)
def test_what_the_api_refuses_is_explained(place: Place, change: dict[str, Any], text: str) -> None:
    from rackhand.errors import RackhandError

    with pytest.raises(RackhandError) as caught:
        node(place, **change).version()
    assert text in str(caught.value)


def test_a_token_without_an_acl_is_told_what_it_lacks(place: Place) -> None:
    from rackhand.errors import RackhandError

    token = SecretRef(command=("cat", str(place.no_acl_token)))
    with pytest.raises(RackhandError) as caught:
        node(place, token_id=NO_ACL_TOKEN_ID, token=token).start(200)
    assert re.search(r"VM\.Audit", str(caught.value))
