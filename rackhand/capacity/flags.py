"""The flags that sizing reads, with each release's defaults, and what SGLang refuses. Pure."""

from __future__ import annotations

import dataclasses

from rackhand.capacity.errors import FlagsRefused, NotCovered, UnsupportedVersion
from rackhand.capacity.fraction import auto_fraction
from rackhand.capacity.limits import Strategy
from rackhand.capacity.read import Flags, choice, fraction_of, whole
from rackhand.capacity.regimes import Release
from rackhand.capacity.shapes import CONV_BYTES, CONV_DTYPE, KV_BYTES, STATE_BYTES, Gpu, ModelShape

SPECULATIVE_DEFAULT_RUNNING = 48
SPECULATIVE_DEFAULT_DRAFT_TOKENS = 4
SWA_TOKENS_RATIO = 0.8
NO_OVERLAP = ("DFLASH", "NGRAM")
"""Speculation that turns the overlap scheduler off up to 0.5.13 (0.5.11 server_args.py:3436, :3569)."""
BACKEND_PAGES = {"trtllm_mha": 64, "trtllm_mla": 64, "flashmla": 64, "cutlass_mla": 128, "fa4": 128}
"""Tokens in a page where the attention backend knows no smaller one."""
_TRUE = ("1", "true", "yes", "y", "on")
_STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags that sizing reads, with that release's defaults."""

    running: int | None
    slots: int | None
    ratio: float
    fraction: float
    draft_tokens: int
    draft_model: bool
    strategy: Strategy
    radix: bool
    overlap: bool
    page_size: int
    state_dtype: str
    kv_dtype: str
    conv_dtype: str
    tp: int
    context_len: int
    max_tokens: int | None
    swa_ratio: float
    skips_decode_lock: bool
    replay_tokens: int


def read_asked(gpu: Gpu, model: ModelShape, release: Release, flags: Flags, environ: Flags) -> Asked:
    """The sizing flags of a launch, as `dashed` names them. FlagsRefused where that release would refuse them."""
    _check_parallel(model, flags)
    algorithm = str(flags.get("speculative-algorithm") or "")
    drafts = _draft_tokens(flags) if algorithm else 0
    strategy, radix, overlap, page_size = _scheduling(gpu, model, release, flags, environ)
    running = whole(flags, "max-running-requests")
    fraction = fraction_of(flags, "mem-fraction-static", most=1.0)
    state_dtype = choice(flags, "mamba-ssm-dtype", STATE_BYTES, _state_default(model, release))
    return Asked(
        running=SPECULATIVE_DEFAULT_RUNNING if algorithm and running is None else running,
        slots=whole(flags, "max-mamba-cache-size"),
        ratio=fraction_of(flags, "mamba-full-memory-ratio") or 0.9,
        fraction=auto_fraction(gpu, model, flags, ".".join(map(str, release))) if fraction is None else fraction,
        draft_tokens=drafts,
        draft_model=algorithm not in ("", "NGRAM"),
        strategy=strategy,
        radix=radix,
        overlap=overlap,
        page_size=page_size,
        state_dtype=state_dtype,
        kv_dtype=choice(flags, "kv-cache-dtype", KV_BYTES, "auto"),
        conv_dtype=choice(environ, "SGLANG_MAMBA_CONV_DTYPE", CONV_BYTES, CONV_DTYPE),
        tp=whole(flags, "tp-size") or 1,
        context_len=whole(flags, "context-length") or model.context_len,
        max_tokens=whole(flags, "max-total-tokens"),
        swa_ratio=_swa_ratio(model, release, flags),
        skips_decode_lock=_is_on(environ, "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"),
        replay_tokens=_replay_tokens(release, flags, algorithm, state_dtype),
    )


def _check_parallel(model: ModelShape, flags: Flags) -> None:
    for name in ("pp-size", "dp-size"):
        if (whole(flags, name) or 1) != 1:
            raise NotCovered(f"--{name} {flags[name]}: the memory model knows tensor parallelism only")
    tp = whole(flags, "tp-size") or 1
    for what, heads in (("value heads", model.linear_value_heads), ("key heads", model.linear_key_heads)):
        if heads % tp:
            raise FlagsRefused(f"--tp-size {tp}: {heads} linear-attention {what} can't be divided by it")


def _draft_tokens(flags: Flags) -> int:
    """Draft tokens that a step verifies: steps + 1 with top-k 1, which is the default, as 3 steps are."""
    steps = whole(flags, "speculative-num-steps")
    if steps is not None and (whole(flags, "speculative-eagle-topk") or 1) == 1:
        return steps + 1
    return whole(flags, "speculative-num-draft-tokens") or SPECULATIVE_DEFAULT_DRAFT_TOKENS


def _state_default(model: ModelShape, release: Release) -> str:
    """To 0.5.8 float32 whatever the model says, then the model's own."""
    return "float32" if release <= (0, 5, 8) else model.state_dtype


def _swa_ratio(model: ModelShape, release: Release, flags: Flags) -> float:
    if model.swa_layers and release < (0, 5, 11):
        text = f"SGLang {'.'.join(map(str, release))}: pools of sliding-window models are known from 0.5.11 on"
        raise UnsupportedVersion(text)
    return fraction_of(flags, "swa-full-tokens-ratio", most=1.0) or SWA_TOKENS_RATIO


def _replay_tokens(release: Release, flags: Flags, algorithm: str, state_dtype: str) -> int:
    """Tokens in the ring of ReplaySSM verification, 0 without it."""
    if not flags.get("enable-linear-replayssm-spec") or not algorithm:
        return 0
    if release < (0, 5, 17):
        raise NotCovered("the memory model knows ReplaySSM verification from 0.5.17 on")
    if state_dtype != "float32":
        raise FlagsRefused("ReplaySSM verification needs a float32 state: drop --mamba-ssm-dtype")
    return whole(flags, "linear-replayssm-cache-len") or 16


def _scheduling(
    gpu: Gpu, model: ModelShape, release: Release, flags: Flags, environ: Flags
) -> tuple[Strategy, bool, bool, int]:
    """Strategy, whether radix cache and overlap stay on, and tokens in a page."""
    asked = choice(flags, "mamba-scheduler-strategy", _STRATEGIES, "auto")
    speculation = bool(flags.get("speculative-algorithm"))
    radix, overlap = not flags.get("disable-radix-cache"), not flags.get("disable-overlap-schedule")
    version_2 = _is_on(environ, "SGLANG_ENABLE_SPEC_V2", default=release >= (0, 5, 11))
    if speculation and (not version_2 or flags.get("speculative-algorithm") in NO_OVERLAP):
        overlap = overlap and release >= (0, 5, 14)
    page_size = whole(flags, "page-size")
    strategy: Strategy = "no_buffer"
    if model.hybrid and release >= (0, 5, 7):
        if asked == "auto" and release >= (0, 5, 14) and (overlap or (page_size or 1) > 1):
            asked = "extra_buffer"
        strategy = _strategy(asked, release, radix=radix, overlap=overlap, speculation=speculation)
        if strategy == "no_buffer" and speculation and radix and release < (0, 5, 10):
            radix = False
    if model.hybrid and strategy == "no_buffer" and radix and release > (0, 5, 3):
        if release >= (0, 5, 14) and overlap and asked == "no_buffer":
            raise FlagsRefused("no_buffer needs --disable-overlap-schedule from 0.5.14 on, or leave the strategy unset")
        return strategy, radix, speculation and overlap, 1
    return strategy, radix, overlap, page_size or _default_page(gpu, flags)


def _strategy(asked: str, release: Release, *, radix: bool, overlap: bool, speculation: bool) -> Strategy:
    early = release < (0, 5, 14)
    if asked in ("auto", "no_buffer"):
        if speculation and radix and early and release >= (0, 5, 10):
            raise FlagsRefused("speculation with no_buffer needs --disable-radix-cache, or use extra_buffer")
        return "no_buffer"
    if not radix:
        if early:
            raise FlagsRefused(f"mamba {asked} is not compatible with --disable-radix-cache; use no_buffer")
        return "no_buffer"
    if asked == "extra_buffer":
        return "extra_buffer"
    if release < (0, 5, 13):
        raise FlagsRefused("extra_buffer_lazy is known from 0.5.13 on; use extra_buffer")
    if speculation and release < (0, 5, 17):
        raise FlagsRefused("extra_buffer_lazy takes speculation from 0.5.17 on; use extra_buffer")
    if not overlap:
        raise FlagsRefused("extra_buffer_lazy needs the overlap scheduler: drop --disable-overlap-schedule")
    return "extra_buffer_lazy"


def _default_page(gpu: Gpu, flags: Flags) -> int:
    """64 on compute capability 10 where the backend is left to SGLang, else what the backend needs."""
    backend = flags.get("attention-backend")
    if backend is None:
        return 64 if gpu.compute_capability.startswith("10.") else 1
    return BACKEND_PAGES.get(str(backend), 1)


def _is_on(environ: Flags, name: str, *, default: bool = False) -> bool:
    value = environ.get(name)
    return default if value is None else str(value).lower() in _TRUE
