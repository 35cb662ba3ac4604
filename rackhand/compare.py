"""Two runs → what changed between them, over equal steady windows, and whether it is more than chance. Pure.

A window is steady when the lines fitted to the running requests and to the token rate over STEADY_WINDOW_S change by
at most STEADY_CHANGE of their means. Of each run the longest steady stretch counts, of both the last seconds that the
shorter one has. Intervals: bootstrap over blocks of BLOCK_S (samples of one block aren't independent), seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any

from rackhand.contract.watch import Sample
from rackhand.steady import completed_of, relative_change, total_of

STEADY_WINDOW_S = 30.0
STEADY_CHANGE = 0.10
LEAST_POINTS = 4
COMPARED_S = 3 * 3600.0
"""So much of each run's end is looked at."""
BLOCK_S = 10.0
LEAST_BLOCKS = 3
RESAMPLES = 1000
SEED = 20260
CONFIDENCE = 0.95

BEYOND = "tok/s, changed over unchanged"
Flags = Mapping[str, Mapping[str, str]]
"""By GPU, a run's; the cap is among them."""
Block = Sequence[Sample]
Part = tuple[float, float]
"""What one block adds to numerator and denominator."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of both runs. `ratio` is B / A with its interval; None where either run doesn't know it, an interval
    also where there are too few blocks. `differs` is False when the interval holds 1.0."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool | None:
        return None if self.low is None or self.high is None else not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class Split:
    """Where some GPUs have changed and others haven't: the figures of both over the same windows. `changed_lines` and
    `other_lines` have the same names. `beyond`: the change of the first over that of the second, so that what has
    changed for all (prompts, load) is out of it."""

    changed: tuple[int, ...]
    others: tuple[int, ...]
    changed_lines: tuple[Line, ...]
    other_lines: tuple[Line, ...]
    beyond: Line


@dataclass(frozen=True, slots=True)
class RunComparison:
    """`seconds` and `blocks` of each window; too short to say anything when `blocks` is below LEAST_BLOCKS."""

    seconds: float
    blocks: int
    lines: tuple[Line, ...]
    split: Split | None = None

    def line(self, name: str) -> Line:
        return next(line for line in self.lines if line.name == name)


def steady_stretch(samples: Sequence[Sample], *, window_s: float = STEADY_WINDOW_S) -> Sequence[Sample]:
    """The longest steady stretch by the rule above; empty when there is none."""
    lines = [[(s.time, total_of(s, name)) for s in samples] for name in ("running", "tok_s")]
    best, begin, start = (0, 0), None, 0
    for end, sample in enumerate(samples):
        while samples[start].time < sample.time - window_s:
            start += 1
        if sample.time - samples[start].time < window_s * 2 / 3:
            continue
        if not all(_is_steady(line[start : end + 1]) for line in lines):
            begin = None
            continue
        begin = start if begin is None else begin
        if sample.time - samples[begin].time > _length(samples, best):
            best = (begin, end + 1)
    return samples[best[0] : best[1]]


def changed_gpus(a: Flags, b: Flags) -> tuple[int, ...]:
    """The GPUs of both runs whose flags or cap differ; empty when all do, for then nothing stands beside them."""
    both = a.keys() & b.keys()
    changed = sorted(int(gpu) for gpu in both if a[gpu] != b[gpu])
    return tuple(changed) if len(changed) < len(both) else ()


def compare(
    a: Sequence[Sample],
    b: Sequence[Sample],
    *,
    changed: Sequence[int] = (),
    window_s: float = STEADY_WINDOW_S,
) -> RunComparison:
    """`a` and `b` are the samples of one run each, in order of time; `changed` the GPUs that have changed
    between them, where others haven't."""
    steady = [steady_stretch(run, window_s=window_s) for run in (a, b)]
    seconds = min((run[-1].time - run[0].time if run else 0.0) for run in steady)
    windows = [[s for s in run if s.time >= run[-1].time - seconds] for run in steady]
    blocks_a, blocks_b = (blocks_of(window) for window in windows)
    lines = [_line(name, part, blocks_a, blocks_b) for name, part in FIGURES]
    for share, name in ((0.9, "tok/s per GPU p90"), (0.1, "tok/s per GPU p10")):
        lines.insert(2, Line(name, *(_percentile(_rates(window), share) for window in windows)))
    lines.append(Line("ETA h", *(_eta(window) for window in windows)))
    split = _split(blocks_a, blocks_b, changed) if changed else None
    return RunComparison(seconds, min(len(blocks_a), len(blocks_b)), tuple(lines), split)


def _split(a: Sequence[Block], b: Sequence[Block], changed: Sequence[int]) -> Split | None:
    """None when no other GPU is in both runs."""
    seen = [{gpu.gpu for block in blocks for sample in block for gpu in sample.gpus} for blocks in (a, b)]
    groups = (set(changed) & seen[0] & seen[1], (seen[0] & seen[1]) - set(changed))
    if not all(groups):
        return None
    parts = [[[_only(block, group) for block in blocks] for blocks in (a, b)] for group in groups]
    lines = [tuple(_line(name, part, *both) for name, part in PER_GPU) for both in parts]
    beyond = _beyond([[found for block in one if (found := _TOK_S(block))] for both in parts for one in both])
    return Split(tuple(sorted(groups[0])), tuple(sorted(groups[1])), lines[0], lines[1], beyond)


def _only(block: Block, gpus: Collection[int]) -> Block:
    return [replace(sample, gpus=tuple(gpu for gpu in sample.gpus if gpu.gpu in gpus)) for sample in block]


def _beyond(parts: Sequence[Sequence[Part]]) -> Line:
    """Of the changed GPUs before and after, then of the others: the ratio of both ratios, with its interval."""
    values = [_value(some) for some in parts]
    a, b, other_a, other_b = values
    if not (a and other_a and other_b) or b is None:
        return Line(BEYOND, None, None)
    one, two = b / a, other_b / other_a
    low, high = _interval_of(parts, lambda v: (v[1] / v[0]) / (v[3] / v[2]) if all(v) else None) or (None, None)
    return Line(BEYOND, two, one, one / two, low, high)


def blocks_of(window: Sequence[Sample]) -> list[list[Sample]]:
    """Blocks of BLOCK_S each; the last sample of one is the first of the next, so that counts lose nothing."""
    blocks: list[list[Sample]] = []
    for sample in window:
        if not blocks or sample.time - blocks[-1][0].time >= BLOCK_S:
            if blocks:
                blocks[-1].append(sample)
            blocks.append([])
        blocks[-1].append(sample)
    return [block for block in blocks if block[-1].time - block[0].time >= BLOCK_S * 0.6]


def interval(a: Sequence[Part], b: Sequence[Part]) -> tuple[float, float] | None:
    """Of the ratio of B's value to A's, at CONFIDENCE; None with too few blocks or a value of 0."""
    return _interval_of((a, b), lambda values: values[1] / values[0] if values[0] and values[1] is not None else None)


def _interval_of(
    some: Sequence[Sequence[Part]], ratio_of: Callable[[Sequence[Any]], float | None]
) -> tuple[float, float] | None:
    if min(map(len, some)) < LEAST_BLOCKS:
        return None
    random = Random(SEED)  # noqa: S311
    ratios = []
    for _ in range(RESAMPLES):
        ratio = ratio_of([_value(random.choices(parts, k=len(parts))) for parts in some])
        if ratio is not None:
            ratios.append(ratio)
    if len(ratios) < RESAMPLES * 0.9:
        return None
    tail = (1 - CONFIDENCE) / 2
    return _percentile(ratios, tail) or 0.0, _percentile(ratios, 1 - tail) or 0.0


def _line(name: str, part: Callable[[Block], Part | None], a: Sequence[Block], b: Sequence[Block]) -> Line:
    parts = [[found for block in blocks if (found := part(block)) is not None] for blocks in (a, b)]
    one, two = (_value(some) for some in parts)
    if not one or two is None:
        return Line(name, one, two)
    low, high = interval(*parts) or (None, None)
    return Line(name, one, two, two / one, low, high)


def _value(parts: Sequence[Part]) -> float | None:
    over = sum(part[1] for part in parts)
    return sum(part[0] for part in parts) / over if over else None


def _mean_part(read: Callable[[Sample], float | None]) -> Callable[[Block], Part | None]:
    def part(block: Block) -> Part | None:
        values = [value for sample in block if (value := read(sample)) is not None]
        return (sum(values), float(len(values))) if values else None

    return part


def _per_gpu(name: str) -> Callable[[Sample], float | None]:
    def read(sample: Sample) -> float | None:
        values = [getattr(gpu, name) for gpu in sample.gpus if getattr(gpu, name) is not None]
        return fmean(values) if values else None

    return read


def _power(sample: Sample) -> float | None:
    powers = [gpu.power_w for gpu in sample.gpus]
    return sum(p for p in powers if p is not None) if powers and None not in powers else None


def _per_joule(block: Block) -> Part | None:
    pairs = [(rate, power) for s in block if (rate := total_of(s, "tok_s")) is not None and (power := _power(s))]
    return (sum(rate for rate, _ in pairs), sum(power for _, power in pairs)) if pairs else None


def _completions(block: Block) -> Part | None:
    first, last = completed_of(block[0]), completed_of(block[-1])
    seconds = block[-1].time - block[0].time
    return (float(last - first), seconds) if first is not None and last is not None and last >= first else None


def _output_length(block: Block) -> Part | None:
    done = _completions(block)
    first, last = _output_tokens(block[0]), _output_tokens(block[-1])
    if done is None or first is None or last is None or last < first:
        return None
    return float(last - first), done[0]


def _output_tokens(sample: Sample) -> int | None:
    found = [job.progress.get("total_output_tokens") for job in sample.jobs if job.progress is not None]
    numbers = [count for count in found if isinstance(count, int)]
    return sum(numbers) if numbers else None


def _eta(window: Sequence[Sample]) -> float | None:
    jobs = next((sample.jobs for sample in reversed(window) if sample.jobs), ())
    etas = [job.progress.get("eta_hours") for job in jobs if job.progress is not None]
    numbers = [float(eta) for eta in etas if isinstance(eta, (int, float))]
    return max(numbers) if numbers else None


def _rates(window: Sequence[Sample]) -> list[float]:
    return [gpu.tok_s for sample in window for gpu in sample.gpus if gpu.tok_s is not None]


def _percentile(values: Sequence[float], share: float) -> float | None:
    """With linear interpolation between ranks."""
    if not values:
        return None
    ranked, at = sorted(values), share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (at - below)


def _is_steady(line: Sequence[tuple[float, float | None]]) -> bool:
    points = [(at, total) for at, total in line if total is not None]
    if len(points) < LEAST_POINTS or not any(value for _, value in points):
        return False
    return abs(relative_change(points)) <= STEADY_CHANGE


def _length(samples: Sequence[Sample], stretch: tuple[int, int]) -> float:
    return samples[stretch[1] - 1].time - samples[stretch[0]].time if stretch[1] else -1.0


_TOK_S = _mean_part(_per_gpu("tok_s"))
PER_GPU = (("running per GPU", _mean_part(_per_gpu("running"))), ("tok/s per GPU", _TOK_S))
FIGURES: tuple[tuple[str, Callable[[Block], Part | None]], ...] = (
    *PER_GPU,
    ("tok/s in all", _mean_part(lambda sample: total_of(sample, "tok_s"))),
    ("completions/s", _completions),
    ("output tokens each", _output_length),
    ("GPU util %", _mean_part(_per_gpu("util_pct"))),
    ("power W", _mean_part(_power)),
    ("tokens per joule", _per_joule),
    ("KV usage", _mean_part(_per_gpu("kv_usage"))),
    ("mamba usage", _mean_part(_per_gpu("mamba_usage"))),
)
