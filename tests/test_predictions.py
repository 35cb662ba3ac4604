"""The history file: it only grows, and never stands in the way of a start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rackhand.errors import RackhandError
from rackhand.predictions import Compared, history_path, put_compared, read_compared

ROW = Compared("2026-05-09T12:00:00+00:00", "pve1/ct200", 3, True, {"version": "0.5.11"}, {"slots": 185}, {"slots": 80})


def test_what_was_put_is_read_again_oldest_first(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "history.sqlite"
    assert read_compared(file) == []
    put_compared(file, [ROW])
    put_compared(file, [ROW, ROW])
    assert read_compared(file) == [ROW, ROW, ROW]


def test_a_file_of_a_newer_rackhand_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(file)) as made:
        made.execute("PRAGMA user_version = 2")
    for touch in (lambda: put_compared(file, [ROW]), lambda: read_compared(file)):
        with pytest.raises(RackhandError, match="has format 2, this rackhand knows 1"):
            touch()


def test_a_file_that_is_none_is_an_error_of_one_line(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    file.write_bytes(b"not a database, and long enough to be looked at" * 40)
    with pytest.raises(RackhandError, match="history can't be kept"):
        put_compared(file, [ROW])


def test_a_place_that_can_not_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RackhandError, match="set XDG_STATE_HOME"):
        put_compared(tmp_path / "file" / "x" / "history.sqlite", [ROW])


def test_the_file_stands_in_the_state_home() -> None:
    assert history_path({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/rackhand/history.sqlite")
    assert history_path({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/rackhand/history.sqlite")
