"""What a file seems to be, by how it begins: its name says nothing. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lines", "gzip", "zstd", "parquet"]
"""The kinds of prompts files; `lines` are JSON, one object each."""

HEAD_BYTES = 64 << 10
"""Enough to tell."""
BOM = b"\xef\xbb\xbf"
_READABLE: tuple[tuple[bytes, Kind], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PAR1", "parquet"),
)
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
"""pzstd and others begin with such a frame."""


@dataclass(frozen=True)
class Seems:
    """`what` follows "is"; `hint` says what next."""

    what: str
    hint: str = "write it as one JSON object a line, or as Parquet"


_UNPACKED = "unpack it: one JSON object a line, plain, .gz, .zst, or Parquet"
_FETCH = "fetch the file itself"
_JSON_LINES = "write one object a line: jq -c . FILE > NEW.jsonl"
_ARRAY_LINES = "write one object a line: jq -c '.[]' FILE > NEW.jsonl"
_MAGIC = (
    (b"\xfd7zXZ\0", Seems("an xz file", f"xz -d FILE, or {_UNPACKED}")),
    (b"BZh", Seems("a bzip2 file", f"bunzip2 FILE, or {_UNPACKED}")),
    (b"7z\xbc\xaf\x27\x1c", Seems("a 7z archive", _UNPACKED)),
    (b"\x04\x22\x4d\x18", Seems("an lz4 file", f"lz4 -d FILE, or {_UNPACKED}")),
    (b"\xff\x06\x00\x00sNaPpY", Seems("a snappy file", _UNPACKED)),
    (b"Rar!", Seems("a RAR archive", _UNPACKED)),
    (b"PARE", Seems("an encrypted Parquet file", "write it without encryption")),
    (b"ARROW1", Seems("an Arrow (IPC, Feather) file")),
    (b"FEA1", Seems("a Feather file")),
    (b"\xff\xff\xff\xff", Seems("an Arrow stream")),
    (b"ORC", Seems("an ORC file")),
    (b"Obj\x01", Seems("an Avro file")),
    (b"\x89HDF", Seems("an HDF5 file")),
    (b"\x93NUMPY", Seems("a NumPy file")),
    (b"SQLite format 3\0", Seems("an SQLite database")),
    (b"\xd0\xcf\x11\xe0", Seems("an old Office (.xls, .doc) file")),
    (b"GGUF", Seems("a model (GGUF)", "name the prompts file")),
    (b"%PDF", Seems("a PDF")),
    (b"\x89PNG", Seems("a picture", "name the prompts file")),
    (b"\xff\xd8\xff", Seems("a picture", "name the prompts file")),
    (b"\x7fELF", Seems("a program", "name the prompts file")),
    (b"version https://git-lfs", Seems("a Git LFS pointer, not the data", f"{_FETCH}: git lfs pull")),
    (b"version https://hawser", Seems("a Git LFS pointer, not the data", f"{_FETCH}: git lfs pull")),
    (b"/annex/objects/", Seems("a git-annex pointer, not the data", f"{_FETCH}: git annex get FILE")),
    (b"../.git/annex/", Seems("a git-annex pointer, not the data", f"{_FETCH}: git annex get FILE")),
    (b"outs:\n- ", Seems("a DVC pointer, not the data", f"{_FETCH}: dvc pull")),
)
_WITHOUT_MARK = (
    (re.compile(rb"[\x09-\x7e]\0\0\0"), "UTF-32LE"),
    (re.compile(rb"\0\0\0[\x09-\x7e]"), "UTF-32BE"),
    (re.compile(rb"[\x09-\x7e]\0[\x09-\x7e]\0"), "UTF-16LE"),
    (re.compile(rb"\0[\x09-\x7e]\0[\x09-\x7e]"), "UTF-16BE"),
)
_UTF = "write it as UTF-8: iconv -f {} -t UTF-8 FILE > NEW"
_BINARY = Seems("a binary file of an unknown kind")
_CSV = (
    (b"\t", Seems("TSV", "write it as one JSON object a line, or as Parquet: TSV isn't read")),
    (b",", Seems("CSV", "write it as one JSON object a line, or as Parquet: CSV isn't read")),
    (b";", Seems("CSV with semicolons", "write it as one JSON object a line, or as Parquet: CSV isn't read")),
    (b"|", Seems("a table with | between columns")),
)


def kind_of(head: bytes) -> Kind:
    """`lines` also when it is nothing that can be read."""
    for magic, kind in _READABLE:
        if head.startswith(magic):
            return kind
    return "zstd" if _ZSTD_SKIPPABLE.match(head) else "lines"


def seems_no_lines(head: bytes) -> Seems | None:
    """What a file can't be lines of JSON for, wherever it goes on; None for one whose lines are worth a look."""
    for magic, seems in _MAGIC:
        if head.startswith(magic):
            return seems
    return _archive(head) or _wide(head) or _spread(head) or _unsafe(head)


def _archive(head: bytes) -> Seems | None:
    if head.startswith(b"PK\x03\x04"):
        if b"xl/" in head or b"[Content_Types].xml" in head:
            return Seems("an Excel or other Office file")
        if b"data.pkl" in head or b".npy" in head:
            return Seems("a PyTorch or NumPy file")
        return Seems("a zip archive", f"unzip FILE, or {_UNPACKED}")
    if head[257:262] == b"ustar":
        return Seems("a tar archive", f"tar -xf FILE, or {_UNPACKED}")
    return None


def _wide(head: bytes) -> Seems | None:
    """UTF-16 and UTF-32, with a byte order mark or by the NULs beside ASCII."""
    for mark, name in (
        (b"\xff\xfe\0\0", "UTF-32"),
        (b"\0\0\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ):
        if head.startswith(mark):
            return Seems(f"{name} text", _UTF.format(name))
    for start, name in _WITHOUT_MARK:
        if start.match(head):
            return Seems(f"{name} text", _UTF.format(name))
    return None


def _spread(head: bytes) -> Seems | None:
    """A value over several lines: one array, or objects printed for people."""
    text = head.removeprefix(BOM).lstrip()
    first, newline, _ = text.partition(b"\n")
    if text[:1] not in (b"{", b"["):
        return None
    whole = _is_whole(first)
    if text[:1] == b"[":
        alone = not text[len(first) :].strip()
        return Seems("one JSON array, not an object a line", _ARRAY_LINES) if not whole or alone else None
    if whole or not newline:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
        over_lines = "\n" in text.decode("utf-8", "replace")[:end]
    except RecursionError:
        return None
    except ValueError:
        # Cut by the head's end: known by a first line that is only the beginning of an object.
        over_lines = first.strip() == b"{" and len(head) >= HEAD_BYTES
    return Seems("JSON spread over several lines, not an object a line", _JSON_LINES) if over_lines else None


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _unsafe(head: bytes) -> Seems | None:
    size = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 0 < size < 1 << 30 and b"\0" in head[:8]:
        return Seems("a model (safetensors)", "name the prompts file")
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":
        return Seems("a Python pickle")
    if head.lstrip()[:1] not in (b"{", BOM[:1]) and head.count(0) > len(head) // 100:
        return _BINARY
    return None


def seems_text(head: bytes) -> Seems | None:
    """What a text is of which no line is a row; None when it doesn't show."""
    text = head.removeprefix(BOM).lstrip()
    start = text[:512].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Seems("an HTML page: a download that failed or needs a login?", _FETCH)
    if start.startswith(b"<"):
        return Seems("XML, perhaps a store's error", f"{_FETCH}, or write it as one JSON object a line")
    lines = [line for line in text.split(b"\n")[:20] if line.strip()]
    if not lines or lines[0].startswith((b"{", b"[")):
        return Seems("Python's text, not JSON (' where JSON has \")") if lines and lines[0][:2] == b"{'" else None
    if lines[0].startswith((b"---", b"- ")) and any(b": " in line for line in lines[:3]):
        return Seems("YAML")
    for mark, seems in _CSV:
        if mark in lines[0] and (len(lines) < 2 or any(mark in line for line in lines[1:3])):
            return seems
    return Seems("text without JSON")
