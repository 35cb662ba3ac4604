"""Samples → the phases of a run and what each achieved. Pure.

A phase is a stretch with a generator at work. Its figures are means over its settled samples: those in which as many
requests ran as in its busiest tenth, within SETTLED. So neither ramp nor drain counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any

from rackhand.contract.watch import GpuSample, Sample
from rackhand.inventory import Baseline
from rackhand.page.masked import masked
from rackhand.page.run import Stretch
from rackhand.page.series import LIVE
from rackhand.steady import total_of

SETTLED = 0.10
LEAST_SAMPLES = 3

FIGURES: Mapping[str, tuple[str, int]] = {
    "settled_s": ("seconds measured", 0),
    "sent": ("sent per server", 0),
    "cap": ("cap per GPU", 1),
    "running": ("running per GPU", 1),
    "queue": ("queue per GPU", 1),
    "tok_s_per_gpu": ("tok/s per GPU, mean", 0),
    "tok_s_p10": ("tok/s per GPU, 10th percentile", 0),
    "tok_s_p90": ("tok/s per GPU, 90th percentile", 0),
    "tok_s_total": ("tok/s in all", 0),
    "share_pct": ("share of {baseline}, %", 1),
    "completions_s": ("completions/s", 2),
    "output_tokens": ("output tokens per completion", 0),
    "kv_pct": ("KV usage, %", 1),
    "mamba_pct": ("mamba usage, %", 1),
    "util_pct": ("GPU util, %", 0),
    "power_w": ("power of all GPUs, W", 0),
    "tokens_per_joule": ("tokens per joule", 2),
    "completed": ("completed", 0),
    "failed": ("failed", 0),
}
"""A phase's figures → label, decimals shown."""


def phases_of(
    samples: Sequence[Sample], stretches: Sequence[Stretch], baselines: Sequence[Baseline] = ()
) -> list[dict[str, Any]]:
    """Each phase: from and to (Unix seconds), flags that most servers had, those of GPUs that had others, figures by
    FIGURES' names. A stretch without a generator, or with too few samples, is none."""
    phases = []
    for stretch in stretches:
        within = within_stretch(samples, stretch.began, stretch.ended)
        if stretch.sent is not None and len(within) >= LEAST_SAMPLES:
            figures = {**_figures(within, baselines), "sent": stretch.sent}
            phases.append({"from": within[0].time, "to": within[-1].time, **_flags(stretch), "figures": figures})
    return phases


def within_stretch(samples: Sequence[Sample], began: float, ended: float) -> list[Sample]:
    return [sample for sample in samples if began <= sample.time <= ended]


def _flags(stretch: Stretch) -> dict[str, Any]:
    usual = _usual([tuple(sorted(flags.items())) for flags in stretch.flags.values()]) or ()
    others = {gpu: masked(flags) for gpu, flags in stretch.flags.items() if tuple(sorted(flags.items())) != usual}
    return {"flags": masked(dict(usual)), "other_flags": others}


def settled(samples: Sequence[Sample]) -> list[Sample]:
    """By the rule above; all of them where running requests aren't known."""
    running = [(sample, total) for sample in samples if (total := total_of(sample, "running")) is not None]
    if len(running) < LEAST_SAMPLES:
        return list(samples)
    busiest = quantiles([total for _, total in running], n=10)[-1]
    return [sample for sample, total in running if total >= (1 - SETTLED) * busiest]


def _figures(samples: Sequence[Sample], baselines: Sequence[Baseline]) -> dict[str, float | None]:
    calm = settled(samples)
    rates = [g.tok_s for s in calm for g in s.gpus if g.state in LIVE and g.tok_s is not None]
    spread = quantiles(rates, n=10) if len(rates) >= 2 else None
    total, power = _mean(total_of(s, "tok_s") for s in calm), _mean(_power(s) for s in calm)
    found = {
        "settled_s": calm[-1].time - calm[0].time,
        "sent": None,
        "tok_s_per_gpu": _mean(rates),
        "tok_s_p10": spread[0] if spread else None,
        "tok_s_p90": spread[-1] if spread else None,
        "tok_s_total": total,
        "share_pct": 100 * total / baselines[0].tok_s if total is not None and baselines else None,
        "power_w": power,
        "tokens_per_joule": total / power if total is not None and power else None,
        "completions_s": _rate(calm),
        "output_tokens": _tokens_each(samples),
        "kv_pct": _percent(_gpu_mean(calm, lambda gpu: gpu.kv_usage)),
        "mamba_pct": _percent(_gpu_mean(calm, lambda gpu: gpu.mamba_usage)),
        "completed": _gained(samples, "completed"),
        "failed": _gained(samples, "failed"),
    }
    for name in ("cap", "running", "queue", "util_pct"):
        found[name] = _gpu_mean(calm, lambda gpu, name=name: getattr(gpu, name))  # type: ignore[misc]
    return {name: None if found[name] is None else round(found[name], 4) for name in FIGURES}  # type: ignore[arg-type]


def gpu_table(samples: Sequence[Sample]) -> list[dict[str, float | None]]:
    """One row a GPU: means over the settled samples of a phase."""
    calm = settled(samples)
    names = ("running", "cap", "queue", "tok_s", "kv_usage", "mamba_usage", "util_pct", "power_w", "temperature_c")
    rows = []
    for gpu in sorted({g.gpu for s in calm for g in s.gpus}):
        mine = [g for s in calm for g in s.gpus if g.gpu == gpu and g.state in LIVE]
        means = {name: _mean(getattr(g, name) for g in mine) for name in names}
        rows.append({"gpu": gpu, **{name: None if mean is None else round(mean, 4) for name, mean in means.items()}})
    return rows


def _progresses(sample: Sample) -> list[dict[str, Any]]:
    return [job.progress for job in sample.jobs if job.progress is not None]


def _rate(samples: Sequence[Sample]) -> float | None:
    seconds = samples[-1].time - samples[0].time
    gained = _gained(samples, "completed")
    return gained / seconds if gained is not None and seconds > 0 else None


def _tokens_each(samples: Sequence[Sample]) -> float | None:
    tokens, completions = _gained(samples, "total_output_tokens"), _gained(samples, "completed")
    return tokens / completions if tokens is not None and completions else None


def _gained(samples: Sequence[Sample], counter: str) -> float | None:
    """How far the jobs' counter of this run went between the first and the last sample that have it."""
    sums = [sum(p.get(counter, 0) for p in found) for sample in samples if (found := _progresses(sample))]
    return float(sums[-1] - sums[0]) if sums else None


def _power(sample: Sample) -> float | None:
    values = [gpu.power_w for gpu in sample.gpus if gpu.power_w is not None]
    return sum(values) if values else None


def _gpu_mean(samples: Sequence[Sample], read: Callable[[GpuSample], float | None]) -> float | None:
    return _mean(read(gpu) for sample in samples for gpu in sample.gpus if gpu.state in LIVE)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mean(values: Iterator[float | None] | Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _usual(values: Iterator[Any] | Sequence[Any]) -> Any:
    """The most frequent one, None when there is none."""
    counted = Counter(value for value in values if value is not None)
    return counted.most_common(1)[0][0] if counted else None
