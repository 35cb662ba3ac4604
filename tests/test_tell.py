"""What the operator reads."""

from __future__ import annotations

import io
import json

import pytest

from rackhand.errors import UnreachableError
from rackhand.render.lines import comparison_lines, report_lines
from rackhand.report import Comparison, Outcome, Report, Row
from rackhand.tell import progress, tell

REPORT = Report(
    "deploy",
    (
        Row(
            "pve1/ct200",
            (
                Outcome("send 3 files", "planned", "--- a\n+++ b\n"),
                Outcome("start the container", "done", "UPID:1"),
                Outcome("write /etc/x", "failed", "disk full"),
            ),
            {"CUDA_HOME": "/opt/cuda", "library paths": "9"},
        ),
        Row(
            "pve2/ct201", error=UnreachableError("no answer", where="pve2/ct201", hint="is it on?", detail="timed out")
        ),
        Row("pve3/ct202", interrupted=True),
    ),
)


def test_plans_and_failures_show_their_detail_and_the_rest_with_verbose_only() -> None:
    quiet = report_lines(REPORT, verbose=False)
    assert quiet == [
        "pve1/ct200: would: send 3 files",
        "    --- a",
        "    +++ b",
        "pve1/ct200: start the container",
        "pve1/ct200: FAILED: write /etc/x",
        "    disk full",
        "pve1/ct200: CUDA_HOME /opt/cuda, library paths 9",
        "pve2/ct201: FAILED: no answer; is it on?",
        "pve3/ct202: interrupted; run it again to go on",
        "deploy: 1 of 3 hosts all right",
    ]
    assert set(report_lines(REPORT, verbose=True)) - set(quiet) == {"    UPID:1", "    timed out"}


def test_facts_that_do_not_fit_on_a_line_stand_in_two_columns() -> None:
    facts = {f"GPU {number}": "running 32/37, queue 0" for number in (0, 1, 10)}
    assert report_lines(Report("status", (Row("pve1/ct200", facts=facts),)), verbose=False) == [
        "pve1/ct200: GPU 0   running 32/37, queue 0",
        "pve1/ct200: GPU 1   running 32/37, queue 0",
        "pve1/ct200: GPU 10  running 32/37, queue 0",
    ]


def test_json_is_one_object_and_the_exit_code_is_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(REPORT, as_json=True, verbose=False) == REPORT.exit_code == 3
    assert json.loads(capsys.readouterr().out)["exit_code"] == 3


def test_progress_is_a_line_with_its_place() -> None:
    out = io.StringIO()
    progress(out)("pve1/ct200", "37 → 72")
    assert out.getvalue() == "pve1/ct200: 37 → 72\n"


def test_a_comparison_is_in_columns_with_its_notes() -> None:
    table = Comparison("8 GPUs", ("before", "after"), (("tok/s", ("5,357 (5,360)", "9,436")),), ("a note",))
    assert comparison_lines(table) == [
        "8 GPUs",
        "-" * 27,
        "       before         after",
        "tok/s  5,357 (5,360)  9,436",
        "-" * 27,
        "a note",
    ]
