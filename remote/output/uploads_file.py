"""uploads.jsonl: the shards that stand verified in an object store, a line each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rackhand.contract import from_json
from rackhand.contract.job import UPLOADS_FILE
from remote.output.shards import SHARD

UPLOADED_FILE = ".done_indices.uploaded"
"""The finished indices of shards that were removed here after they were uploaded."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One line; `size` in bytes, `uploaded` UTC, ISO 8601."""

    shard: str
    size: int
    sha256: str
    store: str
    uploaded: str


def observe_uploads(output: Path) -> dict[str, Uploaded]:
    """By shard name, the last line of each; torn or foreign lines are left out."""
    path = output / UPLOADS_FILE
    found: dict[str, Uploaded] = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            entry = from_json(Uploaded, json.loads(line))
        except ValueError:
            continue
        if SHARD.fullmatch(entry.shard):
            found[entry.shard] = entry
    return found
