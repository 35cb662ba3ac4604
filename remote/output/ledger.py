"""The durable store of one job: shards, `.done_indices`, failures.jsonl, rejected.jsonl, manifest.jsonl.

Invariants, after every crash and every failed write:
- an index is listed in `.done_indices` only after its record is synced;
- in the shards every index stands at most once;
- a closed shard's indices are all in the synced part of `.done_indices` that its manifest line measures.

Synchronous, one writer: `committer` calls it from its thread. `recovery` opens it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path

from rackhand.contract.job import DONE_FILE, FAILURES_FILE, MANIFEST_FILE, REJECTED_FILE
from remote.output.append_file import AppendFile
from remote.output.done_bits import put_bits
from remote.output.done_file import done_lines
from remote.output.index_set import IndexSet
from remote.output.shards import Closed, manifest_line, shard_name
from remote.output.zstd_frames import Frames

SHARD_BYTES = 256 << 20
SHARD_S = 3600.0


@dataclass
class OpenShard:
    """The shard that grows. `digest` is of the bytes that are synced; `began`: when this run first wrote to it, by
    the ledger's clock."""

    number: int
    file: AppendFile
    digest: hashlib._Hash
    count: int = 0
    first_index: int | None = None
    last_index: int | None = None
    began: float = 0.0

    def note(self, indices: Sequence[int]) -> None:
        low, high = min(indices), max(indices)
        self.count += len(indices)
        self.first_index = low if self.first_index is None else min(low, self.first_index)
        self.last_index = high if self.last_index is None else max(high, self.last_index)

    def closed(self, done_bytes: int, done_count: int) -> Closed:
        return Closed(
            shard=self.file.path.name,
            count=self.count,
            first_index=self.first_index,
            last_index=self.last_index,
            size=self.file.size,
            sha256=self.digest.hexdigest(),
            done_bytes=done_bytes,
            done_count=done_count,
            closed=utc_now(),
        )


@dataclass
class Batch:
    """Entries of one commit: index and line, with its newline. A commit empties it part by part as parts are safe,
    so that after an error the same batch is committed again."""

    records: list[tuple[int, bytes]] = field(default_factory=list)
    rejected: list[tuple[int, bytes]] = field(default_factory=list)
    failures: list[tuple[int, bytes]] = field(default_factory=list)
    unlisted: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.rejected or self.failures or self.unlisted)


class Ledger:
    """`done` are the finished indices, `failed` those in failures.jsonl; both as synced. Of `done`, `rejected_before`
    stood in rejected.jsonl when it was opened."""

    def __init__(
        self,
        output: Path,
        *,
        done: IndexSet,
        failed: IndexSet,
        shard: OpenShard | None,
        next_number: int,
        rejected_before: int = 0,
        shard_bytes: int = SHARD_BYTES,
        compress: bool = False,
        shard_s: float = SHARD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.output = output
        self.done = done
        self.failed = failed
        self.rejected_before = rejected_before
        self._shard = shard
        self._next_number = next_number
        self._shard_bytes = shard_bytes
        self._shard_s = shard_s
        self._clock = clock
        if shard is not None:
            shard.began = clock()
        self._frames = Frames() if compress else None
        self._done_file = AppendFile(output / DONE_FILE)
        self._manifest = AppendFile(output / MANIFEST_FILE)
        self._rejected = AppendFile(output / REJECTED_FILE)
        self._failures = AppendFile(output / FAILURES_FILE)

    def commit(self, batch: Batch) -> None:
        """Makes the batch durable. OSError: commit the same batch again; nothing that was safe is written twice."""
        if batch.records:
            self._commit_records(batch)
        if batch.rejected:
            self._rejected.append(b"".join(line for _, line in batch.rejected), sync=True)
            batch.unlisted += [index for index, _ in batch.rejected if self.done.add(index)]
            batch.rejected = []
        if batch.failures:
            self._failures.append(b"".join(line for _, line in batch.failures), sync=True)
            for index, _ in batch.failures:
                self.failed.add(index)
            batch.failures = []
        if batch.unlisted:
            self._done_file.append(done_lines(batch.unlisted), sync=False)
            batch.unlisted = []

    def _commit_records(self, batch: Batch) -> None:
        here: set[int] = set()
        fresh = []
        for index, line in batch.records:
            if index not in self.done and index not in here:
                here.add(index)
                fresh.append((index, line))
        if fresh:
            shard = self._writable_shard()
            data = b"".join(line for _, line in fresh)
            if self._frames is not None:
                data = self._frames.frame(data)
            shard.file.append(data, sync=True)
            shard.digest.update(data)
            indices = [index for index, _ in fresh]
            shard.note(indices)
            self.done.update(indices)
            batch.unlisted += indices
        batch.records = []

    def _writable_shard(self) -> OpenShard:
        shard = self._shard
        if shard is not None and (shard.file.size >= self._shard_bytes or self._clock() - shard.began >= self._shard_s):
            self.close_shard()
        if self._shard is None:
            path = self.output / shard_name(self._next_number, compressed=self._frames is not None)
            self._shard = OpenShard(self._next_number, AppendFile(path, 0), hashlib.sha256(), began=self._clock())
            self._next_number += 1
        return self._shard

    def close_shard(self) -> None:
        """Closes the growing shard, if there is one with records: its line goes to the manifest."""
        shard = self._shard
        if shard is None or not shard.count:
            return
        self._done_file.sync()
        entry = shard.closed(self._done_file.size, len(self.done))
        self._manifest.append(manifest_line(entry), sync=True)
        shard.file.close()
        self._shard = None
        put_bits(self.output, self.done, entry.done_bytes)

    def close(self) -> None:
        """Syncs `.done_indices` and closes all files; the growing shard stays open for the next run."""
        self._done_file.sync()
        for file in (self._done_file, self._manifest, self._rejected, self._failures):
            file.close()
        if self._shard is not None:
            self._shard.file.close()


def utc_now() -> str:
    return _utc(int(time.time()))


@lru_cache(maxsize=1)
def _utc(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).isoformat()
