"""The verb `report`: a history becomes a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract.watch import JobSample, Sample
from rackhand.errors import PreconditionError, RackhandError
from rackhand.inventory import Fleet, Host, Job, PlainSsh, Ssh
from rackhand.outcomes import ALL, outcomes_of
from rackhand.recording import Happening, Recording, recording_file, recordings_dir
from rackhand.workflows import report as module
from rackhand.workflows.report import report
from tests.page_recordings import gpu, progress

JOB = Job("night", "h", "/o", "/p")
FLEET = Fleet(Path("/x/mine.yaml"), (Host("h", PlainSsh(Ssh("h"))),), (JOB,))
SERVERS = {
    "http://a": {"limit": 32, "failures": 2, "empty": 1, "finish_reasons": {"stop": 5}, "output_lengths": {"8": 5}},
    "http://b": {"limit": 32, "finish_reasons": {"stop": 1, "length": 2}, "last_error": "timed out"},
}


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    found = {"XDG_STATE_HOME": str(tmp_path / "state")}
    recording = Recording(recording_file(recordings_dir(found, FLEET.path), "night"))
    run = recording.put_run("h", 1000.0, {"0": {"mem-fraction-static": "0.9", "cap": "37"}}, 32.0, 7)
    for n in range(60):
        told = progress(n, servers=SERVERS, retries=3)
        recording.put_sample("h", Sample(1000.0 + 2 * n, n, (gpu(0),), (JobSample("night", "/o", told),)), run)
    recording.put_event(Happening(1050.0, "h", None, "verdict", "client-bound: slots stand empty", {}))
    recording.put_event(Happening(1051.0, "h", 0, "state", "running -> draining", {}))
    recording.close()
    return found


def data_of(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    return found


def test_a_history_becomes_one_file(environ: Mapping[str, str], tmp_path: Path) -> None:
    path = tmp_path / "night.html"
    path.write_text("an earlier one")
    made = report(FLEET, environ, JOB, now=2000.0, output=str(path))
    assert made.exit_code == 0
    assert made.rows[0].facts == {"samples": "60", "runs": "1", "events": "1"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["night.html", "state"]
    data = data_of(path)
    assert data["host"]["tok_s"] == [670.0] * 60
    assert data["runs"][0]["flags"] == {"mem-fraction-static": "0.9"}
    assert data["runs"][0]["figures"]["sent"] == 32
    assert [(mark["kind"], mark["text"]) for mark in data["marks"]] == [
        ("diagnosis", "client-bound: slots stand empty")
    ]
    assert data["work"]["finish_reasons"] == [{"reason": "stop", "count": 6}, {"reason": "length", "count": 2}]
    assert data["work"]["lengths"] == {"most_tokens": [8], "completions": [5]}
    assert data["work"]["failures"]["failed requests"] == 2
    assert data["work"]["failures"]["requests asked again"] == 3
    assert data["work"]["errors"] == ["http://b: timed out"]
    assert data["inventory"]["host"]["name"] == "h"


def test_a_long_history_is_read_in_part(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SAMPLES", 25)
    report(FLEET, environ, JOB, now=2000.0, output=str(tmp_path / "x.html"))
    data = data_of(tmp_path / "x.html")
    assert (data["every"], data["samples"]) == (3, 20)
    assert "One in 3 samples" in (tmp_path / "x.html").read_text()


def test_since_leaves_out_what_was_before(environ: Mapping[str, str], tmp_path: Path) -> None:
    report(FLEET, environ, JOB, now=1120.0, since="60s", output=str(tmp_path / "x.html"))
    assert data_of(tmp_path / "x.html")["from"] == 1060.0


def test_nothing_recorded_is_an_error_of_one_line(environ: Mapping[str, str], tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no sample of that time"):
        report(FLEET, environ, JOB, now=9e9, since="1h", output=str(tmp_path / "x.html"))
    with pytest.raises(RackhandError, match="no history of night yet"):
        report(FLEET, {"XDG_STATE_HOME": str(tmp_path / "other")}, JOB, now=0.0)


def test_a_file_that_can_not_be_written_is_an_error_of_one_line(environ: Mapping[str, str], tmp_path: Path) -> None:
    with pytest.raises(RackhandError, match=r"x\.html: can't be written"):
        report(FLEET, environ, JOB, now=2000.0, output=str(tmp_path / "missing/x.html"))


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"servers": {"a": {"limit": 3}, "b": {"limit": 4}}}, {"sent_per_server": 3.5}),
        ({"servers": "torn", "retries": None, "message": ""}, {}),
        ({"servers": {"a": {"finish_reasons": [1], "empty": "x"}, "b": 3}}, {}),
        (
            {"rejected": 2, "servers": {"a": {"empty": 1}, "b": {"empty": 2}}},
            {"rejected": 2, "servers": {ALL: {"empty": 3}}},
        ),
    ],
)
def test_outcomes_are_added_and_what_is_torn_is_left_out(told: dict[str, Any], kept: dict[str, Any]) -> None:
    assert outcomes_of(told) == kept
