"""How fast a decode step is: a roofline, and a fixed part fitted from measured points. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from rackhand.capacity.gpus import GpuKind
from rackhand.capacity.shapes import (
    GIB,
    ModelShape,
    conv_bytes,
    layer_token_bytes,
    ssm_bytes,
    swa_token_bytes,
)

Bound: TypeAlias = Literal["memory", "compute"]
ACCEPT_SHARE = 0.8
"""Tokens that a verified step yields per draft token it checks, where nothing was measured: 3.2 of 4."""
UNMEASURED_FIXED_S = (0.004, 0.009, 0.020)
"""Least, likely and most fixed seconds a step, where no point of that GPU was measured."""
SPREAD = 0.03
"""How far the rate of one server wanders around its mean: the field report has 650-680 and 1,155-1,196."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A job's mean tokens of prompt and output. `variation` is the output's standard deviation over its mean."""

    prompt: float
    output: float
    variation: float = 0.7

    @property
    def resident(self) -> float:
        """Mean tokens that a running request holds, seen at a random moment: long ones run longer."""
        return self.prompt + self.output / 2 * (1 + self.variation**2)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step has to do: `running` requests of `resident` tokens each; `drafts` verified per step, 0 for none."""

    running: int
    resident: float
    state_dtype: str = "float32"
    kv_dtype: str = "auto"
    drafts: int = 0
    tp: int = 1

    @property
    def tokens_per_step(self) -> float:
        """Tokens that one step yields."""
        return self.running * (max(1.0, ACCEPT_SHARE * self.drafts))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured rate: what was served, how, and output tokens per second of one server."""

    gpu: str
    model: ModelShape
    work: Work
    tokens_per_s: float
    source: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Output tokens per second of one server: likely, least and most; `share` of the roofline; `basis` in words."""

    running: int
    tokens_per_s: float
    low: float
    high: float
    roofline_tokens_per_s: float
    bound: Bound
    fixed_s: float
    basis: str

    @property
    def share(self) -> float:
        return self.tokens_per_s / self.roofline_tokens_per_s


def read_weights_gib(model: ModelShape, tokens: float) -> float:
    """GiB of weights that a step of `tokens` tokens reads: all but the embedding's rows, and of the experts those
    that at least one token chose: 1 - (1 - used / experts) ^ tokens."""
    dense = max(0.0, model.weights_gib - model.embedding_gib)
    if not model.experts:
        return dense
    chosen = 1 - math.pow(1 - min(1.0, model.experts_used / model.experts), max(1.0, tokens))
    return dense - model.weights_gib * model.expert_share * (1 - chosen)


def step_bytes(model: ModelShape, work: Work) -> float:
    """Bytes that one decode step moves on each GPU.

    Weights once, the draft's (without its embedding) once per drafted token; each running request's KV, window layers
    at most their window; its state read and written, with speculation written once per draft token.
    """
    tokens = work.running * max(1, work.drafts)
    weights = read_weights_gib(model, tokens) * GIB
    if work.drafts:
        weights += (work.drafts - 1) * max(0.0, model.draft_gib - model.embedding_gib) * GIB
    layer = layer_token_bytes(model, work.kv_dtype, work.tp)
    window = min(work.resident, model.window) if model.window else work.resident
    kept = (model.full_layers - model.windowed_layers) * work.resident + model.windowed_layers * window
    kv = layer * kept + swa_token_bytes(model, work.kv_dtype, work.tp) * window
    state = ssm_bytes(model, work.state_dtype, work.tp) + conv_bytes(model, work.tp)
    return weights / work.tp + work.running * (kv + state * (1 + max(1, work.drafts)))


def step_flops(model: ModelShape, work: Work) -> float:
    """Operations of one decode step on each GPU: 2 x active parameters x tokens in the step."""
    parameters = (model.weights_gib - model.embedding_gib) * GIB / model.weight_bytes
    idle = 1 - model.experts_used / model.experts if model.experts else 0.0
    active = parameters * (1 - model.expert_share * idle)
    return 2 * active * work.running * max(1, work.drafts) / work.tp


def roofline_s(model: ModelShape, kind: GpuKind, work: Work) -> tuple[float, Bound]:
    """Seconds that a step takes at least, and what bounds it: max(bytes / bandwidth, operations / FLOP/s)."""
    memory = step_bytes(model, work) / (kind.bandwidth_gb_s * 1e9)
    peak = kind.bf16_tflops if model.weight_bytes >= 2 else kind.fp8_tflops
    compute = step_flops(model, work) / (peak * 1e12)
    return (memory, "memory") if memory >= compute else (compute, "compute")


def fixed_s(kind: GpuKind, work: Work, points: Sequence[Point]) -> tuple[float, float, float, str]:
    """Least, likely and most seconds that a step takes beyond its roofline, and where that is from.

    A point counts when GPU and speculation are the same. Of two and more, the likely part is a line over the running
    requests through them (least squares, not below 0); the range reaches to the part of the nearest point. A single
    point's part is likely to stay; the range reaches to where it would grow with the running requests.
    """
    found = [p for p in points if p.gpu == kind.key and (p.work.drafts > 0) == (work.drafts > 0)]
    if not found:
        low, likely, high = UNMEASURED_FIXED_S
        factor = max(1, work.drafts)
        return low * factor, likely * factor, high * factor, "no measured point of this GPU: a guess"
    extra = [p.work.tokens_per_step / p.tokens_per_s - roofline_s(p.model, kind, p.work)[0] for p in found]
    line = _line([(float(p.work.running), s) for p, s in zip(found, extra, strict=True)], work.running)
    likely = max(0.0, line)
    nearest = min(zip(found, extra, strict=True), key=lambda pair: abs(pair[0].work.running - work.running))[1]
    if len(found) == 1:
        nearest = likely * work.running / found[0].work.running
    rates = ", ".join(f"{p.work.running} running → {p.tokens_per_s:,.0f}" for p in found)
    return max(0.0, min(nearest, likely)), likely, max(nearest, likely), f"fitted to {rates} tok/s"


def predict_rate(model: ModelShape, kind: GpuKind, work: Work, points: Sequence[Point] = ()) -> Rate:
    """Output tokens per second of `work.running` requests, with a range, and the roofline that it falls short of."""
    roof, bound = roofline_s(model, kind, work)
    least, likely, most, basis = fixed_s(kind, work, points)
    tokens, spread = work.tokens_per_step, SPREAD * _stretch(kind, work, points)
    return Rate(
        running=work.running,
        tokens_per_s=tokens / (roof + likely),
        low=tokens / (roof + most) * (1 - spread),
        high=min(tokens / roof, tokens / (roof + least) * (1 + spread)),
        roofline_tokens_per_s=tokens / roof,
        bound=bound,
        fixed_s=likely,
        basis=basis,
    )


def _stretch(kind: GpuKind, work: Work, points: Sequence[Point]) -> float:
    """How far outside the measured running requests this is, as a factor of at least 1 and at most 4."""
    counts = [p.work.running for p in points if p.gpu == kind.key and (p.work.drafts > 0) == (work.drafts > 0)]
    return min(4.0, max(1.0, work.running / max(counts), min(counts) / work.running)) if counts else 1.0


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y + slope * (at - mean_x)
