"""The demo's pure parts: prompts, steadiness, the ledger's check, the table and its bars."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from demo.figures import PHASES, Measured, compare
from demo.ledger import check_ledger
from demo.prompts import rows, write_prompts
from demo.steady import GpuReading, Reading, average, is_steady, window_of


def test_prompts_are_the_same_every_time_and_have_three_shapes(tmp_path: Path) -> None:
    write_prompts(tmp_path / "one.jsonl", 30)
    write_prompts(tmp_path / "two.jsonl", 30)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert {tuple(row)[1] for row in rows(30)} == {"prompt", "messages", "conversations"}
    assert len({row["id"] for row in rows(30)}) == 30


def readings(running: list[float], tok_s: list[float]) -> tuple[Reading, ...]:
    """One reading a second of two equal GPUs; 3 completions a second."""
    pairs = zip(running, tok_s, strict=True)
    return tuple(
        Reading(float(at), (GpuReading(r, t, 37, 0.1, 0.6),) * 2, completed=3 * at) for at, (r, t) in enumerate(pairs)
    )


@pytest.mark.parametrize(
    ("running", "tok_s", "steady"),
    [
        ([32.0] * 20, [670.0] * 20, True),
        ([32.0] * 20, [600.0 + 8 * n for n in range(20)], False),
        ([32.0] * 19 + [20.0], [670.0] * 20, False),
        ([32.0] * 10, [670.0] * 10, False),
        ([0.0] * 20, [0.0] * 20, False),
    ],
    ids=["steady", "climbing", "a gap", "too short", "idle"],
)
def test_steady_means_full_and_level_for_the_whole_window(
    running: list[float], tok_s: list[float], steady: bool
) -> None:
    assert is_steady(window_of(readings(running, tok_s)), wanted=32) is steady


def test_one_unknown_gpu_is_not_steady() -> None:
    known = readings([32.0] * 20, [670.0] * 20)
    holed = [replace(reading, gpus=(reading.gpus[0], GpuReading(None, None))) for reading in known]
    assert not is_steady(window_of(holed), wanted=32)
    with pytest.raises(ValueError, match="no reading holds"):
        average(holed)


def test_the_average_is_of_the_window_only() -> None:
    ramp_then_level = readings([1.0] * 10 + [32.0] * 20, [10.0] * 10 + [670.0] * 20)
    found = average(window_of(ramp_then_level))
    assert (found.running, found.tok_s, found.cap, found.completions_per_s) == (32, 670, 37, 3)
    assert found.completed == 3 * 29


def write_output(folder: Path, *, shards: list[list[int]], done: str) -> Path:
    folder.mkdir()
    for number, indices in enumerate(shards):
        lines = "".join(json.dumps({"index": index}) + "\n" for index in indices)
        (folder / f"completions-{number:05d}.jsonl").write_text(lines)
    (folder / ".done_indices").write_text(done)
    return folder


@pytest.mark.parametrize(
    ("shards", "done", "due", "lost_and_twice"),
    [
        ([[0, 2], [1]], "0\n2\n1\n", set(), ((), ())),
        ([[0, 2], [2]], "0\n2\n", set(), ((), (2,))),
        ([[0]], "0\n1\n", set(), ((1,), ())),
        ([[0]], "0\n", {0, 7}, ((7,), ())),
        ([[0]], "0\n12", set(), ((), ())),
    ],
    ids=["whole", "twice", "counted without a record", "due without a record", "a torn last line"],
)
def test_the_ledger_is_held_against_its_records(
    tmp_path: Path, shards: list[list[int]], done: str, due: set[int], lost_and_twice: tuple[tuple[int, ...], ...]
) -> None:
    found = check_ledger(write_output(tmp_path / "out", shards=shards, done=done), due=due)
    assert (found.lost, found.twice) == lost_and_twice


def measured(number: int, **changes: float) -> Measured:
    base = Measured(
        PHASES[number],
        cap_per_gpu=37,
        running_per_gpu=32,
        tok_s_per_gpu=669.7,
        tok_s_total=5357.4,
        completions_per_s=17.9,
        kv_usage=0.03,
        mamba_usage=None,
        completed=700,
        steady=True,
    )
    return replace(base, **changes)


def test_the_bars_are_ten_percent_of_the_report() -> None:
    assert measured(0).missed() == []
    assert measured(0, running_per_gpu=35.1, tok_s_total=5890).missed() == []
    (line,) = measured(0, running_per_gpu=35.3).missed()
    assert line == "before: running per GPU 35 is not within 10% of the report's 32"
    assert len(measured(1).missed()) == 3
    assert measured(2, running_per_gpu=1).missed() == []


def test_the_table_has_the_report_beside_every_figure_that_it_gives() -> None:
    table = compare([measured(0), measured(2)], baseline_tok_s=25_000, mean_tokens=300)
    cells = dict(table.rows)
    assert table.phases == ("before", "auto")
    assert cells["tok/s in all"] == ("5,357 (5,360)", "5,357")
    assert cells["running / cap per GPU"] == ("32.0 / 37 (32 / 37)", "32.0 / 37")
    assert cells["share of the B200 machine"] == ("21.4 % (15.6 %)", "21.4 %")
    assert cells["mamba usage"] == ("unknown (0.61)", "unknown")
    assert any("300 tokens" in note for note in table.notes)
