"""The flags that sizing reads, with each version's defaults, and what SGLang refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from rackhand.capacity.shapes import KV_BYTES, STATE_BYTES, Gpu, ModelShape

FlagValue: TypeAlias = bool | int | float | str | None
"""One flag's value; the key is its long name, with or without the leading dashes, `-` and `_` alike."""

SUPPORTED = ("0.5.8", "0.5.12")
"""The first and the last release whose sizing `predict` knows."""
SPECULATIVE_DEFAULT_RUNNING = 48
SPECULATIVE_DEFAULT_DRAFT_TOKENS = 4


NO_OVERLAP = ("DFLASH", "NGRAM")
"""Speculation that turns the overlap scheduler off (0.5.11 server_args.py:3436, :3569)."""


class CapacityError(ValueError):
    """The prediction can't be made, or SGLang would refuse to start; the text says why."""


class UnsupportedVersion(CapacityError):  # noqa: N818 - reads as what happened
    """An SGLang release outside `SUPPORTED`."""


class FlagsRefused(CapacityError):  # noqa: N818 - reads as what happened
    """SGLang of that version refuses these flags, or the model doesn't cover them."""


class DoesNotFit(CapacityError):  # noqa: N818 - reads as what happened
    """Weights and reserved memory leave nothing for the pools."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags that sizing reads, with that version's defaults."""

    running: int | None
    slots: int | None
    ratio: float
    fraction: float
    draft_tokens: int
    extra_buffer: bool
    radix: bool
    overlap: bool
    page_size: int
    state_dtype: str
    kv_dtype: str


def auto_fraction(gpu: Gpu, model: ModelShape, flags: Mapping[str, FlagValue]) -> float:
    """`mem_fraction_static` when unset, 0..1, from the GPU's total MiB. SGLang 0.5.10-0.5.12, one GPU per server.

    Reserved MiB = 512 + 1.5 x prefill chunk + 2 x largest graph batch + 128 + 8 x piecewise graphs, at least 10,240
    above 60 GB, + 4,096 for speculation; the rest's share, times the model's vision fraction.
    """
    mib = gpu.memory_mib
    chunk_default = 2048 if mib < 35 * 1024 else 4096 if mib < 60 * 1024 else 8192 if mib < 160 * 1024 else 16384
    graph_default = 8 if mib < 20 * 1024 else 24 if mib < 35 * 1024 else 32 if mib < 60 * 1024 else 256
    chunk = _int(flags, "chunked-prefill-size") or chunk_default
    graphs = _int(flags, "cuda-graph-max-bs") or (512 if mib >= 160 * 1024 else graph_default)
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * graphs + 1024 / 8
    if not flags.get("disable-piecewise-cuda-graph"):
        reserved += 8 * _piecewise_graphs(chunk)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if flags.get("speculative-algorithm"):
        reserved += 4 * 1024
    return round((mib - reserved) / mib, 3) * model.vision_fraction


def _piecewise_graphs(largest: int) -> int:
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return sum(1 for step in steps for size in range(*step) if size <= largest)


def release_of(version: str) -> tuple[int, int, int]:
    """The release as numbers; UnsupportedVersion outside `SUPPORTED`. A post release counts as its release."""
    first, last = (tuple(int(p) for p in v.split(".")) for v in SUPPORTED)
    parts = version.split(".")[:3]
    if len(parts) != 3 or not all(p.isdigit() for p in parts) or not first <= tuple(map(int, parts)) <= last:
        raise UnsupportedVersion(
            f"SGLang {version}: the memory model knows {SUPPORTED[0]} to {SUPPORTED[1]} and no other release"
        )
    return int(parts[0]), int(parts[1]), int(parts[2])


def read_asked(gpu: Gpu, model: ModelShape, release: tuple[int, int, int], flags: Mapping[str, FlagValue]) -> Asked:
    """The sizing flags of a launch, named with dashes. FlagsRefused where that release would refuse them."""
    for name in ("tp-size", "pp-size", "dp-size"):
        if (_int(flags, name) or 1) != 1:
            raise FlagsRefused(f"--{name} {flags[name]}: the memory model covers one GPU per server")
    speculation = bool(flags.get("speculative-algorithm"))
    extra_buffer = flags.get("mamba-scheduler-strategy") == "extra_buffer"
    radix, overlap, page_size = _scheduling(gpu, release, flags, extra_buffer=extra_buffer, speculation=speculation)
    drafts = _int(flags, "speculative-num-draft-tokens") or SPECULATIVE_DEFAULT_DRAFT_TOKENS
    running = _int(flags, "max-running-requests")
    fraction = _float(flags, "mem-fraction-static")
    ratio = _float(flags, "mamba-full-memory-ratio")
    return Asked(
        running=SPECULATIVE_DEFAULT_RUNNING if speculation and running is None else running,
        slots=_int(flags, "max-mamba-cache-size"),
        ratio=0.9 if ratio is None else ratio,
        fraction=auto_fraction(gpu, model, flags) if fraction is None else fraction,
        draft_tokens=drafts if speculation else 0,
        extra_buffer=extra_buffer,
        radix=radix,
        overlap=overlap,
        page_size=page_size,
        state_dtype=_choice(flags, "mamba-ssm-dtype", STATE_BYTES, model.state_dtype),
        kv_dtype=_choice(flags, "kv-cache-dtype", KV_BYTES, "auto"),
    )


def _scheduling(
    gpu: Gpu,
    release: tuple[int, int, int],
    flags: Mapping[str, FlagValue],
    *,
    extra_buffer: bool,
    speculation: bool,
) -> tuple[bool, bool, int]:
    """Whether radix cache and overlap stay on, and the page size."""
    radix = not flags.get("disable-radix-cache")
    overlap = not flags.get("disable-overlap-schedule")
    if extra_buffer and not radix:
        raise FlagsRefused("mamba extra_buffer is not compatible with --disable-radix-cache; use no_buffer")
    if speculation and not extra_buffer and radix:
        if release >= (0, 5, 10):
            raise FlagsRefused("speculation with no_buffer needs --disable-radix-cache, or use extra_buffer")
        radix = False
    if flags.get("speculative-algorithm") in NO_OVERLAP or (speculation and release <= (0, 5, 10)):
        overlap = False
    page_size = _int(flags, "page-size")
    if not extra_buffer and radix:
        return radix, False, 1
    if page_size is None:
        sm100_default = gpu.compute_capability.startswith("10.") and not flags.get("attention-backend")
        trtllm = sm100_default or flags.get("attention-backend") == "trtllm_mha"
        page_size = 64 if trtllm else 1
    return radix, overlap, page_size


def _int(flags: Mapping[str, FlagValue], name: str) -> int | None:
    value = flags.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError as wrong:
        raise FlagsRefused(f"--{name} {value!r} is not a whole number") from wrong


def _float(flags: Mapping[str, FlagValue], name: str) -> float | None:
    value = flags.get(name)
    if value is None:
        return None
    try:
        return float(value)
    except ValueError as wrong:
        raise FlagsRefused(f"--{name} {value!r} is not a number") from wrong


def _choice(flags: Mapping[str, FlagValue], name: str, known: Mapping[str, int], default: str) -> str:
    value = flags.get(name)
    if value is None:
        return default
    if value not in known:
        raise FlagsRefused(f"--{name} {value!r}: the memory model knows {', '.join(known)}")
    return str(value)
