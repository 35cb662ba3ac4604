"""The memory model: flags, model and GPU → what SGLang will make of them. Pure; every "GiB" is 2^30 bytes.

Covers SGLang 0.5.8 to 0.5.12 (one regime of pool sizing) for hybrid models with a linear-attention state, on one GPU
per server. Read in `model_executor/model_runner_kv_cache_mixin.py` of 0.5.11 and checked against recorded values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from rackhand.capacity.flags import (
    SUPPORTED,
    Asked,
    CapacityError,
    DoesNotFit,
    FlagsRefused,
    FlagValue,
    UnsupportedVersion,
    auto_fraction,
    read_asked,
    release_of,
)
from rackhand.capacity.shapes import (
    B200,
    GIB,
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    QWEN3_6_27B_NVFP4,
    RTX_PRO_6000,
    Gpu,
    ModelShape,
    conv_bytes,
    kv_token_bytes,
    ssm_bytes,
)

__all__ = [
    "B200",
    "QWEN3_6_27B",
    "QWEN3_6_27B_FP8",
    "QWEN3_6_27B_NVFP4",
    "RTX_PRO_6000",
    "SUPPORTED",
    "Capacity",
    "CapacityError",
    "DoesNotFit",
    "FlagValue",
    "FlagsRefused",
    "Gpu",
    "ModelShape",
    "UnsupportedVersion",
    "auto_fraction",
    "conv_bytes",
    "kv_token_bytes",
    "predict",
    "slots_per_request",
    "ssm_bytes",
]

CappedBy: TypeAlias = Literal["asked", "tokens", "slots"]
BASE_SLOTS_PER_REQUEST = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a server will have. Sizes in GiB as SGLang prints them; `outside_gib` is what the pools leave of the GPU."""

    slots: int
    slots_per_request: int
    max_running_requests: int
    capped_by: CappedBy
    kv_tokens: int
    kv_each_gib: float
    ssm_gib: float
    conv_gib: float
    intermediate_ssm_gib: float
    intermediate_conv_gib: float
    reserved_unused_gib: float
    outside_gib: float
    mem_fraction_static: float
    page_size: int
    overlap: bool

    @property
    def pools_gib(self) -> float:
        """All pools together, GiB."""
        states = self.ssm_gib + self.conv_gib + self.intermediate_ssm_gib + self.intermediate_conv_gib
        return states + 2 * self.kv_each_gib


def predict(model: ModelShape, gpu: Gpu, engine_version: str, flags: Mapping[str, FlagValue]) -> Capacity:
    """What SGLang `engine_version` will make of these flags. SGLang 0.5.8-0.5.12, hybrid models, one GPU per server.

    With pre = free memory, post = pre - weights: rest = post - pre x (1 - fraction); speculation takes slot x asked
    running x draft tokens off it (for the asked number, whatever runs in the end); slots are those asked, or the asked
    running number without radix cache, or rest x ratio / (1 + ratio) / slot; what remains buys KV tokens.

    Raises UnsupportedVersion, FlagsRefused, DoesNotFit.
    """
    release = release_of(engine_version)
    asked = read_asked(gpu, model, release, {k.lstrip("-").replace("_", "-"): v for k, v in flags.items()})
    slot_gib = (ssm_bytes(model, asked.state_dtype) + conv_bytes(model)) / GIB
    rest_gib = gpu.free_gib - model.weights_gib - gpu.free_gib * (1 - asked.fraction)
    reserved_gib = slot_gib * (asked.running or 0) * asked.draft_tokens
    rest_gib -= reserved_gib
    slots = _slots(asked, rest_gib, slot_gib)
    kv_gib = rest_gib - slots * slot_gib
    kv_bytes = kv_token_bytes(model, asked.kv_dtype)
    kv_tokens = int(kv_gib * GIB / kv_bytes / asked.page_size) * asked.page_size
    if kv_tokens <= 0:
        raise DoesNotFit(
            f"{gpu.free_gib:.2f} GiB free, {model.weights_gib:.2f} GiB weights and {slots} state slots leave "
            f"{kv_gib:.2f} GiB for KV tokens at a static fraction of {asked.fraction}; raise mem-fraction-static"
        )
    per_request = slots_per_request(
        engine_version, extra_buffer=asked.extra_buffer, overlap=asked.overlap, radix=asked.radix
    )
    running, capped_by = _running(asked, model, kv_tokens, slots, per_request)
    if running <= 0:
        raise DoesNotFit(f"{slots} state slots carry no request ({per_request} each); raise mem-fraction-static")
    copies = (running + 1) * asked.draft_tokens
    capacity = Capacity(
        slots=slots,
        slots_per_request=per_request,
        max_running_requests=running,
        capped_by=capped_by,
        kv_tokens=kv_tokens,
        kv_each_gib=(kv_tokens + asked.page_size) * kv_bytes / 2 / GIB,
        ssm_gib=(slots + 1) * ssm_bytes(model, asked.state_dtype) / GIB,
        conv_gib=(slots + 1) * conv_bytes(model) / GIB,
        intermediate_ssm_gib=copies * ssm_bytes(model, asked.state_dtype) / GIB,
        intermediate_conv_gib=copies * conv_bytes(model) / GIB,
        reserved_unused_gib=max(0.0, reserved_gib - copies * slot_gib),
        outside_gib=0.0,
        mem_fraction_static=asked.fraction,
        page_size=asked.page_size,
        overlap=asked.overlap,
    )
    return dataclasses.replace(capacity, outside_gib=gpu.free_gib - model.weights_gib - capacity.pools_gib)


def slots_per_request(engine_version: str, *, extra_buffer: bool, overlap: bool, radix: bool) -> int:
    """State slots that one running request needs (S). SGLang 0.5.8-0.5.12.

    1 without radix cache, 3 with no_buffer, 5 with extra_buffer under the overlap scheduler, else 4.
    """
    release_of(engine_version)
    if not radix:
        return 1
    if not extra_buffer:
        return BASE_SLOTS_PER_REQUEST
    return BASE_SLOTS_PER_REQUEST + (2 if overlap else 1)


def _slots(asked: Asked, rest_gib: float, slot_gib: float) -> int:
    if asked.slots is not None:
        return asked.slots
    if not asked.radix and asked.running is not None:
        return asked.running
    return max(0, int(rest_gib * asked.ratio / (1 + asked.ratio) / slot_gib))


def _running(asked: Asked, model: ModelShape, kv_tokens: int, slots: int, per_request: int) -> tuple[int, CappedBy]:
    estimated = min(max(int(kv_tokens / model.context_len * 512), 2048), 4096)
    by_slots = slots // per_request
    by_tokens = min(estimated, kv_tokens // 2) if asked.running is None else estimated
    running = min(by_slots, by_tokens, by_tokens if asked.running is None else asked.running)
    if running == asked.running:
        return running, "asked"
    return running, "slots" if running == by_slots else "tokens"
