"""A look at a prompts file before anything runs: is there a row that can be asked? If not, what is it?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rackhand.contract.job import PROMPT_SHAPES
from remote.prompts.files import DAMAGE, ParquetRows, is_parquet, observe_kind, open_lines
from remote.prompts.kinds import HEAD_BYTES, Seems, kind_of, seems_no_lines, seems_text
from remote.prompts.rows import BadRow, Prompt, PromptReader
from remote.prompts.shapes import PLAIN, Reading

_ROWS = 256
_TEXT_ROWS = 1000
"""Bad rows after which a text that isn't JSON is believed to be what it seems."""


class UnreadableError(Exception):
    """A prompts file of which nothing can be asked."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}" if self.hint else self.what


def check_readable(path: Path, reading: Reading = PLAIN, beat: Callable[[], None] = lambda: None) -> None:
    """UnreadableError unless one row can be asked; MissingPackageError.

    Reads as far as the first such row; `beat` is called now and then.
    """
    check_file(path)
    try:
        if is_parquet(path):
            _check_columns(path, reading)
            seems = None
        else:
            seems = _look_at_head(path)
        _find_row(path, reading, seems, beat)
    except EOFError as error:
        raise UnreadableError(f"{path} ends early: {error}", "is it whole? send it again") from None
    except (OSError, *DAMAGE) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnreadableError(said if str(path) in said else f"{path} can't be read: {said}", "") from None


def check_file(path: Path) -> None:
    """UnreadableError unless it is a file with something in it."""
    if path.is_dir():
        raise UnreadableError(f"{path} is a directory", "name the prompts file in it")
    if not path.exists():
        link = ", a link to nothing" if path.is_symlink() else ""
        raise UnreadableError(f"no prompts file {path}{link}", "set jobs.prompts, or upload: a local file")
    if not path.is_file():
        raise UnreadableError(f"{path} is no regular file", "name a prompts file; it is read more than once")
    if path.stat().st_size == 0:
        raise UnreadableError(f"{path} is empty", "is it the right file?")


def _check_columns(path: Path, reading: Reading) -> None:
    rows = ParquetRows(path, reading)
    rows.close()
    wanted = [reading.column(shape) for shape in PROMPT_SHAPES]
    if not set(wanted) & set(rows.columns):
        what = f"{path} has no column {', '.join(wanted[:-1])} or {wanted[-1]}; it has {_some(rows.columns)}"
        raise UnreadableError(what, "say with columns what the file calls them")
    if not ParquetRows.count(path):
        raise UnreadableError(f"{path} holds no rows", "is it the right file?")


def _some(names: tuple[str, ...]) -> str:
    return (", ".join(names[:20]) + (" ..." if len(names) > 20 else "") or "none")[:400]


def _look_at_head(path: Path) -> Seems | None:
    """What it seems to be when no line is a row. UnreadableError when that is sure."""
    packed = observe_kind(path)
    with open_lines(path) as file:
        head = file.read(HEAD_BYTES)
    inside = kind_of(head)
    seems = Seems(f"a {inside} file", "unpack it once") if inside != "lines" else seems_no_lines(head)
    if seems is not None:
        raise UnreadableError(f"{path} is {_packed(packed)}{seems.what}", seems.hint)
    return seems_text(head)


def _packed(kind: str) -> str:
    return "" if kind == "lines" else f"a {kind} file of "


def _find_row(path: Path, reading: Reading, seems: Seems | None, beat: Callable[[], None]) -> None:
    reader = PromptReader(path, wanted=lambda _: True, reading=reading)
    first: BadRow | None = None
    bad = 0
    try:
        while found := reader.read(rows=_ROWS, size=1 << 20):
            beat()
            if any(isinstance(row, Prompt) for row in found):
                return
            bad += len(found)
            first = first or next(row for row in found if isinstance(row, BadRow))
            if seems is not None and bad >= _TEXT_ROWS:
                break
    finally:
        reader.close()
    if first is None:
        raise UnreadableError(f"{path} holds blank lines only", "is it the right file?")
    if seems is not None:
        raise UnreadableError(f"{path} is {_packed(observe_kind(path))}{seems.what}", seems.hint)
    what = f"{path}: none of its {bad} rows can be asked; line {first.index + 1}: {first.reason}"
    raise UnreadableError(what, "put them right, or say with columns what the file calls its prompts")
