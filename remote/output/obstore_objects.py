"""The only importer of obstore: GCS, Azure, directories, and S3 where botocore isn't there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from remote.output.append_file import sync_directory
from remote.output.objects import ONE_REQUEST_BYTES, PART_BYTES, Found, blocks
from remote.packages import load_package

_PARTS_AT_ONCE = 2
_ENDPOINTS = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    *("GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
)


class ObstoreObjects:
    """OSError or ValueError when `url` can't be opened."""

    def __init__(self, url: str) -> None:
        self._obstore = load_package("obstore", "--object-store")
        stores = load_package("obstore.store", "--object-store")
        base = self._obstore.exceptions.BaseError
        self.errors: tuple[type[Exception], ...] = (base,)
        local = "://" not in url or url.startswith("file://")
        self._folder = Path(urlsplit(url).path if url.startswith("file://") else url) if local else None
        try:
            self._store = _open_remote(stores, url) if self._folder is None else _open_folder(stores, self._folder)
        except base as error:
            raise ValueError(str(error)) from None

    def head(self, name: str) -> Found | None:
        try:
            meta = self._obstore.head(self._store, name)
        except FileNotFoundError:
            return None
        # A directory's ETag is made of inode, time and size.
        tag = str(meta.get("e_tag") or "").strip('"') if self._folder is None else ""
        return Found(int(meta["size"]), tag)

    def put(self, path: Path, sha256: str) -> None:
        if self._folder is not None:
            for stale in self._folder.glob(f"{path.name}#*"):
                stale.unlink()
        if path.stat().st_size <= ONE_REQUEST_BYTES:
            self._put(path.name, b"".join(blocks(path, sha256)), use_multipart=False)
        else:
            parts = {"chunk_size": PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
            self._put(path.name, blocks(path, sha256), use_multipart=True, **parts)

    def create(self, name: str, data: bytes) -> bool:
        exceptions = self._obstore.exceptions
        try:
            self._put(name, data, mode="create")
        except exceptions.AlreadyExistsError:
            return False
        except exceptions.NotSupportedError:
            if self.head(name) is not None:
                return False
            self._put(name, data)
        return True

    def read(self, name: str) -> Iterator[bytes]:
        for block in self._obstore.get(self._store, name).stream(min_chunk_size=1 << 20):
            yield bytes(block)

    def _put(self, name: str, data: bytes | Iterator[bytes], **how: Any) -> None:
        self._obstore.put(self._store, name, data, **how)
        if self._folder is not None:
            with (self._folder / name).open("rb") as file:
                os.fsync(file.fileno())
            sync_directory(self._folder)


def _open_folder(stores: Any, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return stores.LocalStore(folder)


def _open_remote(stores: Any, url: str) -> Any:
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    timeouts = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=120), "allow_http": plain}
    patience = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
    return stores.from_url(url, client_options=timeouts, retry_config=patience)
