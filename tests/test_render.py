from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.errors import UnreachableError
from rackhand.eta import Eta
from rackhand.inventory import Baseline, Host, ProxmoxLxc, Ssh
from rackhand.render.screen import JsonScreen
from rackhand.render.text import TextScreen
from rackhand.render.words import duration, job_words, plain
from rackhand.report import Comparison, Outcome, Report, Row

HOST = Host("pve1", ProxmoxLxc(Ssh("root@pve1"), 200))
B200 = Baseline("b200", 25_000, 0.25)
GPU = GpuSample(
    gpu=0, state="running", running=64, cap=72, queue=0, kv_usage=0.4249, mamba_usage=0.59, tok_s=1175.2,
    tok_s_source="counter", util_pct=100.0, power_w=587.3, memory_used_mib=90112, memory_total_mib=97887,
)  # fmt: skip
PROGRESS = {
    "total": 653_929, "completed": 291, "completed_before": 747, "failed": 2, "rate_per_sec": 1.7,
    "eta_hours": 106.92, "tokens_per_s": 3900.0, "status": "running",
}  # fmt: skip
SAMPLE = Sample(
    time=1_795_961_684.0,
    gpus=tuple(replace(GPU, gpu=number) for number in range(8)),
    jobs=(JobSample("expansion", "/workspace/expansion_completions", PROGRESS, 3.0),),
)
UNKNOWN = Sample(time=1_795_961_684.0, gpus=(GpuSample(0, state="running"), GpuSample(1, state="dead")))
REPORT = Report(
    "deploy",
    (
        Row(
            "pve1/ct200",
            (
                Outcome("write env.sh", "done", "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"),
                Outcome("serve-gpu0.sh", "unchanged"),
            ),
            {"CUDA_HOME": "/opt/cuda", "library paths": "9"},
        ),
        Row("pve2/ct201", error=UnreachableError("no connection", where="pve2", hint="is it up?", detail="errno 113")),
    ),
)  # fmt: skip


def shown(*samples: Sample, width: int | None = None, baselines: tuple[Baseline, ...] = ()) -> str:
    out = io.StringIO()
    with TextScreen(out, baselines=baselines, width=width) as screen:
        for sample in samples:
            screen.show(HOST, sample)
    return out.getvalue()


def test_a_sample_is_a_row_a_gpu_with_totals_job_and_the_share_of_the_baseline() -> None:
    text = shown(SAMPLE, baselines=(B200,))
    assert re.search(r"^7 +running +64/72 +0 +42% +59% +1,175 +- +100% +587 +88.0/95.6 *$", text, re.MULTILINE)
    assert re.search(r"^all +8 of 8 +512/576 +0 +9,402 +4,698 *$", text, re.MULTILINE)
    assert "job expansion: running: 1,038 of 653,929 done (0.2 %), 1.7/s, 3,900 tok/s at the client" in text
    assert "2 failed, ETA unknown (731 more must finish)" in text
    assert "37.6 % of b200 (25 % expected)" in text


def test_eighty_columns_hold_the_whole_table() -> None:
    text = shown(SAMPLE, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "88.0/95.6" in text
    assert "…" not in text


def test_what_can_not_be_read_is_unknown_and_never_zero() -> None:
    lines = shown(UNKNOWN).splitlines()
    assert lines[2].split() == ["0", "running", "?/?", "?", "?", "?", "?", "-", "?", "?", "?/?"]
    assert lines[3].split() == ["1", "dead", "?", "?", "?/?"]
    assert lines[4].split() == ["all", "1", "of", "2", "?/?", "?", "?", "?"]


def test_the_course_and_the_counts_stand_below_the_table() -> None:
    last = replace(SAMPLE, time=SAMPLE.time + 40, unread=3, drops=2)
    run = [replace(SAMPLE, time=SAMPLE.time + 6 * n) for n in range(6)]
    text = shown(*run, last)
    assert "the run is steady" in text
    assert "3 log lines unread, 2 samples dropped" in text


def test_trouble_in_a_log_and_throttling_are_said() -> None:
    sample = replace(SAMPLE, gpus=(replace(GPU, trouble="cuda_oom", throttle=("thermal", "power_cap")),))
    text = shown(sample)
    assert "GPU 0: cuda_oom in the log" in text
    assert "slowed down: thermal\n" in text


def test_off_a_terminal_no_line_has_an_escape_and_none_is_cut() -> None:
    out = io.StringIO()
    screen = TextScreen(out)
    screen.say("pve1/ct200", "x" * 700)
    screen.report(REPORT)
    assert "\x1b" not in out.getvalue()
    assert "pve1/ct200: " + "x" * 700 + "\n" in out.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("1", False)])
def test_colour_is_for_terminals_and_obeys_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str | None, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    out = Terminal()
    with TextScreen(out) as screen:
        screen.say("a", "b")
    assert ("\x1b[36m" in out.getvalue()) == coloured


def test_on_a_terminal_samples_are_drawn_over_each_other_and_the_cursor_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with TextScreen(out) as screen:
        screen.show(HOST, SAMPLE)
        screen.show(HOST, replace(SAMPLE, time=SAMPLE.time + 2))
        screen.say("pve1", "the road broke")
    text = out.getvalue()
    assert "\x1b[1A" in text
    assert "the road broke" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_control_characters_from_afar_do_not_reach_the_terminal() -> None:
    out = io.StringIO()
    TextScreen(out).say("pve1", "\x1b]0;title\x07 \x9b31m")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out.getvalue())
    assert plain("a\tb\nc") == "a\tb\nc"


def test_failures_and_diffs_stand_out_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    TextScreen(out, verbose=True, width=100).report(REPORT)
    assert "\x1b[31m    -x\x1b[0m" in out.getvalue()
    assert "\x1b[1;31mpve2/ct201: FAILED: " in out.getvalue()


def json_lines(use: str) -> list[dict[str, object]]:
    out = io.StringIO()
    with JsonScreen(out, baselines=(B200,)) as screen:
        screen.say("pve1", "loading")
        screen.show(HOST, SAMPLE)
        screen.show(HOST, UNKNOWN)
        screen.report(REPORT)
        screen.compare(Comparison("c", ("before",), (("tok/s", ("1",)),)))
    return [event for line in out.getvalue().splitlines() if (event := json.loads(line))["event"] == use]


def test_json_is_one_object_a_line_with_totals_and_shares() -> None:
    first, second = json_lines("sample")
    assert first["where"] == "pve1/ct200"
    assert first["total"] == {"running": 512.0, "cap": 576.0, "queue": 0.0, "tok_s": pytest.approx(9401.6)}
    assert first["baselines"] == {"b200": {"share": 0.3761, "expected": 0.25}}
    assert len(first["gpus"]) == 8  # type: ignore[arg-type]
    assert second["total"] == {"running": None, "cap": None, "queue": None, "tok_s": None}
    assert second["baselines"] == {"b200": {"share": None, "expected": 0.25}}


@pytest.mark.parametrize("event", ["progress", "report", "comparison"])
def test_json_has_an_event_for_everything(event: str) -> None:
    assert len(json_lines(event)) == 1


LATE = {"status": "running", "completed": True, "total": None}
PAUSED = {"status": "paused", "completed": 1, "total": 4, "failed": 0, "rate_per_sec": 2, "message": "disk\x1b full"}
OVER = {"status": "stopped", "completed": 1, "total": 4, "failed": 0, "rate_per_sec": 2, "tokens_per_s": 300}


@pytest.mark.parametrize(
    ("progress", "age_s", "words"),
    [
        (None, None, "not started, or its progress.json can't be read"),
        ({}, 1, "?: ? of ? done, ?/s, ? failed"),
        (LATE, 90, "running: ? of ? done, ?/s, ? failed, ETA unknown, last written 90 s ago"),
        (PAUSED, 900, "paused: 1 of 4 done (25.0 %), 2.0/s, 0 failed, disk\ufffd full"),
        ({"status": "starting", "pid": 7}, None, "starting (pid 7)"),
        ({**OVER, "status": "killed", "message": "why"}, 2, "killed: 1 of 4 done (25.0 %), 0 failed, why"),
        (
            {**OVER, "bad_lines": 7, "bad_line_numbers": [3, 17, 18, 20, 21, 22]},
            1,
            "stopped: 1 of 4 done (25.0 %), 0 failed, 7 lines could not be read (lines 3, 17, 18, 20, 21 ...)",
        ),
        (
            {**OVER, "bad_lines": 1, "bad_line_numbers": "x"},
            1,
            "stopped: 1 of 4 done (25.0 %), 0 failed, 1 line could not be read",
        ),
        (OVER, 900, "stopped: 1 of 4 done (25.0 %), 0 failed"),
    ],
)
def test_a_jobs_line_says_what_progress_says_and_no_more(
    progress: dict[str, object] | None, age_s: float | None, words: str
) -> None:
    assert job_words(progress, age_s, Eta()) == words


@pytest.mark.parametrize(
    ("hours", "words"), [(None, "unknown"), (0.01, "36 s"), (0.5, "30 min"), (62.0, "62.0 h"), (2000, "2,000.0 h")]
)
def test_durations_have_the_unit_that_fits(hours: float | None, words: str) -> None:
    assert duration(hours) == words


def test_sparklines_give_way_on_a_terminal_that_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for height, drawn in (("40", True), ("14", False)):
        monkeypatch.setenv("LINES", height)
        out = Terminal()
        with TextScreen(out) as screen:
            screen.show(HOST, SAMPLE)
        assert ("KV 0-1" in out.getvalue()) == drawn


@pytest.mark.parametrize(("encoding", "block"), [("utf-8", "█"), ("latin-1", "#")])
def test_sparklines_stand_beside_the_numbers_on_a_wide_screen_in_what_it_can_show(
    monkeypatch: pytest.MonkeyPatch, encoding: str, block: str
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    TextScreen(out).show(HOST, SAMPLE)
    out.seek(0)
    lines = out.read().splitlines()
    assert re.search(r" 0-1,175 +KV 0-1 +mamba 0-1 *$", lines[1])
    assert lines[2].count(block) == 1
    assert "sparklines: tok/s, KV, mamba, last 60 s" in lines[0]
