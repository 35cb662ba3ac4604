"""The only importer of obstore: one shard goes to S3, GCS, Azure or a directory, and is seen to be whole there."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rackhand.contract.job import OBJECT_STORES
from remote.output.append_file import sync_directory
from remote.packages import load_package

_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 2
_ONE_REQUEST_BYTES = 32 << 20
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_MD5_TAG = re.compile(r"([0-9a-f]{32})(?:-(\d+))?")


class StoreError(Exception):
    """An object couldn't be put or isn't what was sent: one line. Worth another try later."""


class Store:
    """`url`: s3://BUCKET/PREFIX, gs://, az://, or a directory. Credentials come from the environment or the machine.
    StoreError when it can't be opened."""

    def __init__(self, url: str) -> None:
        self._obstore = load_package("obstore", "--object-store")
        stores = load_package("obstore.store", "--object-store")
        self.url = url.rstrip("/")
        self._folder = Path(urlsplit(url).path if url.startswith("file://") else url)
        self._errors = (self._obstore.exceptions.BaseError, OSError, ValueError)
        try:
            self._store = self._open(stores)
        except self._errors as error:
            raise StoreError(f"{self.url}: {_first_line(error)}") from None

    def _open(self, stores: Any) -> Any:
        if self._local:
            self._folder.mkdir(parents=True, exist_ok=True)
            return stores.LocalStore(self._folder)
        plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
        timeouts = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=120), "allow_http": plain}
        patience = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
        return stores.from_url(self.url, client_options=timeouts, retry_config=patience)

    @property
    def _local(self) -> bool:
        return "://" not in self.url or self.url.startswith("file://")

    def put(self, path: Path, sha256: str) -> None:
        """Puts a closed file under its own name, and checks it there. StoreError, also when another object has that
        name. An object appears whole or not at all."""
        try:
            size = path.stat().st_size
            if self._size_of(path.name) is None:
                self._put(path)
            self._check(path, size, sha256)
        except self._errors as error:
            raise StoreError(f"{self.url}/{path.name}: {_first_line(error)}") from None

    def _put(self, path: Path) -> None:
        whole = path.stat().st_size <= _ONE_REQUEST_BYTES
        how = {"use_multipart": not whole, "chunk_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
        self._obstore.put(self._store, path.name, path, **how)
        if self._local:
            with (self._folder / path.name).open("rb") as file:
                os.fsync(file.fileno())
            sync_directory(self._folder)

    def _size_of(self, name: str) -> int | None:
        try:
            return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            # A bucket that isn't there says the same; then the put tells.
            return None

    def _check(self, path: Path, size: int, sha256: str) -> None:
        meta = self._obstore.head(self._store, path.name)
        if int(meta["size"]) != size:
            raise ValueError(f"another object of {meta['size']} bytes has this name; name another --object-store")
        tag = _MD5_TAG.fullmatch(str(meta.get("e_tag") or "").strip('"'))
        if tag is not None and not self._local and _md5_tag(path, parts=bool(tag[2])) == tag[0]:
            return
        digest = hashlib.sha256()
        for block in self._obstore.get(self._store, path.name).stream(min_chunk_size=1 << 20):
            digest.update(block)
        if digest.hexdigest() != sha256:
            raise ValueError("its sha256 isn't the shard's; remove the object, or name another --object-store")


def _md5_tag(path: Path, *, parts: bool) -> str:
    """The ETag that S3 gives: the MD5 of a whole object, or of the parts' MD5s with their number."""
    digests = []
    whole = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_PART_BYTES):
            if parts:
                digests.append(hashlib.md5(block, usedforsecurity=False).digest())
            else:
                whole.update(block)
    if not parts:
        return whole.hexdigest()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def is_store(url: str) -> bool:
    """Whether `url` names a store: a known scheme with a bucket, without credentials; or an absolute directory."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        return False
    if parts.scheme == "file":
        return parts.path.startswith("/")
    return url.startswith("/") or (parts.scheme in OBJECT_STORES and bool(parts.netloc))


def _first_line(error: BaseException) -> str:
    """obstore's errors hold a debug dump after the first blank line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
