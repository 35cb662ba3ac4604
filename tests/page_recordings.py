"""Runs for the tests of the page: made ones, and one recorded on the lab."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rackhand.contract import from_json
from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.inventory import Baseline
from rackhand.page import Mark, Recorded
from rackhand.recording import Run

RECORDED = Path(__file__).parent / "fixtures/run_on_the_lab.jsonl"
SECRET = "sk-not-to-be-seen"
FLAGS = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": "0.9", "api-key": SECRET}


def gpu(number: int, **fields: Any) -> GpuSample:
    fixed = {"state": "running", "running": 32, "cap": 37, "queue": 0, "tok_s": 670.0, "power_w": 500.0, **fields}
    return GpuSample(number, **fixed)


def progress(completed: int, **fields: Any) -> dict[str, Any]:
    fixed = {"pid": 7, "status": "running", "total": 1000, "completed": completed, "total_output_tokens": 0}
    return {**fixed, **fields}


def samples(
    count: int, make: Callable[[int], dict[str, Any]] = lambda _: {}, *, gpus: int = 2, step_s: float = 2.0
) -> list[Sample]:
    """`make` gives the fields of every GPU at each step, or a list of them."""
    found = []
    for n in range(count):
        fields = make(n)
        jobs = (JobSample("j", "/out", progress(10 * n, total_output_tokens=2000 * n)),)
        found.append(Sample(1000.0 + step_s * n, n, tuple(gpu(g, **fields) for g in range(gpus)), jobs))
    return found


def run(number: int, began: float, ended: float, flags: Mapping[str, Mapping[str, str]], sent: float = 32) -> Run:
    return Run(number, "host", began, ended, 0, flags, sent, number)


def recorded() -> Recorded:
    """Three runs of the demo on the lab, every fourth second; the flags are not the demo's."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    found = [from_json(Sample, line) for line in lines]
    job = [(s.time, p["pid"]) for s in found for j in s.jobs if (p := j.progress) and p["status"] == "running"]
    pids = list(dict.fromkeys(pid for _, pid in job))
    times = [[time for time, which in job if which == pid] for pid in pids]
    flags = {str(gpu): FLAGS for gpu in range(8)}
    runs = [
        run(number, min(its), max(its), flags, sent)
        for number, its, sent in zip((1, 2, 3), times, (32, 64, 74), strict=True)
    ]
    return Recorded(
        job="expansion",
        where="lab/ct200",
        samples=found,
        made=found[-1].time + 60,
        runs=runs,
        marks=(Mark(times[0][0] + 20, "diagnosis", "client-bound: <8 of 37> slots & more stand empty on GPU 0-7"),),
        inventory={"host": {"name": "lab", "env": {"HF_TOKEN": "***"}}},
        baselines=(Baseline("b200", 25000, 0.25),),
    )
