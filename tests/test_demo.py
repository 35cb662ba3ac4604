"""The demo's pure parts: prompts, steadiness, the ledger's check, the table and its bars."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from demo.figures import PHASES, Measured, compare
from demo.ledger import check_ledger
from demo.prompts import rows, write_prompts
from demo.settled import fullest, has_settled
from rackhand.contract.watch import GpuSample, Sample
from rackhand.diagnose import Verdict


def test_prompts_are_the_same_every_time_and_have_three_shapes(tmp_path: Path) -> None:
    write_prompts(tmp_path / "one.jsonl", 30)
    write_prompts(tmp_path / "two.jsonl", 30)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert {tuple(row)[1] for row in rows(30)} == {"prompt", "messages", "conversations"}
    assert len({row["id"] for row in rows(30)}) == 30


def samples(running: list[int], tok_s: list[float], *, unread: bool = False) -> list[Sample]:
    """One sample a second of two GPUs, the second of which can't be read if `unread`."""
    return [
        Sample(
            float(at),
            gpus=(
                GpuSample(0, "running", running=now, cap=37, tok_s=rate),
                GpuSample(1, "running", running=None if unread else now, cap=37, tok_s=rate),
            ),
        )
        for at, (now, rate) in enumerate(zip(running, tok_s, strict=True))
    ]


@pytest.mark.parametrize(
    ("running", "tok_s", "settled"),
    [
        ([32] * 20, [670.0] * 20, True),
        ([32] * 20, [300.0 + 20 * n for n in range(20)], False),
        ([32] * 14 + [20] + [32] * 5, [670.0] * 20, False),
        ([32] * 5, [670.0] * 5, False),
        ([0] * 20, [0.0] * 20, False),
        ([16] * 20, [400.0] * 20, False),
    ],
    ids=["full and level", "climbing", "a gap", "too short", "idle", "half full"],
)
def test_a_phase_has_settled_when_it_is_full_and_level_for_the_whole_window(
    running: list[int], tok_s: list[float], settled: bool
) -> None:
    assert has_settled(samples(running, tok_s), asked=32) is settled


def test_auto_asks_for_what_each_server_can_hold() -> None:
    assert has_settled(samples([37] * 20, [670.0] * 20), asked=None)
    assert not has_settled(samples([32] * 20, [670.0] * 20), asked=None)


def test_a_gpu_that_cannot_be_read_is_not_full() -> None:
    assert not has_settled(samples([32] * 20, [670.0] * 20, unread=True), asked=32)


def test_what_never_settles_is_measured_where_it_was_fullest() -> None:
    ramp = samples([n if n < 30 else 60 - n for n in range(60)], [100.0] * 60)
    window = fullest(ramp, window_s=10)
    assert (window[0].time, window[-1].time) == (25, 35)
    assert fullest(ramp[:5], window_s=10) == ramp[:5]


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


def verdict(stage: Literal["now", "next"], name: str, words: str) -> Verdict:
    return Verdict(name, stage, tuple(range(8)), "it says", (words,), (), "high", ())


def measured(number: int, **changes: Any) -> Measured:
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
        settled=True,
        verdicts=tuple(verdict(stage, name, words) for stage, name, words in PHASES[number].diagnosis),
    )
    return replace(base, **changes)


def test_the_bars_are_ten_percent_of_the_report() -> None:
    assert measured(0).missed() == []
    assert measured(0, running_per_gpu=35.1, tok_s_total=5890).missed() == []
    (line,) = measured(0, running_per_gpu=35.3).missed()
    assert line == "before: running per GPU 35 is not within 10% of the report's 32"
    assert len(measured(1).missed()) == 3
    assert measured(2, running_per_gpu=1).missed() == []


def test_another_diagnosis_than_the_reports_misses_the_bar() -> None:
    client, state = measured(0).verdicts
    assert measured(0).told()[1] == "before: NEXT state-bound: it says; cap 37 = 187 state slots // 5"
    for other in ((client,), (state, client), (client, state, state), (client, replace(state, evidence=("cap 37",)))):
        (line,) = measured(0, verdicts=other).missed()
        assert line.startswith(
            "before: the diagnosis isn't client-bound (now: 5 slots per GPU stand empty), state-bound"
        )


def test_the_table_has_the_report_beside_every_figure_that_it_gives() -> None:
    table = compare([measured(0), measured(2)], baseline_tok_s=25_000, mean_tokens=300)
    cells = dict(table.rows)
    assert table.phases == ("before", "auto")
    assert cells["tok/s in all"] == ("5,357 (5,360)", "5,357")
    assert cells["running / cap per GPU"] == ("32.0 / 37 (32 / 37)", "32.0 / 37")
    assert cells["share of the B200 machine"] == ("21.4 % (15.6 %)", "21.4 %")
    assert cells["mamba usage"] == ("unknown (0.61)", "unknown")
    assert any("300 tokens" in note for note in table.notes)
