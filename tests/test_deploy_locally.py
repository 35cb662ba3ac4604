"""deploy against this machine's own file system: the same verbs, the Local road."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rackhand.agent import Session
from rackhand.contract import to_json
from rackhand.contract.files import Incoming, Owner, ReceiveRequest
from rackhand.errors import NotRunningError, PreconditionError, RemoteError
from rackhand.inventory import Env, FileSpec, Fleet, Host, Job, PlainSsh, SecretRef, Ssh
from rackhand.report import Report
from rackhand.transport.local import Local
from rackhand.workflows.deploy import Choice, deploy, prompts_digest, waiting_uploads
from rackhand.workflows.fleet import Roads
from remote.output.job_file import observe_prompts_digest


class LocalRoads(Roads):
    def open(self, host: Host) -> Local:
        return Local(host.name)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho run\n")
    (tmp_path / "conf.j2").write_text("home = {{ home }}\n")
    (tmp_path / "ws").mkdir()
    (tmp_path / "cuda.sh").write_text("export CUDA_HOME=/opt/cuda LD_LIBRARY_PATH=/a:/b:/c\necho set >&1\n")
    return Host(
        "box",
        PlainSsh(Ssh("box")),
        workspace=str(tmp_path / "ws"),
        python=sys.executable,
        env=Env({"MODE": "a b", "TOKEN": SecretRef(env="RACKHAND_TEST_TOKEN")}, source=str(tmp_path / "cuda.sh")),
        files=(
            FileSpec(tmp_path / "run.sh", str(tmp_path / "ws/scripts/deep/run.sh"), 0o755),
            FileSpec(tmp_path / "conf.j2", str(tmp_path / "ws/conf"), template=True),
        ),
    )


def run(host: Host, *jobs: Job, dry_run: bool = False) -> Report:
    fleet = Fleet(Path("x.yaml"), (host,), jobs)
    return deploy(fleet, fleet.hosts, say=lambda *_: None, choice=Choice(dry_run=dry_run), roads=LocalRoads())


def what(report: Report) -> list[str]:
    return [outcome.what for row in report.rows for outcome in row.outcomes]


def error(report: Report) -> str:
    return str(report.rows[0].error)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".deploy.lock"]
    return {str(path.relative_to(folder)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in files}


def test_the_first_deploy_writes_everything_and_the_second_has_nothing_to_do(host: Host, tmp_path: Path) -> None:
    first = run(host)
    assert first.rows[0].error is None
    assert what(first) == ["sent 4 files"]
    assert first.rows[0].facts["CUDA_HOME"] == "/opt/cuda"
    assert first.rows[0].facts["library paths"] == "3"
    written = tree(tmp_path / "ws")
    assert written["scripts/deep/run.sh"] == (0o755, b"#!/bin/sh\necho run\n")
    assert written["conf"][1].decode() == f"home = {host.home}\n"
    assert set(written) == {
        "scripts/deep/run.sh",
        "conf",
        "rackhand/env.sh",
        "rackhand/remote.pyz",
        "rackhand/manifest.json",
    }
    second = run(host)
    assert what(second) == ["nothing to do"]
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert tree(tmp_path / "ws") == written


def test_another_inventorys_files_are_replaced_after_asking_only(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKHAND_TEST_TOKEN", "hunter2-hunter2")

    def put(name: str, **choice: Any) -> Report:
        fleet = Fleet(Path(f"{name}.yaml"), (host,))
        return deploy(fleet, fleet.hosts, say=lambda *_: None, choice=Choice(**choice), roads=LocalRoads())

    assert put("mine").exit_code == 0
    before = tree(tmp_path / "ws")
    refused = put("theirs")
    assert refused.exit_code == 4
    assert "the files of another inventory stand here (inventory mine, deployed by " in error(refused)
    assert "--yes" in error(refused)
    asked: list[str] = []
    assert put("theirs", confirm=lambda question: bool(asked.append(question))).exit_code == 4
    assert "inventory mine" in asked[0] and asked[0].endswith("Replace them?")
    planned = put("theirs", dry_run=True)
    assert planned.exit_code == 0
    assert any("inventory mine" in line and "--yes" in line for line in what(planned))
    assert tree(tmp_path / "ws") == before
    assert what(put("theirs", yes=True)) == ["wrote the manifest"]
    assert put("mine").exit_code == 4
    assert what(put("theirs")) == ["nothing to do"]


@pytest.mark.parametrize(
    ("there", "is_other"),
    [
        (Owner("mine", "rtx", ("/out",), "ann", "desk", "2026"), False),
        (Owner("mine", "rtx", ("/out",), "bob", "ci"), False),
        (Owner("mine", "rtx", ("/out", "/more"), "bob", "ci"), False),
        (Owner("mine", "rtx", (), "bob", "ci"), False),
        (Owner("mine", "rtx", ("/another",), "ann", "desk"), False),
        (Owner("mine", "rtx", ("/another",), "bob", "ci"), True),
        (Owner("mine", "b200", ("/out",), "ann", "desk"), True),
        (Owner("theirs", "rtx", ("/out",), "ann", "desk"), True),
    ],
    ids=str,
)
def test_the_same_inventory_is_known_in_whatever_checkout(there: Owner, is_other: bool) -> None:
    assert there.is_other_than(Owner("mine", "rtx", ("/out",), "ann", "desk", "2027")) == is_other


def test_a_dry_run_shows_diffs_and_writes_nothing_and_no_secret_stands_in_any_file_or_diff(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKHAND_TEST_TOKEN", "s3cret-value")
    (tmp_path / "ws/conf").write_text("token = s3cret-value\n")
    report = run(host, dry_run=True)
    diff = report.rows[0].outcomes[0].detail
    assert "-token = ***" in diff
    assert "+export MODE='a b'" in diff
    assert "s3cret" not in diff
    assert [outcome.state for outcome in report.rows[0].outcomes] == ["planned"]
    assert report.exit_code == 0
    assert [path.name for path in (tmp_path / "ws").iterdir()] == ["conf"]
    run(host)
    assert all(b"s3cret" not in content for _, content in tree(tmp_path / "ws").values())


def test_drift_is_mended_and_what_nothing_wants_goes_away_unless_somebody_changed_it(
    host: Host, tmp_path: Path
) -> None:
    kept = FileSpec(tmp_path / "run.sh", str(tmp_path / "ws/kept.sh"), 0o755)
    run(replace(host, files=(*host.files, kept)))
    (tmp_path / "ws/kept.sh").write_text("mine\n")
    (tmp_path / "ws/rackhand/env.sh").write_text("rm -rf /\n")
    (tmp_path / "ws/scripts/deep/run.sh").chmod(0o600)
    report = run(replace(host, files=host.files[:1]))
    assert what(report) == ["sent 2 files, removed 1 file"]
    after = tree(tmp_path / "ws")
    assert "conf" not in after
    assert after["scripts/deep/run.sh"][0] == 0o755
    assert after["rackhand/env.sh"][1].startswith(b"# The environment")
    assert f"left alone, changed by hand: {tmp_path}/ws/kept.sh" in report.rows[0].outcomes[0].detail
    assert (tmp_path / "ws/kept.sh").read_text() == "mine\n"
    assert what(run(replace(host, files=host.files[:1]))) == ["nothing to do"]


def test_prompts_are_brought_once_and_known_by_size_and_time(host: Host, tmp_path: Path) -> None:
    local, there = tmp_path / "prompts.jsonl", tmp_path / "ws/data/prompts.jsonl"
    local.write_bytes(b'{"prompt": "x"}\n' * 200_000)
    job = Job("j", "box", str(tmp_path / "ws/out"), str(there), upload=local)
    assert what(run(host, job)) == ["sent 5 files"]
    assert there.read_bytes() == local.read_bytes()
    os.utime(local)
    assert what(run(host, job)) == ["nothing to do"]
    local.write_bytes(b'{"prompt": "y"}\n' * 200_000)
    assert what(run(host, job)) == ["sent 1 file"]
    assert there.read_bytes() == local.read_bytes()


def test_a_job_brings_its_prompts_by_itself_and_only_when_they_lack(host: Host, tmp_path: Path) -> None:
    local = tmp_path / "prompts.jsonl"
    local.write_text("{}\n")
    job = Job("j", "box", str(tmp_path / "ws/out"), str(tmp_path / "ws/prompts.jsonl"), upload=local)
    (upload,) = waiting_uploads(Session(Local("box")), host, [job])
    assert what(run(host, job))
    assert waiting_uploads(Session(Local("box")), host, [job]) == ()
    assert waiting_uploads(Session(Local("box")), host, [replace(job, upload=None)]) == ()
    assert prompts_digest(upload.src) == observe_prompts_digest(tmp_path / "ws/prompts.jsonl")
    assert (tmp_path / "ws/prompts.jsonl").read_text() == "{}\n"
    local.unlink()
    with pytest.raises(PreconditionError, match=r"jobs.j: can't read .*No such file or directory; mend upload"):
        waiting_uploads(Session(Local("box")), host, [job])
    assert "isn't there yet" in run(host, job).rows[0].facts["prompts of j"]


def test_wheels_that_cannot_be_had_are_a_precondition(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", ""), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    report = run(replace(host, python=None))
    assert "can't download the wheels for Python 3." in error(report)
    assert report.exit_code == 4
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert "manifest.json" not in str(list((tmp_path / "ws").rglob("*")))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda host: replace(host, workspace="/nowhere/at/all"), "no directory /nowhere/at/all; make it there"),
        (lambda host: replace(host, workspace="/proc/sys"), "/proc/sys: "),
        (lambda host: replace(host, python="/bin/python0"), "no /bin/python0; set hosts.box.python or install it"),
        (
            lambda host: replace(host, env=Env({}, source="/root/none.sh")),
            "no script /root/none.sh; mend hosts.box.env",
        ),
        (lambda host: replace(host, files=(FileSpec(Path("/none"), "/x"),)), "can't read /none: No such file"),
        (lambda host: replace(host, files=(host.files[1], replace(host.files[0], dest=host.files[1].dest))), "twice"),
        (lambda host: replace(host, files=(replace(host.files[0], dest="/dev"),)), "/dev is a directory"),
    ],
)
def test_what_stands_in_the_way_is_a_precondition(host: Host, change: Callable[[Host], Host], text: str) -> None:
    report = run(change(host))
    assert text in str(report.rows[0].error)
    assert report.exit_code == 4


def receive(road: Local, home: Path, *files: Incoming, body: bytes, **more: object) -> None:
    request = ReceiveRequest(str(home), str(home.parent), tuple(files), **more)  # type: ignore[arg-type]
    list(Session(road).call("receive", to_json(request), python=sys.executable, body=(body,)))


SHA_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


def test_a_stream_that_ends_early_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    files = (Incoming(str(old), 1, SHA_A, 0o644), Incoming(str(tmp_path / "new"), 5, SHA_A, 0o644))
    with pytest.raises(RemoteError, match="the stream ended within"):
        receive(Local("box"), tmp_path / "home", *files, body=b"abc")
    assert tree(tmp_path) == {"old": (old.stat().st_mode & 0o777, b"old")}


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="its sha256 differs"):
        receive(Local("box"), tmp_path / "home", Incoming(str(tmp_path / "f"), 1, SHA_A, 0o644), body=b"b")
    assert tree(tmp_path) == {}


def test_the_second_of_two_deploys_at_once_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with (tmp_path / "home/.deploy.lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PreconditionError, match="another deploy is writing here; wait for it, or end process 4711"):
            receive(Local("box"), tmp_path / "home", body=b"")


def test_leftovers_of_a_killed_receive_are_swept(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.env.sh.rackhand-tmp-1234abcd").write_text("half")
    (tmp_path / ".f.rackhand-tmp-1234abcd").write_text("half")
    receive(Local("box"), tmp_path / "home", Incoming(str(tmp_path / "f"), 1, SHA_A, 0o640), body=b"a")
    assert tree(tmp_path) == {"f": (0o640, b"a")}


def test_a_killed_receive_leaves_the_old_file_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    lock = tmp_path / "home/.deploy.lock"

    def body() -> Iterator[bytes]:
        yield b"a" * 100_000
        end = time.monotonic() + 30
        while not (lock.exists() and lock.read_text()) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(int(lock.read_text()), signal.SIGKILL)

    file = Incoming(str(tmp_path / "f"), 200_000, "0", 0o644)
    request = to_json(ReceiveRequest(str(tmp_path / "home"), str(tmp_path), (file,)))
    with pytest.raises(NotRunningError, match="receive was killed"):
        list(Session(Local("box")).call("receive", request, python=sys.executable, body=body()))
    assert (tmp_path / "f").read_text() == "old"


def test_a_staged_file_is_received_and_removed(tmp_path: Path) -> None:
    staged = tmp_path / "pushed"
    staged.write_bytes(b"a")
    receive(
        Local("box"), tmp_path / "home", Incoming(str(tmp_path / "f"), 1, SHA_A, 0o644), body=b"", staged=str(staged)
    )
    assert tree(tmp_path) == {"f": (0o644, b"a")}


def test_a_truncated_staged_file_is_refused_and_removed(tmp_path: Path) -> None:
    staged = tmp_path / "pushed"
    staged.write_bytes(b"")
    with pytest.raises(RemoteError, match="0 of 1 bytes came through"):
        receive(
            Local("box"),
            tmp_path / "home",
            Incoming(str(tmp_path / "f"), 1, SHA_A, 0o644),
            body=b"",
            staged=str(staged),
        )
    assert tree(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_environment_is_made_once_from_pinned_wheels_without_a_network(host: Host, tmp_path: Path) -> None:
    bare = replace(host, python=None)
    first = run(bare)
    assert first.rows[0].error is None
    assert "Python environment" in what(first)[0]
    done = Local().exec(
        (f"{host.home}/venv/bin/python", "-c", "import aiohttp, orjson, uvloop; print(aiohttp.__file__)")
    )
    assert done.stdout.startswith(host.home.encode())
    manifest = json.loads((tmp_path / "ws/rackhand/manifest.json").read_text())
    assert str(Path(host.home, "venv").readlink()) == f".venv-{manifest['venv']}"
    assert what(run(bare)) == ["nothing to do"]
    (Path(host.home, "venv") / "lib").rename(tmp_path / "gone")
    assert "Python environment" in what(run(bare))[0]
    assert what(run(bare)) == ["nothing to do"]
