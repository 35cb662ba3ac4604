"""What one store can do with whole objects, and how a file is read for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PART_BYTES = 16 << 20
"""S3 takes no part below 5 MiB but the last."""
ONE_REQUEST_BYTES = 32 << 20
"""Files up to here go in one request, bigger ones in parts."""


class ChangedError(ValueError):
    """A file isn't what the ledger says of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object that is there; `e_tag` without its quotes, empty when the store gives none."""

    size: int
    e_tag: str


class Objects(Protocol):
    """The objects below one URL. Everything raises one of `errors`, or OSError."""

    errors: tuple[type[Exception], ...]

    def head(self, name: str) -> Found | None:
        """None: nothing is there, or no bucket; then `put` tells."""

    def put(self, path: Path, sha256: str) -> None:
        """The object appears whole or not at all; ChangedError, and none appears, when the file has another sha256."""

    def create(self, name: str, data: bytes) -> bool:
        """False when an object of that name is there already; then it stays as it is."""

    def read(self, name: str) -> Iterator[bytes]: ...


def blocks(path: Path, sha256: str) -> Iterator[bytes]:
    """A file in parts; ChangedError after the last one when together they aren't `sha256`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(PART_BYTES):
            digest.update(block)
            yield block
    if digest.hexdigest() != sha256:
        raise ChangedError("it isn't the shard of manifest.jsonl any more (its sha256 differs); ./inv verify says more")


def md5(block: bytes) -> hashlib._Hash:
    return hashlib.md5(block, usedforsecurity=False)
