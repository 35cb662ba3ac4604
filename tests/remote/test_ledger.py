"""The ledger under crashes: whatever is cut, what was acknowledged stands, once."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from remote.output import append_file
from remote.output.index_set import IndexSet
from remote.output.ledger import Batch, Ledger
from remote.output.recovery import open_ledger
from remote.output.uploads_file import observe_uploads
from tests.remote.rig import listed, nothing_lost_nothing_twice, records


def _record(index: int, size: int = 10) -> tuple[int, bytes]:
    prompt = [{"role": "user", "content": f"p{index}"}]
    record = {"index": index, "messages": prompt, "completion": f"echo:p{index}" + "x" * size}
    return index, json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _rejected(index: int) -> tuple[int, bytes]:
    return index, json.dumps({"index": index, "completion": ""}).encode() + b"\n"


def _open(output: Path, said: list[str] | None = None, *, shard_bytes: int = 600, **how: bool) -> Ledger:
    return open_ledger(output, (said if said is not None else []).append, shard_bytes=shard_bytes, **how)


def test_shards_roll_by_size_and_the_manifest_tells_the_truth(tmp_path: Path) -> None:
    ledger = _open(tmp_path)
    for start in range(0, 40, 4):
        ledger.commit(Batch(records=[_record(i) for i in range(start, start + 4)]))
    ledger.close_shard()
    ledger.close()
    nothing_lost_nothing_twice(tmp_path, 40)
    entries = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert len(entries) == len(list(tmp_path.glob("completions-*"))) > 2
    assert sum(entry["count"] for entry in entries) == 40
    assert (entries[0]["first_index"], entries[-1]["last_index"]) == (0, 39)
    said: list[str] = []
    again = _open(tmp_path, said)
    assert (len(again.done), said) == (40, [])


def test_an_index_is_stored_once_whatever_is_committed(tmp_path: Path) -> None:
    ledger = _open(tmp_path)
    ledger.commit(Batch(records=[_record(1), _record(1), _record(2)]))
    ledger.commit(Batch(records=[_record(2), _record(3)]))
    ledger.close()
    nothing_lost_nothing_twice(tmp_path, [1, 2, 3])


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_tail_is_cut_and_the_rest_stands(tmp_path: Path, cut: int) -> None:
    ledger = _open(tmp_path)
    ledger.commit(Batch(records=[_record(0), _record(1)]))
    ledger.close()
    shard = tmp_path / "completions-00000.jsonl"
    os.truncate(shard, shard.stat().st_size - cut)
    said: list[str] = []
    again = _open(tmp_path, said)
    assert list(again.done) == [0]
    assert any("were cut" in line for line in said)
    assert any("1 listed indices have no record" in line for line in said)
    again.commit(Batch(records=[_record(1)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 2)


def test_zeros_and_garbage_inside_the_open_shard_cost_only_their_own_records(tmp_path: Path) -> None:
    ledger = _open(tmp_path, shard_bytes=1 << 20)
    ledger.commit(Batch(records=[_record(i) for i in range(6)]))
    ledger.close()
    shard = tmp_path / "completions-00000.jsonl"
    lines = shard.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * len(lines[2])
    lines[4] = lines[4][:20] + b"\n"
    lines.append(lines[1])
    shard.write_bytes(b"".join(lines))
    said: list[str] = []
    again = _open(tmp_path, said, shard_bytes=1 << 20)
    assert list(again.done) == [0, 1, 5]
    again.commit(Batch(records=[_record(i) for i in (2, 3, 4)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "finished indices weren't listed"),
        (b"", "finished indices weren't listed"),
        (b"0\n1\n2", "finished indices weren't listed"),
        (b"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n99\n", "1 listed indices have no record"),
        (b"0\nx\n\0\0\0\n1\n", "finished indices weren't listed"),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_where_done_indices_and_shards_disagree_the_shards_win_and_it_is_said(
    tmp_path: Path, content: bytes | None, words: str, closed: bool
) -> None:
    ledger = _open(tmp_path, shard_bytes=1 << 20)
    ledger.commit(Batch(records=[_record(i) for i in range(10)]))
    if closed:
        ledger.close_shard()
    ledger.close()
    done = tmp_path / ".done_indices"
    done.unlink() if content is None else done.write_bytes(content)
    said: list[str] = []
    again = _open(tmp_path, said)
    assert list(again.done) == list(range(10))
    assert any(words in line for line in said), said
    again.commit(Batch(records=[_record(10)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 11)
    quiet: list[str] = []
    _open(tmp_path, quiet)
    assert quiet == []


def test_a_closed_shard_that_changed_is_read_again(tmp_path: Path) -> None:
    ledger = _open(tmp_path, shard_bytes=1)
    for index in range(3):
        ledger.commit(Batch(records=[_record(index)]))
    ledger.close()
    (tmp_path / "completions-00000.jsonl").write_bytes(b"")
    said: list[str] = []
    again = _open(tmp_path, said)
    assert list(again.done) == [1, 2]
    assert "reading all shards again: completions-00000.jsonl" in said[0]
    again.commit(Batch(records=[_record(0)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 3)


def test_a_closed_shard_that_was_taken_away_counts_as_finished_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    ledger = _open(tmp_path, shard_bytes=1)
    for index in range(3):
        ledger.commit(Batch(records=[_record(index)]))
    ledger.close_shard()
    ledger.close()
    (tmp_path / "completions-00002.jsonl").unlink()
    said: list[str] = []
    again = _open(tmp_path, said)
    assert list(again.done) == [0, 1, 2]
    assert "completions-00002.jsonl: in the manifest but not here" in said[0]
    again.commit(Batch(records=[_record(3)]))
    again.close()
    assert (tmp_path / "completions-00003.jsonl").exists()


def test_lines_of_the_wrong_kind_in_manifest_and_uploads_are_left_out(tmp_path: Path) -> None:
    ledger = _open(tmp_path)
    ledger.commit(Batch(records=[_record(0)]))
    ledger.close_shard()
    ledger.close()
    line = json.loads((tmp_path / "manifest.jsonl").read_bytes())
    entry = {"shard": "completions-00000.jsonl", "size": 1, "sha256": "", "store": "", "uploaded": ""}
    for name, rows in (
        ("manifest.jsonl", [line | {"count": "x"}, line | {"done_bytes": -1}, line | {"shard": 5}]),
        ("uploads.jsonl", [entry | {"size": "x"}, entry | {"shard": 5}]),
    ):
        with (tmp_path / name).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    said: list[str] = []
    again = _open(tmp_path, said)
    again.close()
    assert list(again.done) == [0]
    assert said == []
    assert observe_uploads(tmp_path) == {}


def test_released_rejections_and_failures_are_open_again_and_stay_so(tmp_path: Path) -> None:
    ledger = _open(tmp_path, shard_bytes=1)
    ledger.commit(Batch(records=[_record(0)], rejected=[_rejected(1)], failures=[_rejected(2)]))
    ledger.commit(Batch(records=[_record(3)]))
    ledger.close()
    first = _open(tmp_path)
    assert (list(first.done), list(first.failed), first.rejected_before) == ([0, 1, 3], [2], 1)
    first.close()
    second = _open(tmp_path, retry_failed=True, retry_rejected=True)
    assert (list(second.done), list(second.failed)) == ([0, 3], [])
    second.close()
    third = _open(tmp_path)
    assert (list(third.done), list(third.failed)) == ([0, 3], [])
    third.commit(Batch(records=[_record(1), _record(2)]))
    third.close()
    nothing_lost_nothing_twice(tmp_path, 4)


@pytest.mark.parametrize("name", ["rejected.jsonl", "failures.jsonl"])
def test_lines_that_lost_sectors_are_cut_and_said_and_the_others_stand(tmp_path: Path, name: str) -> None:
    ledger = _open(tmp_path)
    ledger.commit(Batch(rejected=[_rejected(i) for i in range(4)], failures=[_rejected(i) for i in range(4, 8)]))
    ledger.close()
    lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
    (tmp_path / name).write_bytes(lines[0] + bytes(9) + lines[1][9:] + lines[2] + lines[3] + lines[3][:9])
    said: list[str] = []
    again = _open(tmp_path, said)
    indices = [json.loads(line)["index"] for line in (tmp_path / name).read_bytes().splitlines()]
    assert indices == [json.loads(lines[i])["index"] for i in (0, 2, 3)]
    assert f"{name}: {len(lines[1]) + 9} bytes that are no whole line were cut" in said[0]
    assert set(indices) <= {*again.done, *again.failed}
    again.close()


def _error_of(ledger: Ledger, batch: Batch) -> int | None:
    try:
        ledger.commit(batch)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("fails_at", range(6))
def test_a_write_or_sync_that_fails_is_done_again_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str, fails_at: int
) -> None:
    ledger = _open(tmp_path, shard_bytes=1)
    ledger.commit(Batch(records=[_record(0)]))
    real = getattr(os, call)
    calls = iter(range(1000))

    def broken(fd: int, *arguments: object) -> object:
        if next(calls) == fails_at:
            if call == "pwrite":
                data, at = arguments
                real(fd, bytes(data)[:7], at)  # type: ignore[call-overload]
            raise OSError(error, os.strerror(error))
        return real(fd, *arguments)

    monkeypatch.setattr(append_file.os, call, broken)
    batch = Batch(records=[_record(1), _record(2)], rejected=[_rejected(3)], failures=[_rejected(4)])
    seen = _error_of(ledger, batch)
    assert seen in (None, error)
    assert seen is None or _error_of(ledger, batch) is None
    assert not batch
    monkeypatch.undo()
    ledger.close()
    assert sorted(record["index"] for record in records(tmp_path)) == [0, 1, 2]
    assert sorted(listed(tmp_path)) == [0, 1, 2, 3]
    said: list[str] = []
    again = _open(tmp_path, said)
    assert (list(again.done), list(again.failed), said) == ([0, 1, 2, 3], [4], [])


def test_an_index_set_is_a_set() -> None:
    indices = IndexSet([5, 5, 0, 1000])
    assert (list(indices), len(indices), 5 in indices, 6 in indices, 10**9 in indices) == (
        [0, 5, 1000],
        3,
        True,
        False,
        False,
    )
    indices.discard(5)
    indices.discard(6)
    assert (list(indices), len(indices)) == ([0, 1000], 2)


def test_a_shard_is_closed_at_its_age_too(tmp_path: Path) -> None:
    now = [0.0]
    parts = {"done": IndexSet(), "failed": IndexSet(), "shard": None, "next_number": 0}
    ledger = Ledger(tmp_path, **parts, shard_s=60, clock=lambda: now[0])  # type: ignore[arg-type]
    for index, at in enumerate([0, 59, 61, 62, 130]):
        now[0] = at
        ledger.commit(Batch(records=[_record(index)]))
    ledger.close()
    assert [len(path.read_bytes().splitlines()) for path in sorted(tmp_path.glob("completions-*"))] == [2, 2, 1]
    nothing_lost_nothing_twice(tmp_path, 5)
