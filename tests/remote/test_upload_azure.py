"""Closed shards go to Azure, as Azurite has it: `npm install -g azurite`, or its bin folder in PATH."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.output.object_store import Store, StoreError
from tests.remote.rig import Rig, listed, wait_until, write_prompts

AZURITE = shutil.which("azurite-blob")
# What every Azurite has, by its documentation.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(AZURITE is None, reason="no azurite-blob in PATH; npm install -g azurite"),
]


def _make_container(port: int, name: str) -> None:
    """Signed as https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key tells."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{key}:{value}\n" for key, value in headers.items())
    text = f"PUT{chr(10) * 12}{signed}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT"), timeout=10).close()


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    assert AZURITE is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [AZURITE, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    process = subprocess.Popen([*argv, "--blobHost", "127.0.0.1", "--blobPort", str(port)], cwd=tmp_path)

    def listens() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "Azurite", 60)
        _make_container(port, "shards")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/{ACCOUNT}")
        yield "az://shards/run/1"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [500, 40 << 20])
def test_azure_takes_a_shard_whole_and_never_writes_over_another(tmp_path: Path, container: str, size: int) -> None:
    path = tmp_path / "completions-00000.jsonl"
    store = Store(container)

    def put(fill: bytes, *, count: int = size, to: Store = store) -> None:
        path.write_bytes(fill * count)
        to.put(path, count, hashlib.sha256(path.read_bytes()).hexdigest())

    path.write_bytes(b"x" * size)
    with pytest.raises(StoreError, match=r"it isn't the shard of manifest\.jsonl any more"):
        store.put(path, size, "0" * 64)
    put(b"x")
    put(b"x")
    assert b"".join(store._objects.read(path.name)) == b"x" * size
    with pytest.raises(StoreError, match="its sha256 isn't the shard's"):
        put(b"y")
    with pytest.raises(StoreError, match=f"another object of {size} bytes"):
        put(b"x", count=400)
    with pytest.raises(StoreError, match=r"az://nowhere/completions-00000\.jsonl: ContainerNotFound"):
        put(b"x", to=Store("az://nowhere"))
    store.claim("one output")
    store.claim("one output")
    with pytest.raises(StoreError, match=r"another output goes here \(one output\)"):
        store.claim("another")


def test_a_job_uploads_to_azure_and_removes_what_is_verified_there(tmp_path: Path, container: str) -> None:
    prompts = write_prompts(tmp_path, 300)
    with Rig(tmp_path, ports=1) as rig:
        options = ("--object-store", container, "--delete-local-after-upload", "--shard-bytes", "20000")
        assert rig.generate(prompts, *options) == 0
        assert (rig.progress()["s3_uploaded"] > 1, list(rig.output.glob("completions-*"))) == (True, [])
        asked = rig.requests()
        assert rig.generate(prompts, *options) == 0
        assert rig.requests() == asked
    assert sorted(listed(rig.output)) == list(range(300))
