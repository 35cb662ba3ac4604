from __future__ import annotations

import itertools

from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.eta import Eta
from rackhand.trail import KEPT_S, Trail


def at(time: float, completed: int | None = None, *, pid: int = 7, status: str = "running") -> Sample:
    progress = {"status": status, "total": 100_000, "completed": completed, "in_flight": 64, "pid": pid}
    job = JobSample("expansion", "/o", progress if completed is not None else None, 1.0)
    return Sample(time, gpus=(GpuSample(0, state="running", running=64, queue=0, tok_s=1000.0),), jobs=(job,))


def trail_of(*samples: Sample) -> Trail:
    trail = Trail()
    for sample in samples:
        trail.take(sample)
    return trail


def test_the_last_minute_is_kept_whole_and_older_samples_thinned() -> None:
    times = [sample.time for sample in trail_of(*(at(1000.0 + n) for n in range(1000))).samples]
    assert times[-1] == 1999
    assert times[0] >= 1999 - KEPT_S
    assert [time for time in times if time >= 1939] == [1939.0 + n for n in range(61)]
    assert {after - before for before, after in itertools.pairwise(times) if after < 1939} == {5.0}


def test_what_was_seen_already_is_not_taken_again_and_a_clock_set_back_begins_anew() -> None:
    trail = trail_of(at(1000.0), at(1002.0))
    assert not trail.take(at(1001.0))
    assert trail.take(at(100.0))
    assert [sample.time for sample in trail.samples] == [100.0]


def test_a_job_that_runs_has_an_eta_and_another_generator_begins_anew() -> None:
    run = [at(1000.0 + 2 * n, 20 * n) for n in range(100)]
    eta = trail_of(*run).eta("expansion")
    assert eta.eta_s is not None
    assert 9_700 < eta.eta_s < 10_000
    assert trail_of(*run, at(1200.0, 0, pid=8)).eta("expansion") == Eta(why="128 more must finish")
    assert trail_of(*run, at(1200.0, 1980, status="paused")).eta("expansion") == Eta()
    assert trail_of(*run, at(1200.0)).eta("expansion") == Eta()
    assert Trail().eta("expansion") == Eta()
