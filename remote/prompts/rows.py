"""Rows of a prompts file: reading them in order without keeping them.

A row's index is the number of newline bytes before it; lines end with \n only. In Parquet it is the row's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from remote import fastjson
from remote.prompts.arrow_values import BadValueError
from remote.prompts.files import DAMAGE, ParquetRows, is_parquet, open_lines
from remote.prompts.kinds import BOM
from remote.prompts.oddities import BadKind, Oddities
from remote.prompts.shapes import PLAIN, EmptyPromptError, Reading, parse_asked

_COUNTED_BYTES = 1 << 20
"""A block while rows are counted: four times as much takes twice as long."""
_MOST_DEPTH = 200
"""Of what a row asks or keeps: its request and its record have a few levels more, and must stay readable."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row that can be asked. `id` is the row's own, of any JSON type, None when it has none; `extra` the columns
    that are kept, None when none are; `continues`: the last turn is the assistant's, to be continued."""

    index: int
    id: Any
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    extra: dict[str, Any] | None = None
    continues: bool = False
    shape: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that can't be asked. People are told line index + 1."""

    index: int
    reason: str
    kind: BadKind


Row = Prompt | BadRow


def odd_kind(row: Row | None) -> str | None:
    """What Oddities count a line as, by the row that was read from it."""
    return "blank" if row is None else row.kind if isinstance(row, BadRow) else None


def parse_row(index: int, line: bytes, reading: Reading = PLAIN) -> Row | None:
    """The row in `line`, None when the line is blank."""
    text = line.removeprefix(BOM) if index == 0 else line
    text = text.strip()
    if not text:
        return None
    try:
        row = fastjson.loads(text)
    except ValueError as error:
        return _unreadable(index, text, error)
    except Exception as error:  # noqa: BLE001 (whatever one line does, the others are asked)
        return failed_row(index, error)
    if not isinstance(row, dict):
        return BadRow(index, f"a JSON object was expected, not {type(row).__name__}", "shape")
    return parse_fields(index, row, reading)


def parse_fields(index: int, row: dict[str, Any] | Exception, reading: Reading = PLAIN) -> Row:
    """The row of these fields, or of what is wrong with them."""
    if isinstance(row, UnicodeDecodeError):
        return BadRow(index, f"not UTF-8 at byte {row.start}", "not_utf8")
    if isinstance(row, BadValueError):
        return BadRow(index, str(row), row.kind)
    if isinstance(row, ValueError | OverflowError):
        return BadRow(index, f"a value can't be read: {row}"[:200], "shape")
    if isinstance(row, Exception):
        return failed_row(index, row)
    try:
        asked = parse_asked(row, reading)
        extra = {name: row.get(name) for name in reading.keep} if reading.keep else None
        name = row.get(reading.column("id"))
        if fastjson.depth_of([asked.messages, asked.tools, extra, name]) > _MOST_DEPTH:
            return BadRow(index, f"nested deeper than {_MOST_DEPTH} levels", "deep")
    except ValueError as error:
        return BadRow(index, str(error), "empty" if isinstance(error, EmptyPromptError) else "shape")
    except Exception as error:  # noqa: BLE001 (as in parse_row)
        return failed_row(index, error)
    return Prompt(index, name, asked.messages, asked.tools, extra, asked.continues, asked.shape)


def failed_row(index: int, error: Exception) -> BadRow:
    """A row at which something failed that nobody thought of."""
    return BadRow(index, f"{type(error).__name__}: {error}"[:200], "error")


def _unreadable(index: int, text: bytes, error: ValueError) -> BadRow:
    try:
        text.decode()
    except UnicodeDecodeError as found:
        return BadRow(index, f"not UTF-8 at byte {found.start}", "not_utf8")
    if b"\0" in text:
        return BadRow(index, "not JSON: it holds raw NUL bytes", "nul")
    if isinstance(error, fastjson.DeepError):
        return BadRow(index, "not JSON that can be read: nested too deeply", "deep")
    return BadRow(index, f"not JSON: {error}"[:200], "not_json")


class PromptReader:
    """Reads a prompts file once, in order. Blocking; used from one thread at a time. `oddities` are of wanted lines."""

    def __init__(
        self,
        path: Path,
        *,
        wanted: Callable[[int], bool],
        reading: Reading = PLAIN,
        skip: Callable[[BinaryIO, int], int] | None = None,
    ) -> None:
        self.oddities = Oddities()
        self._path = path
        self._lines = None if is_parquet(path) else open_lines(path)
        self._rows = ParquetRows(path, reading) if is_parquet(path) else None
        self._reading = reading
        self._index = 0
        self._wanted = wanted
        self._skip = skip
        self.ended = False

    def read(self, *, rows: int, size: int) -> list[Row]:
        """The next wanted rows: at most `rows`, and about `size` bytes of lines. Fewer only at the end.

        OSError and EOFError for a file that is damaged or not whole."""
        found: list[Row] = []
        taken = 0
        while len(found) < rows and taken < size and not self.ended:
            try:
                row, length = self._next_row()
            except DAMAGE as error:
                raise OSError(f"{self._path} is damaged: {error}") from None
            if row is not None:
                found.append(row)
                taken += length
        return found

    def _next_row(self) -> tuple[Row | None, int]:
        if self._lines is not None and self._skip is not None and not self._wanted(self._index):
            self._index = self._skip(self._lines, self._index)
        index, self._index = self._index, self._index + 1
        row: Row | None = None
        if self._lines is not None:
            line = self._lines.readline()
            self.ended = not line
            if line and self._wanted(index):
                row = parse_row(index, line, self._reading)
                self.oddities.note_line(index, line, odd_kind(row))
            return row, len(line)
        assert self._rows is not None  # noqa: S101  one of the two is open
        fields, length = self._rows.next_row()
        self.ended = fields is None
        if fields is not None and self._wanted(index):
            row = parse_fields(index, fields, self._reading)
            self.oddities.note_kind(odd_kind(row))
        return row, length

    def close(self) -> None:
        for file in (self._lines, self._rows):
            if file is not None:
                file.close()


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows that aren't blank: all, and those of this shard."""

    total: int
    mine: int


def count_rows(
    path: Path, *, shard: int = 0, shards: int = 1, note: Callable[[int, int], None] | None = None
) -> RowCount:
    """`note` is told here and there which row begins at which byte."""
    if is_parquet(path):
        total = ParquetRows.count(path)
        return RowCount(total, len(range(shard, total, shards)))
    with open_lines(path) as file:
        total = mine = at = 0
        rest = b""
        while block := file.read(_COUNTED_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                whole = whole.removeprefix(BOM) if at == 0 else whole
                lines, rows, own = _count_block(whole, at, shard, shards)
                at, total, mine = at + lines, total + rows, mine + own
                if note is not None:
                    note(at, file.tell() - len(rest))
        if (rest.removeprefix(BOM) if at == 0 else rest).strip():
            total, mine = total + 1, mine + (at % shards == shard)
    return RowCount(total, mine)


def _count_block(block: bytes, first: int, shard: int, shards: int) -> tuple[int, int, int]:
    """Lines, rows and own rows of a block of lines whose last newline is cut off."""
    lines: Iterator[bytes] | list[bytes] = block.split(b"\n")
    total = mine = count = 0
    for count, line in enumerate(lines, 1):
        if line and not line.isspace():
            total += 1
            mine += (first + count - 1) % shards == shard
    return count, total, mine
