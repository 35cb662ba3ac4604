"""Screens of fewer than 80 columns: columns are left out, and no number is cut."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from rackhand.compare import compare
from rackhand.recording import Happening, Run
from rackhand.render.capacity import forecast_lines
from rackhand.render.lines import comparison_lines
from rackhand.render.text import TextScreen
from rackhand.render.verdicts import comparison_of, event_lines, run_lines
from rackhand.report import Report, Row
from rackhand.workflows.capacity import forecast_file, parse_question
from tests.test_capacity_verb import FILE, SETS
from tests.test_compare import run_of
from tests.test_render import B200, HOST, SAMPLE

WIDTHS = (40, 60, 79, 80, 120)
NUMBER = re.compile(r"\d[\d,.:/-]*\d|\d")


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def screen_of(width: int) -> tuple[io.StringIO, TextScreen]:
    out = io.StringIO()
    return out, TextScreen(out, width=width, baselines=(B200,))


@pytest.mark.parametrize("width", WIDTHS)
def test_tail_metrics_leaves_columns_out_and_cuts_no_number(width: int) -> None:
    out, screen = screen_of(width)
    busy = replace(SAMPLE, gpus=tuple(replace(gpu, tok_s=123_456.0, running=1064, cap=1072) for gpu in SAMPLE.gpus))
    with screen:
        screen.show(HOST, busy)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    header, row = lines[1].split(), lines[2].split()
    assert header[:2] == ["GPU", "state"]
    assert row[:3] == ["0", "running", "1,064/1,072"]
    assert "123,456" in row
    if width >= 80:
        assert header[:11] == ["GPU", "state", "run/cap", "queue", "KV", "mamba", "tok/s", "acc", "util", "W", "GiB"]
    whole_out, whole = screen_of(1000)
    with whole:
        whole.show(HOST, busy)
    assert numbers(out.getvalue()) <= numbers(whole_out.getvalue())


@pytest.mark.parametrize("width", WIDTHS)
def test_status_and_history_break_lines_between_words(width: int) -> None:
    facts = {f"GPU {n}": f"running 1,064/1,072, queue 17, 88.0/95.6 GiB, port 3000{n}, pid 123{n}" for n in range(8)}
    facts["job expansion"] = "running, 1038 of 653929 done, 1.7/s, 106.9 h left, 512 in flight"
    runs = [Run(n, "pve1/ct200", 1e9 + n, 1e9 + 5000, 1234, {"0": {"a": "0.85"}}, 32.0 + n, 7) for n in (1, 2)]
    events = [Happening(1e9, "pve1/ct200", gpu, "state", "running -> dead", {}) for gpu in range(3)]
    told = [*run_lines(runs), *(line for lines in event_lines(events) for line in lines)]

    def shown(columns: int) -> str:
        out, screen = screen_of(columns)
        with screen:
            screen.report(Report("status", (Row("pve1/ct200", (), facts),)))
            screen.lines("run", {}, told)
        return out.getvalue()

    assert max(map(len, shown(width).splitlines())) <= width
    assert numbers(shown(width)) == numbers(shown(1000))


@pytest.mark.parametrize("width", WIDTHS)
def test_compare_leaves_the_last_columns_out(width: int) -> None:
    found = compare(run_of(running=32, tok_s=670), run_of(running=64, tok_s=1175))
    table = comparison_of(found, ("run 1", "run 2"), baselines=[B200])
    lines = comparison_lines(table, width)
    head, grid = lines[2], lines[3:-2]
    assert head.split()[:4] == ["run", "1", "run", "2"]
    assert max(len(line) for line in lines[1 : -len(table.notes)]) <= width
    whole = comparison_lines(table)
    for short, long in zip(lines[2:], whole[2:], strict=True):
        assert long.startswith(short) or short in table.notes or set(short) == {"-"}
    assert grid


@pytest.mark.parametrize("width", WIDTHS)
def test_capacity_fits_and_shows_what_runs(width: int) -> None:
    what_if = ["mem-fraction-static=0.85,0.3", "mamba-ssm-dtype=float32,bfloat16"]
    forecast = forecast_file(parse_question(sets=SETS, what_if=what_if, **FILE))
    lines, whole = forecast_lines(forecast, width), forecast_lines(forecast)
    assert max(map(len, lines)) <= width
    assert numbers(" ".join(lines)) <= numbers(" ".join(whole))
    shown = " ".join(lines)
    for trial in forecast.trials:
        if trial.outlook is not None:
            assert f"{trial.outlook.capacity.max_running_requests:,}" in shown
