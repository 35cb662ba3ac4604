"""The memory model: flags, model and GPU → what SGLang will make of them. Pure; every "GiB" is 2^30 bytes.

Formulas were read in SGLang's releases 0.5.3, 0.5.6, 0.5.7, 0.5.11, 0.5.13, 0.5.14, 0.5.18 and 0.5.23
(`model_executor/model_runner_kv_cache_mixin.py`, `mem_cache/kv_cache_configurator.py`, `pool_configurator.py`) and
checked against values that real servers printed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rackhand.capacity.errors import DoesNotFit
from rackhand.capacity.flags import Asked, read_asked
from rackhand.capacity.limits import CappedBy, Strategy, cap_running, slots_per_request
from rackhand.capacity.read import Flags, dashed
from rackhand.capacity.regimes import Regime, Release, StateBudget, StatePool, regime_of, release_of, size_state
from rackhand.capacity.shapes import (
    GIB,
    Gpu,
    ModelShape,
    conv_bytes,
    kv_token_bytes,
    layer_token_bytes,
    ssm_bytes,
    swa_token_bytes,
)

VISION_CACHE_GIB = 100 / 1024
NO_FLAGS: Flags = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a server will have, on each of its GPUs. Sizes in GiB as SGLang prints them.

    `slots` and `slots_per_request` are 0 without a state pool. `kv_each_gib` is K, and V as much again; with MLA
    (`kv_buffers` 1) the one buffer there is. `reserved_unused_gib` was kept free for requests that never run, and
    `outside_gib` is what weights, draft and pools leave of the GPU.
    """

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
    regime: Regime = "B"
    strategy: Strategy = "no_buffer"
    kv_buffers: int = 2
    swa_tokens: int = 0
    swa_kv_each_gib: float = 0.0
    weights_gib: float = 0.0
    draft_gib: float = 0.0
    draft_kv_gib: float = 0.0
    ring_gib: float = 0.0
    state_dtype: str = "float32"
    kv_dtype: str = "auto"
    draft_tokens: int = 0
    tp: int = 1

    @property
    def kv_gib(self) -> float:
        """The pools of KV tokens together, GiB, without the draft's."""
        return self.kv_buffers * self.kv_each_gib + 2 * self.swa_kv_each_gib

    @property
    def intermediate_gib(self) -> float:
        """What verification of drafts keeps per running request, GiB."""
        return self.intermediate_ssm_gib + self.intermediate_conv_gib + self.ring_gib

    @property
    def pools_gib(self) -> float:
        """All pools together, GiB, without the draft's."""
        return self.ssm_gib + self.conv_gib + self.intermediate_gib + self.kv_gib


def predict(model: ModelShape, gpu: Gpu, engine_version: str, flags: Flags, environ: Flags = NO_FLAGS) -> Capacity:
    """What SGLang `engine_version` will make of these flags on each GPU. SGLang 0.5.3-0.5.23.

    With pre = free memory and post = pre - weights (from 0.5.14 - draft weights): rest = post - pre x (1 - fraction),
    from 0.5.18 - 0.098 GiB for models that see images; the state pool takes its part (`size_state`), what remains buys
    KV tokens: floor(rest / bytes per token / page) x page. `environ` are the server's environment variables.

    Raises UnsupportedVersion, FlagsRefused, DoesNotFit.
    """
    release = release_of(engine_version)
    asked = read_asked(gpu, model, release, dashed(flags), environ)
    weights, draft = model.weights_gib / asked.tp, (model.draft_gib / asked.tp if asked.draft_model else 0.0)
    counted = weights + (draft if release >= (0, 5, 14) else 0.0)
    rest_gib = gpu.free_gib - counted - gpu.free_gib * (1 - asked.fraction)
    rest_gib -= VISION_CACHE_GIB if model.multimodal and release >= (0, 5, 18) else 0.0
    per_request = 0
    pool = StatePool(slots=0, reserved_gib=0.0, state_gib=0.0)
    if model.hybrid:
        per_request = _slots_per_request(release, asked)
        pool = size_state(_budget(model, release, asked, rest_gib, per_request))
    kv_gib = rest_gib - pool.reserved_gib - pool.state_gib
    kv_tokens = _kv_tokens(model, release, asked, kv_gib)
    if kv_tokens <= 0:
        raise DoesNotFit(_why_not(gpu, counted, pool.slots, kv_gib, asked))
    by_slots = pool.slots // per_request if model.hybrid else None
    running, capped_by = cap_running(
        release, asked=asked.running, kv_tokens=kv_tokens, context_len=asked.context_len, by_slots=by_slots
    )
    if running <= 0:
        raise DoesNotFit(f"{pool.slots} state slots carry no request ({per_request} each); raise mem-fraction-static")
    found = dataclasses.replace(
        _sizes(model, release, asked, pool, kv_tokens=kv_tokens, running=running),
        slots_per_request=per_request,
        capped_by=capped_by,
        weights_gib=weights,
        draft_gib=draft,
    )
    outside = gpu.free_gib - weights - draft - found.draft_kv_gib - found.pools_gib
    return dataclasses.replace(found, outside_gib=outside)


def _slots_per_request(release: Release, asked: Asked) -> int:
    return slots_per_request(
        release,
        asked.strategy,
        radix=asked.radix,
        overlap=asked.overlap,
        speculation=asked.draft_tokens > 0,
        skips_decode_lock=asked.skips_decode_lock,
    )


def _budget(model: ModelShape, release: Release, asked: Asked, rest_gib: float, per_request: int) -> StateBudget:
    return StateBudget(
        regime=regime_of(release),
        rest_gib=rest_gib,
        slot_gib=(ssm_bytes(model, asked.state_dtype, asked.tp) + conv_bytes(model, asked.tp, asked.conv_dtype)) / GIB,
        ratio=asked.ratio,
        running=asked.running,
        slots=None if release == (0, 5, 3) and asked.slots is None else asked.slots,
        drafts=asked.draft_tokens,
        per_request=per_request,
        radix=asked.radix,
        kept=asked.replay_tokens > 0,
        ring_gib=_ring_gib(model, asked),
    )


def _ring_gib(model: ModelShape, asked: Asked) -> float:
    """What ReplaySSM keeps per asked request and one, instead of states. Read in SGLang 0.5.23.

    layers x tokens x (2 x (value heads x value dim + key heads x key dim) x 2 bytes + value heads x 4), heads / tp.
    """
    values, keys = model.linear_value_heads // asked.tp, model.linear_key_heads // asked.tp
    row = 4 * (values * model.linear_value_dim + keys * model.linear_key_dim) + 4 * values
    return ((asked.running or 0) + 1) * model.linear_layers * asked.replay_tokens * row / GIB


def _cell_bytes(model: ModelShape, release: Release, asked: Asked) -> float:
    """What one KV token costs: its full-attention layers, from 0.5.14 the draft's, and the ratio of a window pool."""
    full = kv_token_bytes(model, asked.kv_dtype, asked.tp)
    if asked.draft_model and release >= (0, 5, 14):
        full += model.draft_layers * layer_token_bytes(model, asked.kv_dtype, asked.tp)
    if not model.swa_layers:
        return full
    window = swa_token_bytes(model, asked.kv_dtype, asked.tp)
    return full + asked.swa_ratio * window if model.full_layers else window


def _kv_tokens(model: ModelShape, release: Release, asked: Asked, kv_gib: float) -> int:
    tokens = int(int(max(0.0, kv_gib) * GIB) // _cell_bytes(model, release, asked))
    tokens = tokens if asked.max_tokens is None else min(tokens, asked.max_tokens)
    return tokens // asked.page_size * asked.page_size


def _sizes(
    model: ModelShape, release: Release, asked: Asked, pool: StatePool, *, kv_tokens: int, running: int
) -> Capacity:
    """The pools as they are allocated: a padding slot, a padding page, and copies for requests that run and one."""
    rows = kv_tokens + asked.page_size
    ssm, conv = ssm_bytes(model, asked.state_dtype, asked.tp), conv_bytes(model, asked.tp, asked.conv_dtype)
    copies = ((pool.slots if release <= (0, 5, 6) else running) + 1) * asked.draft_tokens if model.hybrid else 0
    columns = model.conv_kernel - 1
    shared = (asked.draft_tokens + columns - 1) / (asked.draft_tokens * columns) if copies else 1.0
    issm = 0.0 if asked.replay_tokens else copies * ssm / GIB
    iconv = copies * conv / GIB * (shared if release >= (0, 5, 14) else 1.0)
    swa_tokens, swa_each = _window_pool(model, asked, kv_tokens)
    buffers = 1 if model.mla_width else 2
    draft_kv = model.draft_layers * layer_token_bytes(model, asked.kv_dtype, asked.tp) * rows / GIB
    return Capacity(
        slots=pool.slots,
        slots_per_request=0,
        max_running_requests=running,
        capped_by="tokens",
        kv_tokens=kv_tokens,
        kv_each_gib=rows * kv_token_bytes(model, asked.kv_dtype, asked.tp) / buffers / GIB,
        ssm_gib=(pool.slots + 1) * ssm / GIB,
        conv_gib=(pool.slots + 1) * conv / GIB,
        intermediate_ssm_gib=issm,
        intermediate_conv_gib=iconv,
        reserved_unused_gib=max(0.0, pool.reserved_gib - issm - iconv),
        outside_gib=0.0,
        regime=regime_of(release),
        kv_buffers=buffers,
        swa_tokens=swa_tokens,
        swa_kv_each_gib=swa_each,
        draft_kv_gib=draft_kv if asked.draft_model else 0.0,
        ring_gib=_ring_gib(model, asked),
        **_as_asked(asked),
    )


def _as_asked(asked: Asked) -> dict[str, Any]:
    names = ("page_size", "overlap", "strategy", "state_dtype", "kv_dtype", "draft_tokens", "tp")
    return {name: getattr(asked, name) for name in names} | {"mem_fraction_static": asked.fraction}


def _window_pool(model: ModelShape, asked: Asked, kv_tokens: int) -> tuple[int, float]:
    """Tokens and K in GiB of the window layers' pool: the ratio of the full pool's tokens, all without one."""
    if not model.swa_layers:
        return 0, 0.0
    share = asked.swa_ratio if model.full_layers else 1.0
    tokens = int(kv_tokens * share) // asked.page_size * asked.page_size
    return tokens, swa_token_bytes(model, asked.kv_dtype, asked.tp) * (tokens + asked.page_size) / 2 / GIB


def _why_not(gpu: Gpu, weights_gib: float, slots: int, kv_gib: float, asked: Asked) -> str:
    if weights_gib >= gpu.free_gib:
        return f"{weights_gib:.2f} GiB of weights on each GPU don't fit into the {gpu.free_gib:.2f} GiB that are free"
    states = f" and {slots} state slots" if slots else ""
    return (
        f"{gpu.free_gib:.2f} GiB free, {weights_gib:.2f} GiB weights{states} leave {kv_gib:.2f} GiB for KV tokens "
        f"at a static fraction of {asked.fraction:g}; raise mem-fraction-static"
    )
