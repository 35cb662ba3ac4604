"""Each verdict's cause is made on the lab and gives that verdict, on those GPUs, and no other.

A server that works always has one verdict on its load (state-bound here: full at its cap), which stands beside what a
fault adds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab import host as lab_host
from lab.faults import clear_faults, set_fault
from lab.place import LabOptions
from rackhand.diagnose import diagnose
from rackhand.inventory import Job
from rackhand.workflows.history import history
from rackhand.workflows.record import Recorder
from tests.lab.load import Load
from tests.lab.verdict_bench import WINDOW_S, VerdictBench

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
EVERY = tuple(range(8))


@pytest.fixture(scope="module")
def bench(root_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerdictBench]:
    folder = tmp_path_factory.mktemp("verdicts")
    try:
        options = LabOptions(gpus=8, load_seconds=0.5, release_seconds=0.5, speed=10)
        yield VerdictBench(lab_host.up(ROOT, options, state=folder / "lab"))
    finally:
        lab_host.down(ROOT, state=folder / "lab")


def test_what_a_client_that_sends_too_little_limits(bench: VerdictBench, tmp_path: Path) -> None:
    job = job_of(tmp_path, "few")
    bench.serve()
    bench.jobs = (job,)
    bench.resume(job, 5)
    with bench.watch() as watch:
        set_fault(bench.gpu_dir, 0, "throttle", reason="power_cap", factor=1.5)
        client = [("client-bound", "now", EVERY), ("state-bound", "next", EVERY)]
        watch.await_verdicts("feeding", [("power-throttling", "now", (0,)), *client])


def test_what_a_client_limits_that_stands_still(bench: VerdictBench, tmp_path: Path) -> None:
    job = job_of(tmp_path, "short", max_tokens=40)
    bench.serve()
    bench.jobs = (job,)
    bench.resume(job, 8)
    with bench.watch() as watch, bench.stalling_generator(job):
        lag = [("client-slow", "now", EVERY), ("state-bound", "next", EVERY)]
        watch.await_verdicts("client-slow", lag, looks=1)
        bench.machine.show(iowait_pct=30, io_pressure_pct=45)
        watch.await_verdicts("disk-bound", [("disk-bound", "now", ())])


def test_what_the_host_limits(bench: VerdictBench, tmp_path: Path) -> None:
    job = job_of(tmp_path, "many")
    bench.serve()
    bench.jobs = (job,)
    bench.resume(job, 12)
    full = ("state-bound", "now", EVERY)
    with bench.watch() as watch:
        set_fault(bench.gpu_dir, None, "starved", util=60)
        bench.machine.show(busy_pct=97, cpu_pressure_pct=60)
        watch.await_verdicts("cpu", [("cpu-bound", "now", ()), full])
        clear_faults(bench.gpu_dir)
        watch.await_verdicts("busy-cpu-and-busy-gpus", [full])
        bench.machine.show()
        bench.wish("draining")
        watch.await_verdicts("paused", [("paused", "now", ())])
        bench.wish("active")
    with bench.small_disk("small", mib=600):
        bench.jobs = (job, replace(job, name="small", output="/workspace/small"))
        with bench.watch() as watch:
            watch.await_verdicts("disk-full", [("disk-full", "now", ()), full])


def test_a_whole_healthy_run_is_recorded_without_a_false_verdict(bench: VerdictBench, tmp_path: Path) -> None:
    """Idle servers, a ramp, full servers, the last requests, the end; on a machine whose CPUs are busy all the time."""
    job = job_of(tmp_path, "whole", rows=800)
    bench.serve()
    bench.jobs = (job,)
    bench.machine.show(busy_pct=97, cpu_pressure_pct=60)
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with (
        Recorder(bench.fleet, environ, say=lambda *_: None, interval_s=1.0) as recorder,
        bench.watch(recorder) as watch,
    ):
        await_true(lambda: len(watch.samples) > 10, "samples come")
        bench.resume(job, 10)
        await_true(lambda: watch.job_status() == "done", "the job ends", limit_s=300)
        time.sleep(WINDOW_S)
    happenings = history(bench.fleet, environ, "whole").events
    recorded = [event.data["verdicts"] for event in happenings if event.kind == "verdict"]
    watch.keep("healthy", [], watch.samples, every=4)
    names = [{verdict["name"] for verdict in verdicts} for verdicts in recorded]
    assert {"state-bound"} in names
    assert set().union(*names) <= {"idle", "state-bound"}
    for end in range(len(watch.samples)):
        found = {verdict.name for verdict in diagnose(watch.samples[max(0, end - 60) : end + 1]).now}
        assert found <= {"idle", "state-bound"}, (end, found)


def test_what_is_wrong_with_gpus_and_servers(bench: VerdictBench) -> None:
    bench.serve()
    bench.is_broken, faults = True, bench.gpu_dir
    with bench.watch() as watch:
        bench.load(*(Load(gpu, 12) for gpu in EVERY if gpu not in (4, 5)))
        watch.await_verdicts("full", [("idle", "now", (4, 5)), ("state-bound", "now", (0, 1, 2, 3, 6, 7))])
        set_fault(faults, 0, "throttle", reason="hw_thermal", factor=1.5)
        set_fault(faults, 1, "throttle", reason="power_brake", factor=1.5)
        set_fault(faults, 2, "slow", factor=2.5)
        set_fault(faults, 3, "hang")
        set_fault(faults, 4, "crash_under_load", after=1)
        bench.load(Load(4, 1))
        bench.machine.log("NVRM: Xid (PCI:0000:61:00): 79, pid=1, name=python, GPU has fallen off the bus.")
        found = watch.await_verdicts(
            "hardware",
            [
                ("down", "now", (4,)),
                ("hang", "now", (3,)),
                ("gpu-fault", "now", ()),
                ("idle", "now", (5,)),
                ("thermal-throttling", "now", (0,)),
                ("power-throttling", "now", (1,)),
                ("slow-gpu", "now", (2,)),
                ("state-bound", "now", (0, 1, 6, 7)),
            ],
        )
    assert "79 PCI:0000:61:00" in found.verdicts[2].evidence[0]


def test_what_limits_by_flags_and_requests(bench: VerdictBench) -> None:
    bench.serve(
        {
            0: {"max-running-requests": 4},
            1: {"max-mamba-cache-size": 100, "max-total-tokens": 12200},
            2: {"max-mamba-cache-size": 100, "max-total-tokens": 12000},
            3: {"cuda-graph-max-bs": 2},
            4: {"speculative-algorithm": "NEXTN", "max-running-requests": 8},
        },
        at_start={4: ("poor_drafts", {"accept_len": 1.05})},
    )
    bench.is_broken = True
    with bench.serve_by_hand(7), bench.watch() as watch:
        set_fault(bench.gpu_dir, 5, "slow_prefill", tok_s=8000)
        bench.load(
            Load(0, 6),
            Load(1, 24, prompt_tokens=686, tokens=10),
            Load(2, 24, prompt_tokens=86, tokens=1500),
            Load(3, 12),
            Load(4, 12),
            Load(5, 12, prompt_tokens=8000, tokens=3),
            Load(6, 8),
            Load(7, 12),
        )
        watch.await_verdicts(
            "flags",
            [
                ("retraction-storm", "now", (2,)),
                ("kv-bound", "now", (1,)),
                ("graph-bound", "now", (3,)),
                ("drafts-do-not-pay", "now", (4,)),
                ("prefill-bound", "now", (5,)),
                ("state-bound", "now", (3, 4, 6)),
                ("flag-bound", "now", (0,)),
                ("cap-bound", "now", (7,)),
            ],
        )


def job_of(folder: Path, name: str, *, rows: int = 20_000, max_tokens: int = 300) -> Job:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Tell {name} of {number}."}) + "\n" for number in range(rows)))
    uploaded, sampling = f"/workspace/{name}.jsonl", {"max_tokens": max_tokens}
    return Job(name, "pve1", f"/workspace/{name}", uploaded, prompts, sampling, quality="off")


def await_true(check: Callable[[], object], said: str, *, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
