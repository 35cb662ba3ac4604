"""Opening prompts files: lines of JSON, plain, gzip or zstd, and Parquet, known by how they begin. All are streamed."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from remote.packages import load_package
from remote.prompts.arrow_values import converter
from remote.prompts.kinds import HEAD_BYTES, Kind, kind_of
from remote.prompts.shapes import Reading
from remote.prompts.zstd_file import ZstdFile

DAMAGE = (zlib.error,)
"""What a damaged file raises beside OSError and EOFError."""
_BATCH_ROWS = 256


def observe_kind(path: Path) -> Kind:
    with path.open("rb") as file:
        return kind_of(file.read(HEAD_BYTES))


def is_parquet(path: Path) -> bool:
    return observe_kind(path) == "parquet"


def open_lines(path: Path) -> BinaryIO:
    """Plain, gzip or zstd. MissingPackageError when zstd can't be read here."""
    kind = observe_kind(path)
    if kind == "gzip":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if kind == "zstd":
        return cast("BinaryIO", io.BufferedReader(ZstdFile(path), 1 << 18))
    return path.open("rb")


class ParquetRows:
    """The rows of a Parquet file as objects with those columns that `reading` uses. One batch is held in memory."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self._arrow = load_package("pyarrow", f"reading {path.name}")
        self._file = _open(path)
        schema = self._file.schema_arrow
        self.columns: tuple[str, ...] = tuple(schema.names)
        here = [name for name in reading.used if name in schema.names]
        self._to_json = {
            name: converter(self._arrow.types, schema.field(name).type, name, kept=name not in reading.asked)
            for name in here
        }
        self._rows = self._observe_rows(path, here)

    def _observe_rows(self, path: Path, columns: list[str]) -> Iterator[tuple[dict[str, Any] | Exception, int]]:
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                length = batch.nbytes // max(1, batch.num_rows)
                for row in _read_batch(batch):
                    yield self._plain(row), length
        except self._arrow.ArrowException as error:
            raise OSError(f"{path} is damaged: {error}") from None

    def _plain(self, row: dict[str, Any] | Exception) -> dict[str, Any] | Exception:
        if isinstance(row, Exception):
            return row
        try:
            return {name: self._to_json[name](value) for name, value in row.items()}
        except Exception as error:  # noqa: BLE001 (whatever one row holds, the others are asked)
            return error

    def next_row(self) -> tuple[dict[str, Any] | Exception | None, int]:
        """The row, or what is wrong with its values, and about its bytes; None at the end."""
        return next(self._rows, (None, 0))

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def count(path: Path) -> int:
        file = _open(path)
        with file:
            return int(file.metadata.num_rows)


def _open(path: Path) -> Any:
    arrow = load_package("pyarrow", f"reading {path.name}")
    parquet = load_package("pyarrow.parquet", f"reading {path.name}")
    try:
        return parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise OSError(f"{path} is damaged: {error}") from None


def _read_batch(batch: Any) -> list[dict[str, Any] | Exception]:
    """Row by row where one can't be read: bytes that aren't UTF-8, a time beyond the year 9999."""
    try:
        found: list[dict[str, Any] | Exception] = batch.to_pylist()
    except Exception as error:  # noqa: BLE001 (as in `_plain`)
        if batch.num_rows == 1:
            return [error]
        return [row for at in range(batch.num_rows) for row in _read_batch(batch.slice(at, 1))]
    return found
