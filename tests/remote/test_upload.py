"""Closed shards go to a real S3 endpoint or a directory while the job runs, whatever the endpoint does meanwhile."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from remote.generator.quality import DEFAULT
from remote.output import objects, obstore_objects, parts_file, s3_objects
from remote.output.append_file import AppendFile
from remote.output.ledger import Batch
from remote.output.object_store import CLAIM_FILE, Store, StoreError, is_store
from remote.output.parts_file import PARTS_FILE
from remote.output.recovery import open_ledger
from remote.output.upload import Uploader
from remote.output.uploads_file import UPLOADED_FILE, observe_uploads
from remote.verify import verify
from tests.remote.rig import ROOT, Rig, listed, nothing_lost_nothing_twice, wait_until, write_prompts
from tests.remote.s3_server import S3, s3_server

URL = "s3://bucket/run/1"
NAME = "run/1/completions-00000.jsonl"
PART = 64 << 10


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3]:
    with s3_server() as s3:
        yield s3


@pytest.fixture
def s3(endpoint: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in endpoint.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
    endpoint.clear()
    return endpoint


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of 64 KiB and more goes in parts of that size, which is less than S3 itself takes."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", PART)
    for module, name in (
        *((objects, "PART_BYTES"), (obstore_objects, "PART_BYTES"), (parts_file, "PART_BYTES")),
        *((s3_objects, "ONE_REQUEST_BYTES"), (obstore_objects, "ONE_REQUEST_BYTES")),
    ):
        monkeypatch.setattr(module, name, PART)


@pytest.fixture(params=["botocore", "obstore"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "obstore":
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "false")
    return str(request.param)


_KEYS = ("client_email", "private_key", "private_key_id")


@pytest.fixture(params=["botocore", "obstore", "gcs", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of each kind one."""
    if request.param == "obstore":
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "false")
    account = {"gcs_base_url": s3.url, "disable_oauth": True, **dict.fromkeys(_KEYS, "")}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    monkeypatch.setenv("GOOGLE_BASE_URL", s3.url)
    return {"gcs": "gs://bucket/run/1", "directory": str(tmp_path / "store")}.get(request.param, URL)


def _shard(tmp_path: Path, size: int = 500, *, fill: bytes = b"x") -> Path:
    path = tmp_path / "completions-00000.jsonl"
    path.write_bytes(fill * size)
    return path


@cache
def _store(url: str, *_: str) -> Store:
    return Store(url)


def _put(path: Path, url: str = URL, *, sha256: str = "") -> None:
    environ = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_UNSIGNED_PAYLOAD", "AWS_PROFILE"))
    _store(url, *environ).put(path, path.stat().st_size, sha256 or hashlib.sha256(path.read_bytes()).hexdigest())


def _commit(output: Path, count: int, *, first: int = 0) -> None:
    """One closed shard for each record."""
    ledger = open_ledger(output, lambda text: None, shard_bytes=1)
    for index in range(first, first + count):
        ledger.commit(Batch(records=[(index, b'{"index":%d,"completion":"fine and whole"}\n' % index)]))
    ledger.close_shard()
    ledger.close()


def _upload(output: Path, url: str = URL, *, delete_local: bool = False) -> Uploader:
    """Until nothing waits and nothing is left to remove."""
    uploader = Uploader(output, Store(url), lambda text: None, delete_local=delete_local)
    uploader.start()
    wait_until(lambda: not uploader._look(), "the uploads")
    uploader.stop(10)
    return uploader


@pytest.mark.parametrize("faults", [[], ["503", "503"], ["slow"], ["reset"]])
def test_a_shard_is_put_and_verified_whatever_the_endpoint_does_first(
    tmp_path: Path, s3: S3, library: str, faults: list[str]
) -> None:
    path = _shard(tmp_path)
    s3.faults = list(faults)
    _put(path)
    assert s3.objects() == {NAME: path.read_bytes()}


@pytest.mark.usefixtures("small_parts")
def test_a_big_shard_goes_in_parts_and_is_listed_only_when_whole(tmp_path: Path, s3: S3, library: str) -> None:
    path = _shard(tmp_path, 2 * PART + 1)
    s3.faults = ["", "ExpiredToken", "ExpiredToken"]
    with pytest.raises(StoreError, match="ExpiredToken"):
        _put(path)
    assert s3.objects() == {}
    s3.faults, s3.puts = [], 0
    _put(path)
    assert s3.puts == {"botocore": 2, "obstore": 3}[library]
    assert s3.objects() == {NAME: path.read_bytes()}
    assert s3.uploads() == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 2 * PART + 1])
def test_every_kind_of_place_takes_a_shard_whole(tmp_path: Path, s3: S3, place: str, size: int) -> None:
    path = _shard(tmp_path, size)
    _put(path, place)
    there = {file.name: file.read_bytes() for file in (tmp_path / "store").glob("*")} or s3.objects()
    assert list(there.values()) == [path.read_bytes()]
    with pytest.raises(StoreError, match=r"NoSuchBucket|Permission denied|File exists|Not a directory|not found"):
        _put(path, str(path / "x") if place.startswith("/") else place.replace("bucket", "nowhere"))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("code", ["InternalError", "garbled"])
def test_a_completion_that_fails_inside_a_200_is_no_success(tmp_path: Path, s3: S3, library: str, code: str) -> None:
    path = _shard(tmp_path, 2 * PART + 1)
    s3.complete_faults = [code] * 20
    with pytest.raises(StoreError, match=rf"completions-00000\.jsonl: .*({code}|\(500\)|invalid multipart)"):
        _put(path)
    assert s3.objects() == {}
    s3.complete_faults, s3.puts = [code] * (code != "garbled"), 0
    _put(path)
    assert s3.objects() == {NAME: path.read_bytes()}
    if library == "botocore":
        assert s3.puts == 0


def _change_first_part(path: Path, s3: S3) -> None:
    path.write_bytes(b"y" + path.read_bytes()[1:])


def _change_sha256(path: Path, s3: S3) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"y")


def _abort(path: Path, s3: S3) -> None:
    for key, upload in s3.uploads():
        s3.client().abort_multipart_upload(Bucket="bucket", Key=key, UploadId=upload)
    # The test's server breaks down where S3 says this.
    s3.faults = ["NoSuchUpload"]


def _tear(path: Path, s3: S3) -> None:
    path.with_name(PARTS_FILE).write_bytes(path.with_name(PARTS_FILE).read_bytes()[:-3])


def _garble(path: Path, s3: S3) -> None:
    path.with_name(PARTS_FILE).write_bytes(b"[1]\n" + path.with_name(PARTS_FILE).read_bytes())


def _forge(path: Path, s3: S3) -> None:
    lines = b'{"url": 5, "shard": "x", "sha256": "y", "id": "z"}\n{"part": 1e999}\n'
    path.with_name(PARTS_FILE).write_bytes(lines)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("meanwhile", "puts", "left"),
    [
        (_change_first_part, 3, 0),
        (_change_sha256, 3, 0),
        (_abort, 3, 0),
        (_tear, 2, 0),
        (_garble, 3, 1),
        (_forge, 3, 1),
    ],
)
def test_an_upload_is_gone_on_with_only_where_it_still_fits(
    tmp_path: Path, s3: S3, meanwhile: Callable[[Path, S3], None], puts: int, left: int
) -> None:
    path = _shard(tmp_path, 2 * PART + 1)
    s3.faults = ["", "", "AccessDenied"]
    with pytest.raises(StoreError, match="AccessDenied"):
        _put(path)
    journal = tmp_path / PARTS_FILE
    assert (journal.stat().st_mode & 0o777, len(s3.uploads())) == (0o600, 1)
    meanwhile(path, s3)
    if meanwhile is _abort:
        with pytest.raises(StoreError, match="NoSuchUpload"):
            _put(path)
    s3.puts = 0
    _put(path)
    assert (s3.puts, len(s3.uploads())) == (puts, left)
    assert s3.objects() == {NAME: path.read_bytes()}
    assert not journal.exists()


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_cannot_be_noted_is_no_less_whole_and_leaves_no_parts(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("remote.output.append_file.os.pwrite", full)
    path = _shard(tmp_path, 2 * PART + 1)
    s3.faults = ["", "AccessDenied"]
    with pytest.raises(StoreError, match="AccessDenied"):
        _put(path)
    assert s3.uploads() == []
    _put(path)
    assert s3.objects() == {NAME: path.read_bytes()}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 2 * PART + 1])
def test_a_shard_that_is_not_the_ledgers_any_more_never_appears(tmp_path: Path, s3: S3, place: str, size: int) -> None:
    store = tmp_path / "store"
    with pytest.raises(StoreError, match=r"it isn't the shard of manifest\.jsonl any more"):
        _put(_shard(tmp_path, size), place, sha256="0" * 64)
    assert (s3.objects(), s3.uploads()) == ({}, [])
    assert not store.exists() or list(store.iterdir()) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 2 * PART + 1])
def test_an_encrypted_object_whose_etag_is_no_md5_is_read_back(tmp_path: Path, s3: S3, library: str, size: int) -> None:
    s3.encrypted = True
    _put(_shard(tmp_path, size))
    with pytest.raises(StoreError, match="its sha256 isn't the shard's"):
        _put(_shard(tmp_path, size, fill=b"y"))


def test_a_bucket_with_versions_gets_one_of_each_shard(tmp_path: Path, s3: S3, library: str) -> None:
    client, bucket = s3.client(), f"versions-{library}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    path = _shard(tmp_path)
    for _ in range(2):
        _store(f"s3://{bucket}", library).claim("an output")
        _put(path, f"s3://{bucket}")
    assert len(client.list_object_versions(Bucket=bucket)["Versions"]) == 2
    client.delete_object(Bucket=bucket, Key=path.name)
    _put(path, f"s3://{bucket}")
    assert list(s3.objects(bucket)) == [path.name]


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestTimeTooSkewed"])
def test_a_store_that_refuses_is_told_in_one_line(tmp_path: Path, s3: S3, library: str, code: str) -> None:
    path = _shard(tmp_path)
    with pytest.raises(StoreError, match=r"s3://nowhere/completions-00000\.jsonl: .*NoSuchBucket") as error:
        _put(path, "s3://nowhere")
    assert "\n" not in str(error.value)
    s3.denied = code
    with pytest.raises(StoreError, match=code if library == "botocore" else "403 Forbidden"):
        _put(path)
    s3.denied = ""
    assert s3.objects() == {}


def test_another_object_of_that_name_is_never_written_over(tmp_path: Path, place: str) -> None:
    _put(_shard(tmp_path), place)
    _put(_shard(tmp_path), place)
    with pytest.raises(StoreError, match="its sha256 isn't the shard's"):
        _put(_shard(tmp_path, fill=b"y"), place)
    with pytest.raises(StoreError, match="another object of 500 bytes"):
        _put(_shard(tmp_path, 400), place)


def test_a_place_belongs_to_one_output(place: str) -> None:
    Store(place).claim("one output")
    Store(place).claim("one output")
    with pytest.raises(StoreError, match=rf"{CLAIM_FILE}: another output goes here \(one output\)"):
        Store(place).claim("another")


def test_profiles_of_the_aws_configuration_are_read(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="Unable to locate credentials"):
        _put(_shard(tmp_path))
    config = tmp_path / "config"
    config.write_text(
        f"[profile batch]\nregion=eu-west-1\nendpoint_url={s3.url}\n"
        "aws_access_key_id=test\naws_secret_access_key=test\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "batch")
    _put(_shard(tmp_path))
    assert list(s3.objects()) == [NAME]


@pytest.mark.parametrize(
    ("url", "good"),
    [("s3://b/x", True), ("gs://b", True), ("az://c/x", True), ("/mnt/x", True), ("file:///x", True), ("b/x", False),
     ("s3:///x", False), ("http://b/x", False), ("s3://key:secret@b/x", False), ("s3://b/x?token=1", False)],
)  # fmt: skip
def test_a_url_names_a_store_and_holds_no_credential(url: str, good: bool) -> None:
    assert is_store(url) == good


def test_credentials_that_expire_are_waited_for_and_nothing_is_sent_twice(tmp_path: Path, s3: S3) -> None:
    _commit(tmp_path, 2)
    s3.denied = "ExpiredToken"
    said: list[str] = []
    uploader = Uploader(tmp_path, Store(URL), said.append)
    uploader.start()
    wait_until(lambda: bool(uploader.trouble), "trouble")
    assert (uploader.shards, uploader.left) == (0, 2)
    s3.denied = ""
    wait_until(lambda: uploader.left == 0, "the uploads")
    uploader.stop(10)
    assert (uploader.shards, uploader.trouble) == (2, "")
    assert said[0].startswith(f"not uploaded, tried again: {URL}/{CLAIM_FILE}: ")
    assert "ExpiredToken" in said[0]
    assert len(observe_uploads(tmp_path)) == len(s3.objects()) == 2
    puts = s3.puts
    again = Uploader(tmp_path, Store(URL), said.append)
    assert (again.left, again.shards, s3.puts) == (0, 2, puts)


def test_a_shard_that_is_wrong_here_or_there_holds_up_no_other(tmp_path: Path) -> None:
    output, store = tmp_path / "out", tmp_path / "store"
    for folder in (output, store):
        folder.mkdir()
    _commit(output, 4)
    (store / "completions-00000.jsonl").write_bytes(b"another")
    gone = output / "completions-00002.jsonl"
    kept = gone.rename(tmp_path / "kept")
    changed = output / "completions-00001.jsonl"
    good = changed.read_bytes()
    changed.write_bytes(good.replace(b"whole", b"WHOLE"))
    uploader = Uploader(output, Store(str(store)), lambda text: None)
    uploader.start()
    wait_until(lambda: uploader.shards == 1, "the other")
    assert uploader.trouble
    (store / "completions-00000.jsonl").unlink()
    changed.write_bytes(good)
    kept.rename(gone)
    wait_until(lambda: uploader.left == 0, "all")
    wait_until(lambda: not uploader.trouble, "no trouble")
    uploader.stop(10)
    assert uploader.shards == 4


@pytest.mark.parametrize("file", ["uploads.jsonl", UPLOADED_FILE])
def test_nothing_is_removed_here_while_a_full_disk_takes_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    output, store = tmp_path / "out", tmp_path / "store"
    output.mkdir()
    _commit(output, 2)
    append = AppendFile.append
    full = True

    def write(self: AppendFile, data: bytes, *, sync: bool) -> None:
        if full and self.path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, data, sync=sync)

    monkeypatch.setattr(AppendFile, "append", write)
    uploader = Uploader(output, Store(str(store)), lambda text: None, delete_local=True)
    uploader.start()
    wait_until(lambda: "No space left" in uploader.trouble, "trouble")
    assert len(list(output.glob("completions-*"))) == 2
    full = False
    wait_until(lambda: not list(output.glob("completions-*")), "the removals")
    uploader.stop(10)
    assert (uploader.shards, uploader.left, uploader.trouble) == (2, 0, "")
    assert verify(output, DEFAULT).problems == ()


def test_what_a_kill_left_here_after_its_upload_is_verified_again_and_removed(tmp_path: Path) -> None:
    output, store = tmp_path / "out", tmp_path / "store"
    output.mkdir()
    _commit(output, 2)
    _upload(output, str(store))
    (store / "completions-00001.jsonl").unlink()
    uploader = _upload(output, str(store), delete_local=True)
    assert (uploader.shards, list(output.glob("completions-*"))) == (2, [])
    assert sorted(path.name for path in store.iterdir()) == [
        *(CLAIM_FILE, "completions-00000.jsonl", "completions-00001.jsonl")
    ]
    assert len((output / "uploads.jsonl").read_text().splitlines()) == 2


def test_another_store_gets_the_shards_that_are_still_here(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    _commit(output, 2)
    _upload(output, str(tmp_path / "first"))
    (output / "completions-00000.jsonl").unlink()
    uploader = _upload(output, str(tmp_path / "second"))
    assert [path.name for path in (tmp_path / "second").glob("completions-*")] == ["completions-00001.jsonl"]
    assert uploader.shards == 2


@pytest.mark.slow
def test_an_upload_in_parts_survives_kill_after_kill_and_no_part_goes_twice(tmp_path: Path, s3: S3) -> None:
    path = _shard(tmp_path, 160 << 20)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    code = (
        "import sys; from pathlib import Path; from remote.output.object_store import Store\n"
        f"Store({URL!r}).put(Path({str(path)!r}), {160 << 20}, {sha256!r})"
    )
    sent = 0
    for kill_at in (2, 5, 9, 0):
        s3.faults = ["slow"] * 20
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        if kill_at:
            wait_until(partial(lambda at: s3.puts >= at, kill_at), "the parts")
            process.kill()
        assert process.wait(60) == (-signal.SIGKILL if kill_at else 0)
        assert len(s3.uploads()) == bool(kill_at)
        sent = s3.puts
    # Each kill costs at most the part that was under way.
    assert 10 <= sent <= 13
    assert [hashlib.sha256(data).hexdigest() for data in s3.objects().values()] == [sha256]


def test_a_job_uploads_while_it_runs_and_through_a_kill(tmp_path: Path, s3: S3) -> None:
    prompts = write_prompts(tmp_path, 1200)
    options = ("--object-store", URL, "--shard-bytes", "20000")
    with Rig(tmp_path, "--lat", "10", ports=2) as rig:
        s3.faults = ["503", "reset", "slow"]
        process = rig.start(prompts, *options)
        wait_until(lambda: bool(rig.progress().get("s3_uploaded")) or process.poll() is not None, "an upload")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert rig.generate(prompts, *options) == 0
        progress = rig.progress()
    nothing_lost_nothing_twice(rig.output, 1200)
    closed = [json.loads(line) for line in (rig.output / "manifest.jsonl").read_text().splitlines()]
    objects = s3.objects()
    assert {name.removeprefix("run/1/") for name in objects} == {entry["shard"] for entry in closed}
    assert {hashlib.sha256(data).hexdigest() for data in objects.values()} == {entry["sha256"] for entry in closed}
    assert (progress["s3_uploaded"], progress["s3_bytes"]) == (len(closed), sum(entry["size"] for entry in closed))
    assert (progress["status"], progress["uploads_left"]) == ("done", 0)


def test_a_store_that_never_answers_stops_no_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = write_prompts(tmp_path, 400)
    with s3_server() as gone:
        environ = gone.environ()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with Rig(tmp_path, ports=2) as rig:
        process = rig.start(prompts, "--object-store", URL, "--shard-bytes", "20000")
        wait_until(lambda: rig.progress().get("message", "") == "the last shards are uploaded", "the end")
        wait_until(lambda: bool(rig.progress().get("upload_trouble")), "the trouble")
        process.send_signal(signal.SIGTERM)
        assert rig.end(process) == 143
    nothing_lost_nothing_twice(rig.output, 400)
    assert "closed shards aren't uploaded; the next run sends them: s3://bucket/run/1" in rig.log


def test_shards_removed_after_their_upload_stay_finished_whatever_is_retried(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 300, lambda i: "alwaysempty" if i == 7 else f"prompt {i}")
    store = tmp_path / "store"
    options = ("--object-store", str(store), "--delete-local-after-upload", "--shard-bytes", "20000")
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, *options) == 3
        assert list(rig.output.glob("completions-*")) == []
        asked = rig.requests()
        assert rig.generate(prompts, *options) == 3
        assert rig.requests() == asked
        assert rig.generate(prompts, *options, "--retry-rejected") == 3
        assert rig.requests() == asked + 2
        (rig.output / ".done_indices").unlink()
        (rig.output / "manifest.jsonl").unlink()
        assert rig.generate(prompts, *options) == 3
        assert rig.requests() == asked + 2
    assert sorted(listed(rig.output)) == list(range(300))
    shards = list(store.glob("completions-*"))
    stored = [json.loads(line)["index"] for path in shards for line in path.read_bytes().splitlines()]
    assert sorted(stored) == sorted({*range(300)} - {7})
    assert verify(rig.output, DEFAULT).problems == ()
    _commit(rig.output, 1, first=1000)
    assert (rig.output / f"completions-{len(shards):05d}.jsonl").exists()
