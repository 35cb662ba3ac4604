"""Samples → what each run achieved. Pure.

A run's figures are means over its longest steady stretch (by compare.py's rule), at most the last LONGEST_S of it, or
over what comes nearest to one. So neither ramp nor drain counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, median, quantiles
from typing import Any

from rackhand.compare import STEADY_WINDOW_S, steady_stretch
from rackhand.contract.watch import LIVE, GpuSample, Sample
from rackhand.inventory import Baseline
from rackhand.masked import masked
from rackhand.outcomes import SENT
from rackhand.recording import Run
from rackhand.steady import last_seconds, total_of

SETTLED = 0.10
LEAST_SAMPLES = 3
RATE_LAG_S = 30.0
"""Token rates are fitted to so much of the time before."""
LONGEST_S = 3600.0
WINDOW_SAMPLES = 6

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
"""A run's figures → label, decimals shown."""


def runs_of(
    samples: Sequence[Sample],
    runs: Sequence[Run],
    baselines: Sequence[Baseline] = (),
    inventory: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Each run: its number and name, from and to (Unix seconds), flags that most servers had, those of GPUs that had
    others, figures by FIGURES' names, whether they are of a steady stretch, the inventory of then where it isn't
    `inventory`. A run with too few samples is left out."""
    found = []
    for run in runs:
        within = within_run(samples, run.began, run.ended)
        if len(within) < LEAST_SAMPLES:
            continue
        calm = steady_of(within)
        figures = _figures(within, calm or settled(within), baselines)
        figures["sent"] = run.sent if figures["sent"] is None else figures["sent"]
        told = {"number": run.id, "name": f"run {run.id}", "from": within[0].time, "to": within[-1].time}
        then = dict(run.inventory) if run.inventory and run.inventory != inventory else None
        found.append({**told, "steady": bool(calm), **_flags(run), "inventory": then, "figures": figures})
    return found


def steady_of(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The longest steady stretch, at most its last LONGEST_S; empty when there is none."""
    usual = median(b.time - a.time for a, b in pairwise(samples)) if len(samples) > 1 else 0.0
    return last_seconds(steady_stretch(samples, window_s=max(STEADY_WINDOW_S, WINDOW_SAMPLES * usual)), LONGEST_S)


def within_run(samples: Sequence[Sample], began: float, ended: float) -> list[Sample]:
    return [sample for sample in samples if began <= sample.time <= ended]


def _flags(run: Run) -> dict[str, Any]:
    """The history keeps each server's cap beside its flags; it is measured here."""
    flags = {gpu: {name: text for name, text in found.items() if name != "cap"} for gpu, found in run.flags.items()}
    usual = _usual([tuple(sorted(found.items())) for found in flags.values()]) or ()
    others = {gpu: masked(found) for gpu, found in flags.items() if tuple(sorted(found.items())) != usual}
    return {"flags": masked(dict(usual)), "other_flags": others}


def settled(samples: Sequence[Sample]) -> list[Sample]:
    """Those of a run that was never steady: as many requests as in its busiest tenth, within SETTLED, and that for
    RATE_LAG_S already; the last third where there are too few of them."""
    running = [(sample, total) for sample in samples if (total := total_of(sample, "running")) is not None]
    if len(running) < LEAST_SAMPLES:
        return list(samples)
    busiest = quantiles([total for _, total in running], n=10)[-1]
    busy = [sample for sample, total in running if total >= (1 - SETTLED) * busiest]
    late = [sample for sample in busy if sample.time >= busy[0].time + RATE_LAG_S]
    return late if len(late) >= LEAST_SAMPLES else busy[-max(LEAST_SAMPLES, len(busy) // 3) :]


def _figures(
    samples: Sequence[Sample], calm: Sequence[Sample], baselines: Sequence[Baseline]
) -> dict[str, float | None]:
    rates = [g.tok_s for s in calm for g in s.gpus if g.state in LIVE and g.tok_s is not None]
    spread = quantiles(rates, n=10) if len(rates) >= 2 else None
    total, power = _mean(total_of(s, "tok_s") for s in calm), _mean(_power(s) for s in calm)
    found: dict[str, float | None] = {
        "settled_s": calm[-1].time - calm[0].time,
        "sent": _usual([p.get(SENT) for sample in calm for p in _progresses(sample)]),
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
        found[name] = _gpu_mean(calm, attrgetter(name))
    return {name: None if (value := found[name]) is None else round(value, 4) for name in FIGURES}


def gpu_table(samples: Sequence[Sample]) -> list[dict[str, float | None]]:
    """One row a GPU: means over the same samples as the run's figures."""
    calm = steady_of(samples) or settled(samples)
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
    """Over the time between the first and the last sample that have the counter: rebuilt ones don't."""
    counted = [sample for sample in samples if _progresses(sample)]
    seconds = counted[-1].time - counted[0].time if counted else 0.0
    gained = _gained(counted, "completed")
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
