"""One shard goes to S3, GCS, Azure or a directory, and is seen to be whole there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from rackhand.contract.job import OBJECT_STORES
from remote.output.objects import ChangedError, Found, Objects, blocks, md5
from remote.output.obstore_objects import ObstoreObjects
from remote.output.s3_objects import S3Objects

CLAIM_FILE = ".rackhand-owner"
"""The object that says whose a prefix is."""
_MD5_TAG = re.compile(r"[0-9a-f]{32}(-\d+)?")
_STORE_SAYS = re.compile(r"<Code>([^<]+)</Code>\s*<Message>([^<\n]+)")
_OBSTORE_ONLY = (
    *("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_CUSTOMER_KEY_BASE64", "AWS_SSE_KMS_KEY_ID", "AWS_SSE_BUCKET_KEY_ENABLED"),
    *("AWS_CHECKSUM_ALGORITHM", "AWS_CONDITIONAL_PUT", "AWS_S3_EXPRESS", "AWS_SKIP_SIGNATURE", "AWS_UNSIGNED_PAYLOAD"),
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
)
"""Variables that botocore doesn't know: where one is set, obstore speaks to S3."""


class StoreError(Exception):
    """An object couldn't be put or isn't what was sent: one line. Worth another try later."""


class WrongObjectError(ValueError):
    """Something else has a shard's name."""


class ShardError(StoreError):
    """The shard or what stands in its place is wrong, not the store: others may go up meanwhile."""


class Store:
    """`url`: s3://BUCKET/PREFIX, gs://, az://, or a directory. Credentials come from the environment or the machine.
    StoreError when it can't be opened, MissingPackageError without the library for it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._objects = _objects(self.url)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.url}: {_first_line(error)}") from None
        self._errors: tuple[type[Exception], ...] = (*self._objects.errors, OSError, ValueError)

    def claim(self, owner: str) -> None:
        """Makes the URL that of one output for good. StoreError when it is another's."""
        try:
            if self._objects.create(CLAIM_FILE, owner.encode()):
                return
            there = b"".join(self._objects.read(CLAIM_FILE)).decode(errors="replace")
            if there != owner:
                raise ValueError(f"another output goes here ({there}); name another --object-store, or remove this")
        except self._errors as error:
            raise StoreError(f"{self.url}/{CLAIM_FILE}: {_first_line(error)}") from None

    def put(self, path: Path, size: int, sha256: str) -> None:
        """Puts a closed file under its own name, and checks it there. ShardError when another object has that name or
        the file is gone or isn't of `size` and `sha256`, else StoreError. An object appears whole or not at all."""
        try:
            if self._objects.head(path.name) is None:
                self._objects.put(path, sha256)
            self._check(path, size, sha256)
        except self._errors as error:
            wrong = isinstance(error, (WrongObjectError, ChangedError)) or not path.is_file()
            kind = ShardError if wrong else StoreError
            raise kind(f"{self.url}/{path.name}: {_first_line(error)}") from None

    def _check(self, path: Path, size: int, sha256: str) -> None:
        found = self._objects.head(path.name)
        if found is None:
            raise ValueError("it was put, but isn't there")
        if found.size != size:
            raise WrongObjectError(f"another object of {found.size} bytes has this name; name another --object-store")
        if _same_md5(found, path, sha256):
            return
        digest = hashlib.sha256()
        for block in self._objects.read(path.name):
            digest.update(block)
        if digest.hexdigest() != sha256:
            raise WrongObjectError("its sha256 isn't the shard's; remove the object, or name another --object-store")


def _objects(url: str) -> Objects:
    scheme = urlsplit(url).scheme
    if scheme in ("s3", "s3a") and importlib.util.find_spec("botocore") and not any(map(os.environ.get, _OBSTORE_ONLY)):
        return S3Objects(url)
    return ObstoreObjects(url)


def _same_md5(found: Found, path: Path, sha256: str) -> bool:
    """Whether the file is `sha256` and the ETag its MD5, or that of its parts' MD5s with their number, as S3 gives it.
    No means nothing: encrypted objects, and other stores, have other ETags."""
    if _MD5_TAG.fullmatch(found.e_tag) is None:
        return False
    whole, parts = md5(b""), []
    try:
        for block in blocks(path, sha256):
            whole.update(block)
            parts.append(md5(block).digest())
    except ChangedError:
        return False
    return found.e_tag in (whole.hexdigest(), f"{md5(b''.join(parts)).hexdigest()}-{len(parts)}")


def is_store(url: str) -> bool:
    """Whether `url` names a store: a known scheme with a bucket, without credentials; or an absolute directory."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        return False
    if parts.scheme == "file":
        return parts.path.startswith("/")
    return url.startswith("/") or (parts.scheme in OBJECT_STORES and bool(parts.netloc))


def _first_line(error: BaseException) -> str:
    """obstore's errors hold the store's own words deep inside, and a debug dump after the first blank line."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = _STORE_SAYS.search(text)
    return (": ".join(said.groups()) if said else lines[0] if lines else type(error).__name__)[:300]
