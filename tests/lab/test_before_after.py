"""A job at work, its servers restarted with more slots: what restart-servers tells of it. Takes minutes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import host as lab_host
from lab.place import LabOptions
from rackhand.inventory import parse_overrides
from rackhand.workflows.compare import compare_runs
from rackhand.workflows.deploy import Choice, deploy
from rackhand.workflows.servers import Restart, restart_servers
from tests.lab.test_job import ROOT, Bench, what

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]
BIG = ("mamba-scheduler-strategy=no_buffer", "mem-fraction-static=0.9", "max-running-requests=128")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = LabOptions(gpus=2, load_seconds=0.5, release_seconds=0.5, speed=3)
    try:
        bench = Bench(lab_host.up(ROOT, options, state=tmp_path / "lab"), tmp_path)
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(50_000)))
        bench.job = replace(bench.job, sampling={"max_tokens": 200}, concurrency="auto")
        assert deploy(bench.fleet, (bench.host,), say=lambda *_: None, choice=Choice()).exit_code == 0
        yield bench
    finally:
        lab_host.down(ROOT, state=tmp_path / "lab")


def test_a_restart_under_load_tells_that_twice_as_many_run_and_the_history_says_the_same(bench: Bench) -> None:
    assert bench.restart().exit_code == 0
    what(bench.resume())
    wish = Restart(overrides=parse_overrides(BIG), compare=True)
    report = restart_servers(bench.fleet, (bench.host,), wish, say=lambda *_: None)
    facts = report.rows[0].facts
    assert report.exit_code == 0
    assert "compared" not in facts, facts["compared"]
    before, after = facts["running per GPU"].partition(",")[0].split(" -> ")
    assert 35 <= float(before) <= 37
    assert 68 <= float(after) <= 72
    assert facts["tok/s per GPU"].endswith("more")
    table = compare_runs(bench.fleet, {"XDG_STATE_HOME": str(bench.place.state.parent / "state")}, "j", ())
    assert dict(table.rows)["running per GPU"][:2] == (before, after)
    bench.stop(servers=True)
