"""What is kept so that a resume is quick: bits of `.done_indices`, offsets of prompts. Both may be missing or lie."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.output.done_bits import BITS_FILE, count_done, observe_bits, put_bits
from remote.output.done_file import DONE_FILE, Listed, done_lines, observe_done
from remote.output.index_set import IndexSet
from remote.output.job_file import observe_prompts_digest
from remote.prompts.offsets import OFFSETS_FILE, PromptOffsets, RowSkipper, observe_known
from remote.prompts.rows import PromptReader, RowCount


@given(st.sets(st.integers(0, 300)), st.integers(0, 320))
def test_the_next_index_that_is_missing_is_the_first_one_not_in_the_set(indices: set[int], start: int) -> None:
    found = IndexSet()
    assert found.update(indices) == len(indices)
    wanted = next(index for index in range(start, 1000) if index not in indices)
    assert found.next_missing(start) == wanted
    again = IndexSet.from_bits(found.to_bits())
    assert (len(again), list(again)) == (len(indices), sorted(indices))


def _keep_bits(output: Path) -> int:
    lines = done_lines([5, 0, 3, 70])
    (output / DONE_FILE).write_bytes(lines + b"9\n")
    put_bits(output, IndexSet([0, 3, 5, 70]), len(lines))
    return len(lines)


def test_the_bits_stand_for_the_head_of_the_list_they_were_made_of(tmp_path: Path) -> None:
    size = _keep_bits(tmp_path)
    found = observe_bits(tmp_path, size)
    assert found is not None
    assert list(found) == [0, 3, 5, 70]


def test_finished_prompts_are_counted_by_the_bits_and_by_the_lines_that_follow_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, read_from = _keep_bits(tmp_path), []

    def observe(path: Path, *, start: int, known: IndexSet | None) -> Listed:
        read_from.append(start)
        return observe_done(path, start=start, known=known)

    monkeypatch.setattr("remote.output.done_bits.observe_done", observe)
    with (tmp_path / DONE_FILE).open("ab") as file:
        file.write(b"70\n11\n12")
    assert (count_done(tmp_path), read_from) == (6, [size])


@pytest.mark.parametrize("broken", ["bits", "list", "shorter list", "no bits", "another head", "no list", "text"])
def test_bits_that_do_not_fit_the_list_are_not_believed(tmp_path: Path, broken: str) -> None:
    size = _keep_bits(tmp_path)
    bits, listed = tmp_path / BITS_FILE, tmp_path / DONE_FILE
    data = bits.read_bytes()
    if broken == "bits":
        bits.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif broken == "list":
        listed.write_bytes(listed.read_bytes().replace(b"3", b"4"))
    elif broken == "shorter list":
        listed.write_bytes(listed.read_bytes()[:4])
    elif broken == "no bits":
        bits.unlink()
    elif broken == "no list":
        listed.unlink()
    elif broken == "text":
        bits.write_bytes(b"[]\n")
    assert observe_bits(tmp_path, size + (broken == "another head")) is None
    assert count_done(tmp_path) == len(observe_done(listed).indices)


ROWS = [{"id": i, "prompt": f"prompt {i} " + "x" * (i % 50)} for i in range(3000)]
TEXT = b"".join(b"\n" if i % 100 == 99 else json.dumps(row).encode() + b"\n" for i, row in enumerate(ROWS))


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_reader_that_skips_gives_the_wanted_rows_with_their_own_indices(
    tmp_path: Path, name: str, *, sampled: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT) if name.endswith("gz") else TEXT)
    offsets = PromptOffsets()
    if sampled and not name.endswith("gz"):
        for row in range(200, 3000, 200):
            offsets.note(row, len(b"".join(TEXT.splitlines(keepends=True)[:row])))
    done = IndexSet(set(range(3000)) - {0, 7, 701, 702, 998, 1600, 2999, 2998})
    skip = RowSkipper(done.next_missing, offsets)
    reader = PromptReader(path, wanted=lambda index: index not in done, skip=skip)
    rows = [row for _ in range(9) for row in reader.read(rows=1, size=1000)]
    assert [(row.index, row.id) for row in rows] == [(i, i) for i in (0, 7, 701, 702, 998, 1600, 2998)]  # type: ignore[union-attr]
    assert reader.ended
    reader.close()


def test_rows_are_counted_once_and_what_is_kept_is_for_these_prompts_and_this_shard_only(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(TEXT)
    digest = observe_prompts_digest(path)
    known = observe_known(path, tmp_path, digest, (1, 3))
    assert known.count is None
    assert known.count_rows() == RowCount(2970, 990)
    path.unlink()
    assert observe_known(path, tmp_path, digest, (1, 3)).count_rows() == RowCount(2970, 990)
    assert observe_known(path, tmp_path, digest, (0, 3)).count is None
    path.write_bytes(TEXT + b"{}\n")
    assert observe_known(path, tmp_path, observe_prompts_digest(path), (1, 3)).count is None
    kept = tmp_path / OFFSETS_FILE
    for data in (kept.read_bytes()[:-1], b"{}\n", b"\xff", b""):
        kept.write_bytes(data)
        assert observe_known(path, tmp_path, digest, (1, 3)).count is None


def test_the_samples_of_a_big_file_are_where_rows_begin(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with path.open("wb") as file:
        for row in range(90_000):
            file.write(b'{"prompt": "%d %s"}\n' % (row, b"x" * (row % 150)))
    known = observe_known(path, tmp_path, observe_prompts_digest(path), (0, 1))
    known.count_rows()
    offsets = observe_known(path, tmp_path, known.digest, (0, 1)).offsets
    assert len(offsets.rows) > 1
    with path.open("rb") as file:
        for row, offset in zip(offsets.rows, offsets.offsets, strict=True):
            file.seek(offset)
            assert file.readline().startswith(b'{"prompt": "%d ' % row) or row == 90_000
