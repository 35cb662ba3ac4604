"""Samples → what happened: servers that went and came, generators that started and ended, trouble lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rackhand.arguments import gpu_ranges
from rackhand.contract.job import OVER
from rackhand.contract.watch import LIVE, GpuSample, Sample
from rackhand.page.recorded import Mark

TOGETHER_S = 60.0
"""Marks of one kind and word, not further apart from the one before, are told as one."""
GONE = ("stopped", "dead", "loading")
ENDED = (*OVER, "paused", "suspended")

Change = tuple[float, str, str, int]
"""Time, kind, words, GPU; -1: the whole host."""


def marks_of(samples: Sequence[Sample]) -> list[Mark]:
    """In order of time. A server that ended and came back is two marks: `servers stopped`, `servers up`."""
    changes = sorted([*_server_changes(samples), *job_changes(samples)], key=lambda change: change[0])
    groups: list[list[Change]] = []
    for change in changes:
        last = next((group for group in reversed(groups) if group[-1][1:3] == change[1:3]), None)
        if last is not None and change[3] >= 0 and change[0] - last[-1][0] <= TOGETHER_S:
            last.append(change)
        else:
            groups.append([change])
    return [Mark(group[0][0], group[0][1], _told(group)) for group in groups]


def _told(group: Sequence[Change]) -> str:
    gpus = sorted({gpu for *_, gpu in group if gpu >= 0})
    return f"{group[0][2]}: GPU {gpu_ranges(gpus)}" if gpus else group[0][2]


def _server_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    was_live: dict[int, GpuSample] = {}
    gone: set[int] = set()
    trouble: dict[int, str] = {}
    for sample in samples:
        for gpu in sample.gpus:
            if gpu.trouble and gpu.trouble != trouble.get(gpu.gpu, ""):
                yield sample.time, "trouble", gpu.trouble, gpu.gpu
            if gpu.trouble or not sample.rebuilt:
                trouble[gpu.gpu] = gpu.trouble
            before = was_live.get(gpu.gpu)
            if gpu.state in LIVE:
                if gpu.gpu in gone and gpu.state == "running":
                    gone.discard(gpu.gpu)
                    yield sample.time, "restart", _came(before, gpu), gpu.gpu
                if gpu.gpu not in gone:
                    was_live[gpu.gpu] = gpu
            elif gpu.state in GONE and gpu.gpu not in gone:
                gone.add(gpu.gpu)
                if before is not None:
                    died = gpu.state == "dead"
                    what = f"died ({gpu.cause})" if died and gpu.cause else "died" if died else "stopped"
                    yield sample.time, "trouble" if died else "restart", what, gpu.gpu


def _came(before: GpuSample | None, now: GpuSample) -> str:
    if before is None or before.cap is None or now.cap is None or before.cap == now.cap:
        return "up" if now.cap is None else f"up, cap {now.cap}"
    return f"up, cap {before.cap} → {now.cap}"


def job_changes(samples: Iterable[Sample]) -> Iterator[Change]:
    """A generator that started, and how it ended."""
    seen: dict[str, dict[str, Any]] = {}
    for number, sample in enumerate(sample for sample in samples if not sample.rebuilt):
        for job in sample.jobs:
            now, before = job.progress, seen.get(job.name, {})
            if now is None:
                continue
            seen[job.name] = now
            pid, status = now.get("pid"), now.get("status")
            if number == 0:
                continue
            if pid != before.get("pid") and status not in ENDED:
                yield sample.time, "job", f"{job.name}: generator started", -1
            elif status != before.get("status") and status in ENDED:
                message = now.get("message") or ""
                kind = "job" if status in ("done", "stopped") else "trouble"
                yield sample.time, kind, f"{job.name}: {status}" + (f" ({message})" if message else ""), -1
