"""One launch seen whole: sizes, the batch that a job keeps running, its rate, and what limits it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from rackhand.capacity.gpus import GpuKind
from rackhand.capacity.measured import MEASURED
from rackhand.capacity.predict import NO_FLAGS, Capacity, predict
from rackhand.capacity.rate import Lengths, Point, Rate, Work, predict_rate
from rackhand.capacity.read import Flags
from rackhand.capacity.shapes import Gpu, ModelShape

Limit: TypeAlias = Literal["asked", "tokens", "slots", "kv"]
KV_FULL = 0.95
"""Share of the KV tokens above which SGLang begins to retract requests."""

JSON_FIELDS = (
    "slots",
    "slots_per_request",
    "max_running_requests",
    "capped_by",
    "kv_tokens",
    "kv_each_gib",
    "ssm_gib",
    "conv_gib",
    "intermediate_ssm_gib",
    "intermediate_conv_gib",
    "reserved_unused_gib",
)
MORE_FIELDS = (
    "regime",
    "strategy",
    "mem_fraction_static",
    "page_size",
    "overlap",
    "swa_tokens",
    "swa_kv_each_gib",
    "weights_gib",
    "draft_gib",
    "draft_kv_gib",
    "ring_gib",
    "outside_gib",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is launched where. `kind` None: a GPU that isn't in the table, so nothing is said about its rate."""

    model: ModelShape
    gpu: Gpu
    kind: GpuKind | None
    version: str
    flags: Flags
    environ: Flags = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """`steady_running` are the requests that this job can keep in one server, `limit` what stops it there."""

    capacity: Capacity
    steady_running: int
    limit: Limit
    rate: Rate | None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; GiB to four digits."""
        found = {name: getattr(self.capacity, name) for name in (*JSON_FIELDS, *MORE_FIELDS)}
        rate = self.rate
        found |= {"steady_running": self.steady_running, "limit": self.limit}
        found |= {
            "tokens_per_s": None if rate is None else round(rate.tokens_per_s, 1),
            "tokens_per_s_range": None if rate is None else [round(rate.low, 1), round(rate.high, 1)],
            "roofline_tokens_per_s": None if rate is None else round(rate.roofline_tokens_per_s, 1),
            "roofline_share": None if rate is None else round(rate.share, 4),
            "rate_basis": None if rate is None else rate.basis,
        }
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def look_ahead(launch: Launch, lengths: Lengths, points: Sequence[Point] = MEASURED) -> Outlook:
    """Raises what `predict` raises. The batch is max_running_requests, or what fits into 95 % of the KV tokens."""
    found = predict(launch.model, launch.gpu, launch.version, launch.flags, launch.environ or NO_FLAGS)
    by_kv = max(1, int(found.kv_tokens * KV_FULL // max(1.0, lengths.resident)))
    running = min(found.max_running_requests, by_kv)
    limit: Limit = "kv" if by_kv < found.max_running_requests else found.capped_by
    rate = None
    if launch.kind is not None:
        work = Work(
            running=running,
            resident=lengths.resident,
            state_dtype=found.state_dtype,
            kv_dtype=found.kv_dtype,
            drafts=found.draft_tokens,
            tp=found.tp,
        )
        rate = predict_rate(launch.model, launch.kind, work, points)
    return Outlook(capacity=found, steady_running=running, limit=limit, rate=rate)
