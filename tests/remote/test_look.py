"""Files of which nothing can be asked: each is named for what it seems to be, before anything runs."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import feather, parquet

from rackhand.contract import to_json
from rackhand.contract.checks import PromptsRequest
from rackhand.errors import PreconditionError
from rackhand.workflows.checks import check_file as check_verb
from remote import check_prompts
from remote.cli import VerbError
from remote.prompts import look
from remote.prompts.look import UnreadableError, check_readable
from remote.prompts.rows import PromptReader, count_rows
from remote.prompts.shapes import Reading
from tests.remote.rig import Rig, nothing_lost_nothing_twice

ROWS = [{"id": i, "prompt": f"prompt {i}"} for i in range(30)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
PRETTY = "\n".join(json.dumps(row, indent=2) for row in ROWS).encode()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
CSV = b"id,prompt\n" + b"".join(b'%d,"what, then?"\n' % i for i in range(5000))


def _tar(data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        member = tarfile.TarInfo("prompts.jsonl")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def _zip(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, LINES)
    return made.getvalue()


def _made(write: Callable[[io.BytesIO], object]) -> bytes:
    made = io.BytesIO()
    write(made)
    return made.getvalue()


TABLE = pa.Table.from_pylist(ROWS)
PARQUET = _made(lambda file: parquet.write_table(TABLE, file))
WRONG_PARQUET = _made(lambda file: parquet.write_table(TABLE.rename_columns(["id", "question"]), file))
EMPTY_PARQUET = _made(lambda file: parquet.write_table(TABLE.slice(0, 0), file))

UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n \r\n\n", "holds blank lines only"),
    "BOM alone": (b"\xef\xbb\xbf", "holds blank lines only"),
    "LFS": (LFS, "a Git LFS pointer.*git lfs pull"),
    "annex": (b"/annex/objects/SHA256E-s1--00\n", "a git-annex pointer"),
    "DVC": (b"outs:\n- md5: 22a1\n  path: prompts.jsonl\n", "a DVC pointer"),
    "CSV": (CSV, "is CSV"),
    "CSV, a header only": (b"id,prompt\n", "is CSV"),
    "CSV with semicolons": (b"id;prompt\n1;hi\n", "CSV with semicolons"),
    "TSV": (b"id\tprompt\n1\thi\n", "is TSV"),
    "gzipped CSV": (gzip.compress(CSV), "a gzip file of CSV"),
    "UTF-16 with a mark": (LINES.decode().encode("utf-16"), "UTF-16 text.*iconv -f UTF-16"),
    "UTF-16BE with a mark": (b"\xfe\xff" + LINES.decode().encode("utf-16-be"), "UTF-16 text"),
    "UTF-16LE": (LINES.decode().encode("utf-16-le"), "UTF-16LE text.*iconv -f UTF-16LE"),
    "UTF-16BE": (LINES.decode().encode("utf-16-be"), "UTF-16BE text"),
    "UTF-32": (LINES.decode().encode("utf-32"), "UTF-32 text"),
    "UTF-32LE": (LINES.decode().encode("utf-32-le"), "UTF-32LE text"),
    "UTF-32BE": (LINES.decode().encode("utf-32-be"), "UTF-32BE text"),
    "pretty": (PRETTY, "JSON spread over several lines.*jq -c"),
    "pretty, one object": (json.dumps(ROWS[0], indent=4).encode(), "JSON spread over several lines"),
    "pretty, longer than the head": (json.dumps({"prompt": "x" * 99_000}, indent=1).encode(), "JSON spread over"),
    "array on a line": (json.dumps(ROWS).encode(), r"one JSON array.*jq -c '.\[\]'"),
    "array on a long line": (json.dumps(ROWS * 900).encode(), "one JSON array"),
    "array, pretty": (json.dumps(ROWS, indent=1).encode(), "one JSON array"),
    "array, a row a line": (b"[\n" + LINES.replace(b"}\n", b"},\n")[:-2] + b"\n]\n", "one JSON array"),
    "zipped twice": (gzip.compress(gzip.compress(LINES)), "a gzip file of a gzip file"),
    "gzipped Parquet": (gzip.compress(PARQUET), "a gzip file of a parquet file"),
    "xz": (lzma.compress(LINES), "an xz file.*xz -d"),
    "bzip2": (bz2.compress(LINES), "a bzip2 file.*bunzip2"),
    "zip": (_zip("prompts.jsonl"), "a zip archive.*unzip"),
    "xlsx": (_zip("xl/workbook.xml"), "an Excel"),
    "PyTorch": (_zip("archive/data.pkl"), "a PyTorch"),
    "tar": (_tar(LINES), "a tar archive"),
    "tar.gz": (gzip.compress(_tar(LINES)), "a gzip file of a tar archive"),
    "HTML": (HTML, "an HTML page"),
    "XML": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "XML, perhaps a store's error"),
    "Arrow": (_made(lambda file: feather.write_feather(TABLE, file)), "an Arrow"),
    "Arrow stream": (_made(lambda file: pa.ipc.new_stream(file, TABLE.schema).write_table(TABLE)), "an Arrow stream"),
    "safetensors": (len(b'{"a":{}}').to_bytes(8, "little") + b'{"a":{}}' + bytes(64), "a model .safetensors"),
    "pickle": (pickle.dumps(ROWS), "a Python pickle"),
    "SQLite": (b"SQLite format 3\0" + bytes(100), "an SQLite database"),
    "zeros": (bytes(5000), "a binary file"),
    "noise": (b"\xff\xd8\xff" + os.urandom(500), "a picture"),
    "YAML": (b"- prompt: a\n- prompt: b\n", "YAML"),
    "Python's text": (b"{'prompt': 'a'}\n{'prompt': 'b'}\n", "Python's text"),
    "text": (b"What is this?\nA list of questions\n", "text without JSON"),
    "other keys": (b'{"question": "a"}\n' * 7, "none of its 7 rows .*; line 1: none of messages.* its keys: question"),
    "cut": (b'{"prompt": "a', "none of its 1 rows .*line 1: not JSON"),
    "gzip, cut": (gzip.compress(LINES)[:40], "ends early.*is it whole"),
    "Parquet, other columns": (WRONG_PARQUET, "has no column messages, .*; it has id, question; say with columns"),
    "Parquet, no rows": (EMPTY_PARQUET, "holds no rows"),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_of_which_nothing_can_be_asked_is_named_for_what_it_seems_to_be(
    tmp_path: Path, name: str, suffix: str
) -> None:
    data, words = UNREADABLE[name]
    path = tmp_path / f"prompts{suffix}"
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=f"(?s)^{path}.*{words}"):
        check_readable(path)
    with pytest.raises(VerbError, match=words.partition(".*")[0]) as caught:
        check_prompts.call(to_json(PromptsRequest(str(path))), lambda event: None, io.BytesIO())
    assert caught.value.failure.kind == "missing"
    assert caught.value.failure.hint


READABLE: dict[str, bytes] = {
    "plain": LINES,
    "BOM and blank lines": b"\xef\xbb\xbf\n\n" + LINES,
    "gzip": gzip.compress(LINES),
    "gzip in two members": gzip.compress(LINES[:40]) + gzip.compress(LINES[40:]),
    "zstd": zstandard.compress(LINES),
    "zstd after a skippable frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(LINES),
    "Parquet": PARQUET,
    "bad rows first": b"[1]\nnot, JSON\n" * 3000 + LINES,
    "a list first": b"[1]\n" + LINES,
    "CSV words in a row": b'{"prompt": "a,b\\tc;d"}\n',
    "one row without a newline": b'{"prompt": "a"}',
    "blank lines of 100 KB": b"\n" * 100_000 + LINES,
    "NULs first": b"\0\0\n" + LINES,
}


@pytest.mark.parametrize("suffix", [".jsonl", ".gz", ".zst", ".parquet", ""])
@pytest.mark.parametrize("name", READABLE)
def test_a_file_is_read_by_how_it_begins_whatever_its_suffix(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"prompts{suffix}"
    path.write_bytes(READABLE[name])
    check_readable(path)
    reader = PromptReader(path, wanted=lambda _: True)
    rows = 0
    while found := reader.read(rows=500, size=1 << 20):
        rows += len(found)
    reader.close()
    assert rows == count_rows(path).total


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name, words in (("", "is a directory"), ("pipe", "no regular file"), ("link", "a link to nothing")):
        with pytest.raises(UnreadableError, match=words):
            check_readable(tmp_path / name)
    with pytest.raises(PreconditionError, match="is a directory; name the prompts file in it"):
        check_verb(str(tmp_path))


def test_a_file_without_a_good_row_is_read_to_its_end_with_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"text": 1}\n' * 3000)
    beats: list[int] = []
    with pytest.raises(UnreadableError, match="none of its 3000 rows"):
        check_readable(path, Reading(), lambda: beats.append(1))
    assert len(beats) >= 3000 // look._ROWS


@pytest.mark.parametrize("name", ["LFS", "UTF-16 with a mark", "pretty", "array on a line", "CSV", "empty"])
def test_the_generator_refuses_such_a_file_with_4_and_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(UNREADABLE[name][0])
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts) == 4
        assert rig.requests() == 0
    assert "refused: " in rig.log
    assert UNREADABLE[name][1].partition(".*")[0] in rig.log
    assert not rig.output.exists()


def test_a_gzip_file_without_its_suffix_is_asked_and_resumed_as_any_other(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(gzip.compress(LINES))
    with Rig(tmp_path, ports=1) as rig:
        assert rig.generate(prompts, "--limit", "7") == 0
        assert rig.generate(prompts) == 0
        assert rig.requests() == 30
    nothing_lost_nothing_twice(rig.output, 30)


def _window(log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(LINES) + stream.flush()


@pytest.mark.parametrize("log", [27, 28, 30])
def test_a_zstd_window_above_the_default_is_read(tmp_path: Path, log: int) -> None:
    path = tmp_path / "prompts.jsonl.zst"
    path.write_bytes(_window(log))
    check_readable(path)
    assert count_rows(path).total == 30


def test_a_zstd_window_above_the_limit_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.zst"
    path.write_bytes(_window(31))
    with pytest.raises(UnreadableError, match=r"its zstd window is 2048 MiB, at most 1024 are read; .* --long=30"):
        check_readable(path)
    path.write_bytes(zstandard.compress(LINES * 2000) + _window(31))
    check_readable(path)
    with pytest.raises(OSError, match="its zstd window is 2048 MiB"):
        count_rows(path)
