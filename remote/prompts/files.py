"""Opening prompts files: .jsonl plain, .gz or .zst, and Parquet. All are streamed."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from remote.packages import load_package
from remote.prompts.zstd_file import ZstdFile

DAMAGE = (zlib.error,)
"""What a damaged file raises beside OSError and EOFError."""
_BATCH_ROWS = 256


def is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet"


def open_lines(path: Path) -> BinaryIO:
    """Plain, .gz or .zst. MissingPackageError when a .zst can't be read here."""
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".zst":
        return cast("BinaryIO", io.BufferedReader(ZstdFile(path), 1 << 18))
    return path.open("rb")


def check_readable(path: Path) -> None:
    """MissingPackageError, or OSError, when its kind of file can't be read here."""
    if is_parquet(path):
        ParquetRows.count(path)
    elif path.suffix == ".zst":
        ZstdFile(path).close()


class ParquetRows:
    """The rows of a Parquet file as objects with those of `columns` that it has. One batch is held in memory."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._arrow = load_package("pyarrow", f"reading {path.name}")
        self._file = _open(path)
        here = [name for name in columns if name in self._file.schema_arrow.names]
        self._rows = self._observe_rows(path, here)

    def _observe_rows(self, path: Path, columns: list[str]) -> Iterator[tuple[dict[str, Any] | ValueError, int]]:
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                length = batch.nbytes // max(1, batch.num_rows)
                for row in _read_batch(batch):
                    yield row, length
        except self._arrow.ArrowException as error:
            raise OSError(f"{path} is damaged: {error}") from None

    def next_row(self) -> tuple[dict[str, Any] | ValueError | None, int]:
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
        raise OSError(f"{path} is no Parquet file: {error}") from None


def _read_batch(batch: Any) -> list[dict[str, Any] | ValueError]:
    """Row by row where one can't be read: bytes that aren't UTF-8, a time beyond the year 9999."""
    try:
        return [_plain(row) for row in batch.to_pylist()]
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [error if isinstance(error, ValueError) else ValueError(str(error))]
    return [row for at in range(batch.num_rows) for row in _read_batch(batch.slice(at, 1))]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without the nulls that a struct column has for the keys that other rows use, and with JSON's types only."""
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.loads(json.dumps(value, default=str))
