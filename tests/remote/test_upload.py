"""Closed shards go to a real S3 endpoint or a directory while the job runs, whatever the endpoint does meanwhile."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.generator.quality import DEFAULT
from remote.output.ledger import Batch
from remote.output.object_store import Store, StoreError, is_store
from remote.output.recovery import open_ledger
from remote.output.upload import Uploader
from remote.output.uploads_file import observe_uploads
from remote.verify import verify
from tests.remote.rig import Rig, listed, nothing_lost_nothing_twice, wait_until, write_prompts
from tests.remote.s3_server import S3, s3_server

URL = "s3://bucket/run/1"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3]:
    with s3_server() as s3:
        yield s3


@pytest.fixture
def s3(endpoint: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in endpoint.environ().items():
        monkeypatch.setenv(name, value)
    client = endpoint.client()
    for key in endpoint.objects():
        client.delete_object(Bucket="bucket", Key=key)
    endpoint.faults, endpoint.expired, endpoint.puts = [], False, 0
    return endpoint


def _shard(tmp_path: Path, size: int = 500) -> tuple[Path, str]:
    path = tmp_path / "completions-00000.jsonl"
    path.write_bytes(b"x" * size)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def _commit(output: Path, count: int, *, first: int = 0) -> None:
    """One closed shard for each record."""
    ledger = open_ledger(output, lambda text: None, shard_bytes=1)
    for index in range(first, first + count):
        ledger.commit(Batch(records=[(index, b'{"index":%d,"completion":"fine and whole"}\n' % index)]))
    ledger.close_shard()
    ledger.close()


@pytest.mark.parametrize("faults", [[], ["503"], ["503", "503"], ["slow"], ["reset"]])
def test_a_shard_is_put_and_verified_whatever_the_endpoint_does_first(
    tmp_path: Path, s3: S3, faults: list[str]
) -> None:
    path, sha256 = _shard(tmp_path)
    s3.faults = list(faults)
    Store(URL).put(path, sha256)
    assert s3.objects() == {"run/1/completions-00000.jsonl": path.read_bytes()}


def test_a_big_shard_goes_in_parts_and_is_listed_only_when_whole(tmp_path: Path, s3: S3) -> None:
    path, sha256 = _shard(tmp_path, 33 << 20)
    s3.expired = True
    with pytest.raises(StoreError):
        Store(URL).put(path, sha256)
    assert s3.objects() == {}
    s3.expired, s3.puts = False, 0
    Store(URL).put(path, sha256)
    assert s3.puts == 3
    assert [len(data) for data in s3.objects().values()] == [33 << 20]


def test_a_store_that_refuses_is_told_in_one_line(tmp_path: Path, s3: S3) -> None:
    path, sha256 = _shard(tmp_path)
    with pytest.raises(StoreError, match=r"s3://nowhere/completions-00000\.jsonl: .+") as error:
        Store("s3://nowhere").put(path, sha256)
    assert "\n" not in str(error.value)
    s3.expired = True
    with pytest.raises(StoreError, match="completions-00000"):
        Store(URL).put(path, sha256)
    assert s3.objects() == {}


@pytest.mark.parametrize("kind", ["s3", "directory"])
def test_another_object_of_that_name_is_never_written_over(tmp_path: Path, s3: S3, kind: str) -> None:
    path, sha256 = _shard(tmp_path)
    url = URL if kind == "s3" else str(tmp_path / "store")
    Store(url).put(path, sha256)
    Store(url).put(path, sha256)
    path.write_bytes(b"y" * 500)
    with pytest.raises(StoreError, match="its sha256 isn't the shard's"):
        Store(url).put(path, hashlib.sha256(path.read_bytes()).hexdigest())
    path.write_bytes(b"y" * 400)
    with pytest.raises(StoreError, match="another object of 500 bytes"):
        Store(url).put(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    ("url", "good"),
    [("s3://b/x", True), ("gs://b", True), ("az://c/x", True), ("/mnt/x", True), ("file:///x", True), ("b/x", False),
     ("s3:///x", False), ("http://b/x", False), ("s3://key:secret@b/x", False), ("s3://b/x?token=1", False)],
)  # fmt: skip
def test_a_url_names_a_store_and_holds_no_credential(url: str, good: bool) -> None:
    assert is_store(url) == good


def test_credentials_that_expire_are_waited_for_and_nothing_is_sent_twice(tmp_path: Path, s3: S3) -> None:
    _commit(tmp_path, 2)
    s3.expired = True
    said: list[str] = []
    uploader = Uploader(tmp_path, Store(URL), said.append)
    uploader.start()
    wait_until(lambda: bool(uploader.trouble), "trouble")
    assert (uploader.shards, uploader.left) == (0, 2)
    s3.expired = False
    wait_until(lambda: uploader.left == 0, "the uploads")
    uploader.stop(10)
    assert (uploader.shards, uploader.trouble) == (2, "")
    assert said[0].startswith("not uploaded, tried again: s3://bucket/run/1/completions-00000.jsonl")
    assert len(observe_uploads(tmp_path)) == len(s3.objects()) == 2
    puts = s3.puts
    again = Uploader(tmp_path, Store(URL), said.append)
    assert (again.left, again.shards, s3.puts) == (0, 2, puts)


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
    stored = [json.loads(line)["index"] for path in store.iterdir() for line in path.read_bytes().splitlines()]
    assert sorted(stored) == sorted({*range(300)} - {7})
    assert verify(rig.output, DEFAULT).problems == ()
    _commit(rig.output, 1, first=1000)
    assert (rig.output / f"completions-{len(list(store.iterdir())):05d}.jsonl").exists()
