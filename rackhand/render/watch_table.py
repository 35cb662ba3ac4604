"""Samples as a table: one row a GPU, the totals, what the jobs say, sparklines. Cells are text; styles are rich's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rackhand.contract.watch import LIVE, GpuSample, Sample, State
from rackhand.diagnose import diagnose
from rackhand.inventory import Baseline
from rackhand.losses import Losses, losses_of
from rackhand.render.trends import Trends, trends_of
from rackhand.render.verdicts import job_at_work, verdict_line
from rackhand.render.words import UNKNOWN, gib, job_words, losses_words, number, of, percent
from rackhand.steady import Course, course_of, total_of
from rackhand.trail import Trail

COLUMNS = ("GPU", "state", "run/cap", "queue", "KV", "mamba", "tok/s", "acc", "util", "W", "GiB")
LEAST_WANTED = tuple(COLUMNS.index(name) for name in ("acc", "W", "util", "GiB", "mamba", "queue", "KV", "tok/s"))
"""What a narrow screen is shown without, the first of these first."""
STYLES: Mapping[State, str] = {
    "running": "green",
    "loading": "yellow",
    "draining": "yellow",
    "stalled": "bold red",
    "stopped": "dim",
    "dead": "bold red",
    "unknown": "dim",
}


@dataclass(frozen=True, slots=True)
class View:
    """One host at one moment, ready to be drawn. `rows` have a style each."""

    where: str
    time: float
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    totals: tuple[str, ...]
    lines: tuple[str, ...]
    trends: Trends


def view_of(where: str, trail: Trail, baselines: Sequence[Baseline]) -> View:
    """The newest sample of one host; the others tell its course."""
    samples = trail.samples
    sample = samples[-1]
    jobs = [f"job {job.name}: {job_words(job.progress, job.age_s, trail.eta(job.name))}" for job in sample.jobs]
    return View(
        where,
        sample.time,
        tuple((STYLES[gpu.state], gpu_cells(gpu)) for gpu in sample.gpus),
        total_cells(sample),
        (*jobs, *lines_of(sample, course_of(samples), losses_of(samples), baselines), *_verdict(samples, where)),
        trends_of(samples),
    )


def gpu_cells(gpu: GpuSample) -> tuple[str, ...]:
    util = UNKNOWN if gpu.util_pct is None else f"{gpu.util_pct:.0f}%"
    accept = number(gpu.accept_len, 2) if gpu.accept_len is not None else "-"
    memory = gib(gpu.memory_used_mib, gpu.memory_total_mib)
    power = number(gpu.power_w)
    if gpu.state in ("dead", "stopped", "loading", "unknown"):
        blank = ("",) * 6
        return (str(gpu.gpu), gpu.state, *blank, util, power, memory)
    usage = (percent(gpu.kv_usage), percent(gpu.mamba_usage), number(gpu.tok_s), accept)
    return (str(gpu.gpu), gpu.state, of(gpu.running, gpu.cap), number(gpu.queue), *usage, util, power, memory)


def total_cells(sample: Sample) -> tuple[str, ...]:
    living = sum(gpu.state in LIVE for gpu in sample.gpus)
    if not living:
        running, queue, rate = "", "", ""
    else:
        running = of(total_of(sample, "running"), total_of(sample, "cap"))
        queue, rate = number(total_of(sample, "queue")), number(total_of(sample, "tok_s"))
    powers = [gpu.power_w for gpu in sample.gpus]
    power = number(sum(p for p in powers if p is not None)) if powers and None not in powers else UNKNOWN
    return ("all", f"{living} of {len(sample.gpus)}", running, queue, "", "", rate, "", "", power, "")


def lines_of(sample: Sample, course: Course, losses: Losses, baselines: Sequence[Baseline]) -> list[str]:
    """What stands below the jobs."""
    words = losses_words(losses)
    lines = [words] if words else []
    rate = total_of(sample, "tok_s")
    facts = [f"the run is {course}"] if course != "unknown" else []
    facts += [share_words(rate, baseline) for baseline in baselines if rate is not None]
    lines += ["; ".join(facts)] if facts else []
    lines += [f"GPU {gpu.gpu}: {gpu.cause}" for gpu in sample.gpus if gpu.cause]
    lines += [f"GPU {gpu.gpu}: {_trouble(gpu.trouble)}" for gpu in sample.gpus if gpu.trouble and not gpu.cause]
    lines += smi_lines(sample)
    slowed = {name for gpu in sample.gpus for name in gpu.throttle} - {"power_cap"}
    counts = (
        (sample.unread, "log lines unread"),
        (sum(gpu.retractions for gpu in sample.gpus), "retractions"),
        (sample.drops, "samples dropped"),
        (sample.skipped_bytes, "log bytes skipped"),
    )
    lines += [", ".join(f"{count:,} {what}" for count, what in counts if count)] if any(n for n, _ in counts) else []
    lines += [f"slowed down: {', '.join(sorted(slowed))}"] if slowed else []
    return lines


def smi_lines(sample: Sample) -> list[str]:
    """What can't be read of the GPUs, and why."""
    lines = [f"GPU {gpu.gpu}: can't be read, nvidia-smi says: {gpu.fault}" for gpu in sample.gpus if gpu.fault]
    return [*lines, f"nvidia-smi: {sample.nvidia_smi}"] if sample.nvidia_smi else lines


def _verdict(samples: Sequence[Sample], where: str) -> list[str]:
    newest = samples[-1]
    line = verdict_line(diagnose(samples), gpus=len(newest.gpus), where=where, job=job_at_work(newest))
    return [line] if line else []


def share_words(tok_s: float, baseline: Baseline) -> str:
    """`37.6 % of b200 (25 % expected)`."""
    words = f"{100 * tok_s / baseline.tok_s:.1f} % of {baseline.name}"
    return words if baseline.expected_share is None else f"{words} ({100 * baseline.expected_share:g} % expected)"


def _trouble(text: str) -> str:
    """A sign found in the log, or what the server answers in place of its figures."""
    return f"it answers {text}" if text.startswith("HTTP ") else f"{text} in the log"
