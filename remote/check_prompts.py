"""Call verb `prompts`: reads a prompts file once and tells what a job would meet in it. Writes nothing.

Memory: 12 bytes a row for duplicates, up to _MOST_ROWS, and the longest line.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.checks import NAMED, NamedLine, PromptsCheck, PromptsRequest
from remote import fastjson
from remote.cli import Emit, VerbError
from remote.heartbeat import Beat
from remote.packages import MissingPackageError
from remote.prompts.files import ParquetRows, is_parquet, open_lines
from remote.prompts.look import UnreadableError, check_readable
from remote.prompts.oddities import Oddities, words_of
from remote.prompts.rows import BadRow, Prompt, odd_kind, parse_fields, parse_row
from remote.prompts.shapes import Reading, reading_of

_MOST_ROWS = 40_000_000
_BUCKETS = 256


def call(data: Any, emit: Emit, _body: BinaryIO) -> None:
    request = from_json(PromptsRequest, data)
    path = Path(request.path)
    reading = reading_of(request.columns, request.last_assistant, request.keep)
    try:
        check_readable(path, reading, Beat(emit, f"{path}: a row that can be asked"))
        emit(to_json(check_prompts(path, reading, emit)))
    except UnreadableError as error:
        raise VerbError("missing", error.what, error.hint) from None
    except MissingPackageError as error:
        raise VerbError("missing", str(error)) from None
    except EOFError as error:
        raise VerbError("failed", f"{path}: {error}", "the file isn't whole; send it again") from None


def check_prompts(path: Path, reading: Reading, emit: Emit | None = None) -> PromptsCheck:
    """OSError and EOFError for a file that is damaged or not whole."""
    tally = _Tally()
    beat = Beat(emit, str(path))
    for index, row in _rows(path, reading, tally):
        tally.note(index, row)
        if index % 1024 == 0:
            beat(f"line {index + 1}")
    return tally.result(path)


def _rows(path: Path, reading: Reading, tally: _Tally) -> Iterator[tuple[int, Prompt | BadRow | None]]:
    if is_parquet(path):
        rows = ParquetRows(path, reading)
        index = 0
        while (fields := rows.next_row()[0]) is not None:
            row: Prompt | BadRow | None = parse_fields(index, fields, reading)
            tally.oddities.note_kind(odd_kind(row))
            yield index, row
            index += 1
        rows.close()
        return
    with open_lines(path) as file:
        for index, line in enumerate(file):
            row = parse_row(index, line, reading)
            tally.longest = max(tally.longest, len(line))
            tally.oddities.note_line(index, line, odd_kind(row))
            yield index, row


class _Tally:
    def __init__(self) -> None:
        self.oddities = Oddities()
        self.longest = 0
        self._lines = self._rows = self._tools = self._systems = 0
        self._shapes: Counter[str] = Counter()
        self._bad: list[NamedLine] = []
        self._bad_lines = 0
        self._chars: Counter[int] = Counter()
        self._sum = 0
        self._extremes = [1 << 62, 0]
        self._seen = Seen()

    def note(self, index: int, row: Prompt | BadRow | None) -> None:
        self._lines += 1
        if row is None:
            return
        self._rows += 1
        if isinstance(row, BadRow):
            self._bad_lines += 1
            if len(self._bad) < NAMED:
                self._bad.append(NamedLine(index + 1, row.reason))
            return
        self._shapes[row.shape] += 1
        self._tools += row.tools is not None
        self._systems += row.messages[0]["role"] == "system"
        chars = sum(len(_text(message.get("content"))) for message in row.messages)
        self._sum += chars
        self._extremes = [min(self._extremes[0], chars), max(self._extremes[1], chars)]
        self._chars[_rounded(chars)] += 1
        self._seen.add(index, fastjson.dumps([row.messages, row.tools]))

    def result(self, path: Path) -> PromptsCheck:
        count, duplicated = self._seen.duplicates()
        return PromptsCheck(
            path=str(path),
            bytes=path.stat().st_size,
            lines=self._lines,
            blank=self.oddities["blank"],
            rows=self._rows,
            shapes=dict(self._shapes),
            with_tools=self._tools,
            with_system=self._systems,
            bad_lines=self._bad_lines,
            empty=self.oddities["empty"],
            bad=tuple(self._bad),
            duplicates=count,
            duplicated=tuple(NamedLine(line + 1, f"asks what line {first + 1} asks") for line, first in duplicated),
            chars=self._lengths(),
            notes=self._notes(),
            input=dict(self.oddities),
        )

    def _lengths(self) -> dict[str, float]:
        total = sum(self._chars.values())
        if not total:
            return {}
        lengths = sorted(self._chars)
        reached, at = [], 0
        for length in lengths:
            at += self._chars[length]
            reached.append(at)
        shares = {f"p{p}": float(lengths[bisect_left(reached, total * p / 100)]) for p in (50, 90, 99)}
        least, most = self._extremes
        return {"least": float(least), **shares, "most": float(most), "mean": round(self._sum / total, 1)}

    def _notes(self) -> tuple[str, ...]:
        notes = words_of({kind: count for kind, count in self.oddities.items() if kind not in ("blank", "empty")})
        if self.oddities["long"]:
            notes.append(f"the longest line has {self.longest} bytes")
        return tuple(notes)


class Seen:
    """Finds rows that ask the same, by 64 bits of a hash."""

    def __init__(self) -> None:
        self._hashes = [array("Q") for _ in range(_BUCKETS)]
        self._indices = [array("I") for _ in range(_BUCKETS)]
        self._count = 0

    def add(self, index: int, data: bytes) -> None:
        self._count += 1
        if self._count > _MOST_ROWS:
            self._hashes, self._indices = [], []
            return
        digest = hashlib.blake2b(data, digest_size=9).digest()
        self._hashes[digest[8]].append(int.from_bytes(digest[:8], "little"))
        self._indices[digest[8]].append(index)

    def duplicates(self) -> tuple[int | None, list[tuple[int, int]]]:
        """How many, and the first of them: the row and the one before it that asks the same."""
        if self._count > _MOST_ROWS:
            return None, []
        found: list[tuple[int, int]] = []
        count = 0
        for hashes, indices in zip(self._hashes, self._indices, strict=True):
            first: dict[int, int] = {}
            for value, index in zip(hashes, indices, strict=True):
                if value in first:
                    count += 1
                    found.append((index, first[value]))
                first.setdefault(value, index)
            found = sorted(found)[:NAMED]
        return count, found


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _rounded(number: int) -> int:
    """To three digits, so that there are few different ones."""
    step = int(10 ** max(0, len(str(number)) - 3))
    return number // step * step
