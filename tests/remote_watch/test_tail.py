from __future__ import annotations

import os
from pathlib import Path

import pytest

from remote.watching import tail
from remote.watching.tail import Tail, find_last_line


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_come_whole_however_they_were_written(log: Path) -> None:
    follower = Tail(log)
    assert follower.read() == []
    append(log, b"one\ntw")
    assert follower.read() == ["one"]
    append(log, b"o\nthree\n")
    assert follower.read() == ["two", "three"]
    assert follower.read() == []
    follower.close()


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    append(log, b"old 1\n")
    follower = Tail(log)
    assert follower.read() == ["old 1"]
    append(log, b"old 2\n")
    log.rename(log.with_suffix(".1"))
    append(log, b"new 1\n")
    assert follower.read() == ["old 2", "new 1"]
    follower.close()


def test_a_torn_end_of_a_rotated_file_is_a_line_of_its_own(log: Path) -> None:
    append(log, b"old\ntorn")
    follower = Tail(log)
    assert follower.read() == ["old"]
    log.rename(log.with_suffix(".1"))
    append(log, b"new\n")
    assert follower.read() == ["torn", "new"]
    follower.close()


def test_a_truncated_file_is_read_from_its_begin(log: Path) -> None:
    append(log, b"a long first line\n")
    follower = Tail(log)
    follower.read()
    os.truncate(log, 0)
    append(log, b"new\n")
    assert follower.read() == ["new"]
    follower.close()


def test_a_file_that_vanished_may_come_back(log: Path) -> None:
    append(log, b"one\n")
    follower = Tail(log)
    follower.read()
    log.unlink()
    assert follower.read() == []
    append(log, b"two\n")
    assert follower.read() == ["two"]
    follower.close()


def test_only_the_backlog_of_a_long_file_is_read_at_first_and_only_whole_lines(log: Path) -> None:
    append(log, b"".join(b"line %04d\n" % number for number in range(1000)))
    follower = Tail(log, backlog_bytes=25)
    assert follower.read() == ["line 0998", "line 0999"]
    follower.close()


def test_a_flood_is_jumped_over_and_counted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_STEP_BYTES", 5000)
    monkeypatch.setattr(tail, "_CHUNK", 1000)
    append(log, b"first\n")
    follower = Tail(log)
    follower.read()
    append(log, b"".join(b"line %04d\n" % number for number in range(1000)))
    lines = follower.read()
    assert lines[-1] == "line 0999"
    assert len(lines) <= 100
    assert follower.skipped_bytes == 10 * (1000 - len(lines))
    follower.close()


def test_a_line_without_end_does_not_fill_the_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 100)
    append(log, b"x" * 1000)
    follower = Tail(log)
    assert follower.read() == []
    assert follower.skipped_bytes == 1000
    follower.close()


def test_bytes_that_are_not_utf_8_are_replaced(log: Path) -> None:
    append(log, b"a\xff\xc3b\n")
    follower = Tail(log)
    assert follower.read() == ["a\ufffd\ufffdb"]
    follower.close()


def test_the_last_line_with_a_text_is_found_from_the_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_CHUNK", 64)
    append(log, b"max=1\n" + b"noise\n" * 50 + b"[stamp] max=2, more\n" + b"noise\n" * 200)
    assert find_last_line(log, b"max=") == "[stamp] max=2, more"
    assert find_last_line(log, b"absent") is None
    assert find_last_line(log.with_suffix(".none"), b"max=") is None
