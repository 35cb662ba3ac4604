"""Opens a ledger after whatever happened to it: torn tails are cut, and `.done_indices` is made to agree.

The shards are the truth, with rejected.jsonl and what was imported. Closed shards are known by the size in the
manifest and aren't read; the part of `.done_indices` that the manifest measures stands for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rackhand.contract.job import DONE_FILE, FAILURES_FILE, MANIFEST_FILE, REJECTED_FILE
from remote.output.append_file import AppendFile, put_whole, sync_directory
from remote.output.done_bits import observe_bits, put_bits
from remote.output.done_file import IMPORTED_FILE, done_lines, observe_done
from remote.output.index_set import IndexSet
from remote.output.jsonl import line_index, repair_lines
from remote.output.ledger import SHARD_BYTES, SHARD_S, Ledger, OpenShard
from remote.output.shards import (
    Closed,
    Scan,
    is_compressed,
    observe_manifest,
    observe_sha256,
    observe_shard,
    observe_shards,
    put_manifest,
    repair_shard,
    shard_number,
)
from remote.output.uploads_file import UPLOADED_FILE, observe_uploads

Say = Callable[[str], None]


@dataclass
class _Found:
    """What stands in an output. `done` begins with the indices listed in the first `known_bytes` of `.done_indices`,
    which need no scan; `tail` are those that were added to it since, `scanned` those that scans of shards found.
    `rescan`: the manifest isn't believed."""

    closed: dict[str, Closed]
    unclosed: dict[int, Path]
    done: IndexSet
    known_bytes: int
    rescan: bool
    tail: array[int] = field(default_factory=lambda: array("Q"))
    scanned: IndexSet = field(default_factory=IndexSet)

    def add(self, indices: Iterable[int]) -> None:
        self.tail.extend(index for index in indices if self.done.add(index))


def open_ledger(
    output: Path,
    say: Say,
    *,
    first_shard: int = 0,
    shard_bytes: int = SHARD_BYTES,
    retry_failed: bool = False,
    retry_rejected: bool = False,
    compress: bool = False,
    shard_s: float = SHARD_S,
) -> Ledger:
    """The ledger of `output`, clean. `retry_*` releases what stands in failures.jsonl or rejected.jsonl: the file
    is put aside and its indices are asked again."""
    _repair_lines(output / MANIFEST_FILE, say)
    failed = _repair_lines(output / FAILURES_FILE, say)
    rejected = _repair_lines(output / REJECTED_FILE, say)
    retry_rejected = retry_rejected and (output / REJECTED_FILE).exists()
    found = _observe(output, first_shard, say, rescan=retry_rejected)
    for name in (IMPORTED_FILE, UPLOADED_FILE):
        found.add(observe_done(output / name).indices)
    uploads = observe_uploads(output)
    scans = {number: _repair(path, found, say) for number, path in found.unclosed.items()}
    if retry_rejected:
        rejected = IndexSet()
    found.add(rejected)
    size = _settle_done_file(output, found, say)
    shard = _settle_shards(output, found, scans, done_bytes=size, shard_bytes=shard_bytes, compress=compress)
    if retry_rejected:
        _release(output / REJECTED_FILE)
    if retry_failed:
        _release(output / FAILURES_FILE)
        failed = IndexSet()
    numbers = [first_shard - 1, *observe_shards(output), *map(shard_number, (*found.closed, *uploads))]
    return Ledger(
        output,
        done=found.done,
        failed=failed,
        shard=shard,
        next_number=max(numbers) + 1,
        rejected_before=len(rejected),
        shard_bytes=shard_bytes,
        compress=compress,
        shard_s=shard_s,
    )


def _release(path: Path) -> None:
    if path.exists():
        number = 1
        while (aside := path.with_name(f"{path.stem}-released-{number}.jsonl")).exists():
            number += 1
        path.replace(aside)
        sync_directory(path.parent)


def _repair_lines(path: Path, say: Say) -> IndexSet:
    """The indices that its whole lines name."""
    found = IndexSet()

    def note(line: bytes) -> None:
        index = line_index(line)
        if index is not None:
            found.add(index)

    bad_bytes = repair_lines(path, note)
    if bad_bytes:
        say(f"{path.name}: {bad_bytes} bytes that are no whole line were cut")
    return found


def _observe(output: Path, first_shard: int, say: Say, *, rescan: bool) -> _Found:
    own = {n: p for n, p in observe_shards(output).items() if n >= first_shard}
    manifest = {k: v for k, v in observe_manifest(output / MANIFEST_FILE).items() if shard_number(k) >= first_shard}
    if not manifest:
        return _Found({}, own, IndexSet(), 0, rescan=rescan)
    changed = [p.name for p in own.values() if p.name in manifest and p.stat().st_size != manifest[p.name].size]
    last = manifest[max(manifest, key=shard_number)]
    listed = _observe_listed(output, last) if not rescan else None
    if changed or listed is None:
        if not rescan:
            say(f"reading all shards again: {', '.join(changed) or DONE_FILE} isn't what the manifest says")
        return _Found({}, own, IndexSet(), 0, rescan=True)
    gone = [name for name in manifest.keys() - observe_uploads(output).keys() if shard_number(name) not in own]
    if gone:
        say(f"{', '.join(sorted(gone))}: in the manifest but not here; their prompts count as finished")
    unclosed = {n: p for n, p in own.items() if p.name not in manifest}
    return _Found(manifest, unclosed, listed, last.done_bytes, rescan=False)


def _observe_listed(output: Path, last: Closed) -> IndexSet | None:
    """The indices that stood in `.done_indices` when the `last` shard was closed; None: they aren't what it says."""
    known = observe_bits(output, last.done_bytes)
    if known is not None and len(known) == last.done_count:
        return known
    listed = observe_done(output / DONE_FILE, end=last.done_bytes)
    if not listed.clean or listed.size != last.done_bytes or len(listed.indices) != last.done_count:
        return None
    put_bits(output, listed.indices, last.done_bytes)
    return listed.indices


def _repair(path: Path, found: _Found, say: Say) -> Scan:
    scan = observe_shard(path, found.scanned)
    if scan.bad_bytes:
        what = f", of them {scan.duplicates} records that stand elsewhere too" if scan.duplicates else ""
        say(f"{path.name}: {scan.bad_bytes} bytes that are no whole record were cut{what}")
    repair_shard(scan)
    for index in scan.indices:
        found.scanned.add(index)
    found.add(scan.indices)
    return scan


def _settle_done_file(output: Path, found: _Found, say: Say) -> int:
    """Makes `.done_indices` list exactly the finished indices, each once, and gives its size."""
    path = output / DONE_FILE
    rest = observe_done(path, start=found.known_bytes)
    tail = IndexSet(found.tail)
    missing: array[int] = array("Q")
    extra = again = 0
    if not tail.same_as(rest.indices):
        missing.extend(index for index in found.tail if index not in rest.indices)
        extra = sum(1 for index in rest.indices if index not in found.done)
        again = sum(1 for index in rest.indices if index in found.done and index not in tail)
    if missing:
        say(f"{DONE_FILE}: {len(missing)} finished indices weren't listed; added")
    if extra:
        say(f"{DONE_FILE}: {extra} listed indices have no record; they are asked again")
    if extra or again or rest.duplicates or rest.bad_lines:
        if not found.known_bytes:
            put_whole(path, done_lines(found.tail), sync=True)
            return path.stat().st_size
        file = AppendFile(path, found.known_bytes)
        file.append(done_lines(found.tail), sync=True)
    else:
        file = AppendFile(path, found.known_bytes + rest.size - rest.torn)
        file.append(done_lines(missing), sync=True)
    file.close()
    return file.size


def _settle_shards(
    output: Path, found: _Found, scans: dict[int, Scan], *, done_bytes: int, shard_bytes: int, compress: bool
) -> OpenShard | None:
    """Closes every scanned shard but the last; the last one is the growing shard, unless it is full or of the other
    kind, compressed or not."""
    growing: OpenShard | None = None
    highest = max([*scans, *map(shard_number, found.closed)], default=-1)
    entries = dict(found.closed)
    for number, scan in scans.items():
        size = scan.path.stat().st_size
        shard = OpenShard(number, AppendFile(scan.path, size), observe_sha256(scan.path))
        if scan.indices:
            shard.note(scan.indices)
        if number == highest and size < shard_bytes and is_compressed(scan.path) == compress:
            growing = shard
        else:
            entries[scan.path.name] = shard.closed(done_bytes, len(found.done))
    if found.rescan or len(entries) != len(found.closed):
        if entries:
            top = max(entries, key=shard_number)
            entries[top] = replace(entries[top], done_bytes=done_bytes, done_count=len(found.done))
        put_manifest(output / MANIFEST_FILE, sorted(entries.values(), key=lambda entry: shard_number(entry.shard)))
        put_bits(output, found.done, done_bytes)
    return growing
