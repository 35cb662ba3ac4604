"""`.done_indices`: one finished index a line. Our own grows by appends; somebody else's is imported once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rackhand.contract.job import DONE_FILE, FAILURES_FILE, MANIFEST_FILE, REJECTED_FILE
from remote.output.append_file import put_whole, sync_directory
from remote.output.index_set import MAX_INDEX, IndexSet

IMPORTED_FILE = ".done_indices.imported"
_BLOCK = 1 << 20


@dataclass
class Listed:
    """What a `.done_indices` holds. `torn`: bytes behind the last newline, which name no index for sure."""

    indices: IndexSet = field(default_factory=IndexSet)
    size: int = 0
    duplicates: int = 0
    bad_lines: int = 0
    torn: int = 0

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.bad_lines or self.torn)


def observe_done(path: Path, *, start: int = 0, end: int | None = None, known: IndexSet | None = None) -> Listed:
    """Reads the whole lines between the byte positions, adding to `known`; a missing file is an empty one."""
    listed = Listed() if known is None else Listed(known)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return listed
    with file:
        file.seek(start)
        left = None if end is None else end - start
        rest = b""
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            left = None if left is None else left - len(block)
            listed.size += len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            _add_lines(listed, lines)
        listed.torn = len(rest)
    return listed


def _add_lines(listed: Listed, lines: list[bytes]) -> None:
    try:
        indices = list(map(int, lines))
    except ValueError:
        indices = []
    if not indices or min(indices) < 0 or max(indices) > MAX_INDEX:
        indices = list(_good_indices(listed, lines))
    listed.duplicates += len(indices) - listed.indices.update(indices)


def _good_indices(listed: Listed, lines: list[bytes]) -> Iterator[int]:
    for line in lines:
        try:
            index = int(line)
        except ValueError:
            index = -1
        if 0 <= index <= MAX_INDEX:
            yield index
        else:
            listed.bad_lines += bool(line.strip())


def done_lines(indices: Iterable[int]) -> bytes:
    lines = bytearray()
    for index in indices:
        lines += b"%d\n" % index
    return bytes(lines)


def import_foreign(output: Path) -> Listed | None:
    """Takes over an output without job.json: its finished indices go to IMPORTED_FILE, None when there are none.

    Its other ledgers are put aside under imported-NAME: they aren't ours to read or to append to. May be cut off
    anywhere and run again, as long as job.json isn't written.
    """
    aside = [output / name for name in (MANIFEST_FILE, FAILURES_FILE, REJECTED_FILE)]
    for path in aside:
        if path.exists():
            path.replace(path.with_name(f"imported-{path.name}"))
    source = output / DONE_FILE
    if not source.exists():
        return None
    listed = observe_done(source)
    put_whole(output / IMPORTED_FILE, done_lines(listed.indices), sync=True)
    sync_directory(output)
    return listed
