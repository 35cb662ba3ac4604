"""Compressed shards: whatever is cut or damaged, every other frame decodes, and the next start leaves a clean file."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest
import zstandard

from remote.generator.quality import DEFAULT
from remote.output.ledger import Batch, Ledger
from remote.output.recovery import open_ledger
from remote.output.zstd_frames import Frames, observe_frames
from remote.verify import verify
from tests.remote.rig import Rig, nothing_lost_nothing_twice, records, wait_until, write_prompts

SHARD = "completions-00000.jsonl.zst"


def _record(index: int) -> tuple[int, bytes]:
    prompt = [{"role": "user", "content": f"p{index}"}]
    record = {"index": index, "messages": prompt, "completion": f"echo:p{index}" + "x" * 40}
    return index, json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _open(output: Path, said: list[str] | None = None, *, shard_bytes: int = 1 << 20, compress: bool = True) -> Ledger:
    say = (said if said is not None else []).append
    return open_ledger(output, say, shard_bytes=shard_bytes, compress=compress)


def _three_commits(output: Path) -> list[int]:
    """Where each of the three frames ends."""
    ledger = _open(output)
    ends = []
    for start in (0, 2, 4):
        ledger.commit(Batch(records=[_record(start), _record(start + 1)]))
        ends.append((output / SHARD).stat().st_size)
    ledger.close()
    return ends


def test_shards_of_frames_roll_and_the_manifest_tells_the_truth(tmp_path: Path) -> None:
    ledger = _open(tmp_path, shard_bytes=200)
    for start in range(0, 40, 4):
        ledger.commit(Batch(records=[_record(i) for i in range(start, start + 4)]))
    ledger.close_shard()
    ledger.close()
    nothing_lost_nothing_twice(tmp_path, 40)
    assert len(list(tmp_path.glob("completions-*.jsonl.zst"))) > 2
    said: list[str] = []
    assert (len(_open(tmp_path, said).done), said) == (40, [])
    assert (verify(tmp_path, DEFAULT).problems, verify(tmp_path, DEFAULT).records) == ((), 40)


def test_a_frame_is_one_commit_with_a_checksum(tmp_path: Path) -> None:
    ends = _three_commits(tmp_path)
    assert [piece.end for piece in observe_frames(tmp_path / SHARD)] == ends
    for piece in observe_frames(tmp_path / SHARD):
        parameters = zstandard.get_frame_parameters((tmp_path / SHARD).read_bytes()[piece.start :])
        assert parameters.has_checksum


def test_every_whole_frame_decodes_after_any_crash_and_the_next_start_cuts_the_rest(tmp_path: Path) -> None:
    ends = _three_commits(tmp_path)
    whole = (tmp_path / SHARD).read_bytes()
    for cut in range(ends[1], ends[2]):
        for tail in (b"", b"\0" * 30, bytes(255 - byte for byte in whole[cut:])):
            (tmp_path / SHARD).write_bytes(whole[:cut] + tail)
            said: list[str] = []
            ledger = _open(tmp_path, said)
            ledger.close()
            assert list(ledger.done) == [0, 1, 2, 3]
            assert (tmp_path / SHARD).read_bytes() == whole[: ends[1]]
            assert (cut == ends[1] and not tail) or any("were cut" in line for line in said)
    again = _open(tmp_path)
    again.commit(Batch(records=[_record(4), _record(5)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 6)


@pytest.mark.parametrize("damage", ["flip", "zeros", "gone"])
def test_damage_inside_costs_only_its_own_frame(tmp_path: Path, damage: str) -> None:
    ends = _three_commits(tmp_path)
    data = bytearray((tmp_path / SHARD).read_bytes())
    if damage == "flip":
        data[ends[0] + 20] ^= 255
    elif damage == "zeros":
        data[ends[0] : ends[1]] = bytes(ends[1] - ends[0])
    else:
        data[ends[0] : ends[1]] = b""
    (tmp_path / SHARD).write_bytes(data)
    assert damage == "gone" or "1 lines that are no whole record" in verify(tmp_path, DEFAULT).problems[0]
    again = _open(tmp_path)
    assert list(again.done) == [0, 1, 4, 5]
    again.commit(Batch(records=[_record(2), _record(3)]))
    again.close()
    nothing_lost_nothing_twice(tmp_path, 6)


def test_a_record_that_stands_twice_is_taken_out_of_its_frame(tmp_path: Path) -> None:
    _three_commits(tmp_path)
    frames = Frames()
    with (tmp_path / SHARD).open("ab") as file:
        file.write(frames.frame(_record(1)[1] + _record(6)[1]) + frames.frame(_record(2)[1]))
    said: list[str] = []
    _open(tmp_path, said).close()
    assert "2 records that stand elsewhere too" in said[0]
    nothing_lost_nothing_twice(tmp_path, 7)


def test_compression_may_be_turned_on_and_off_between_runs(tmp_path: Path) -> None:
    for start, compress in ((0, False), (2, True), (4, False)):
        ledger = _open(tmp_path, compress=compress)
        ledger.commit(Batch(records=[_record(start), _record(start + 1)]))
        ledger.close()
    nothing_lost_nothing_twice(tmp_path, 6)
    names = sorted(path.name for path in tmp_path.glob("completions-*"))
    assert names == ["completions-00000.jsonl", "completions-00001.jsonl.zst", "completions-00002.jsonl"]


def test_a_compressed_job_survives_kills_and_takes_less_room(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, 1500, lambda i: f"prompt {i} " + "the same words again " * 20)
    dice = random.Random(5)  # noqa: S311
    with Rig(tmp_path, "--lat", "5", ports=4) as rig:
        for _ in range(3):
            process = rig.start(prompts, "--compress", "zstd", "--shard-bytes", "8000")
            goal = rig.finished() + dice.randrange(50, 300)
            wait_until(lambda goal=goal, process=process: rig.finished() >= goal or process.poll() is not None, "rows")  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert rig.generate(prompts, "--compress", "zstd", "--shard-bytes", "8000") == 0
    found = nothing_lost_nothing_twice(rig.output, 1500)
    size = sum(path.stat().st_size for path in rig.output.glob("completions-*"))
    assert size * 2 < sum(len(json.dumps(record)) for record in found)
    assert len(records(rig.output)) == 1500
