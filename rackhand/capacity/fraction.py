"""mem_fraction_static where the operator leaves it to SGLang. Pure."""

from __future__ import annotations

from rackhand.capacity.read import Flags, dashed, whole
from rackhand.capacity.regimes import Release, release_of
from rackhand.capacity.shapes import Gpu, ModelShape

_STEPS = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))


def auto_fraction(gpu: Gpu, model: ModelShape, flags: Flags, version: str = "0.5.11") -> float:
    """`mem_fraction_static` when unset, 0..1, from the total MiB of the smallest GPU. SGLang 0.5.3-0.5.23.

    Reserved MiB = 512 + 1.5 x max(prefill chunk, 2048) + 2 x largest decode graph + tp / 8 x 1024 + prefill graphs
    (0.5.10+: 8 each, 1,536 with MLA), at least 10,240 above 60 GB; then for speculation + 2,048 (to 0.5.9) or 4,096
    (0.5.10-0.5.13), STANDALONE 6,144, nothing from 0.5.14; the rest's share to three digits, times the model's vision
    fraction. 0.5.7, 0.5.11, 0.5.14 and 0.5.18 to 0.5.23 were read, and 0.5.3 for the speculation part.
    """
    release, given = release_of(version), dashed(flags)
    mib, tp = gpu.memory_mib, whole(given, "tp-size") or 1
    chunk = whole(given, "chunked-prefill-size", least=-1) or prefill_chunk(mib, release)
    if chunk < 0:
        chunk = whole(given, "max-prefill-tokens") or 16384
    reserved = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024
    reserved += _graphs_mib(mib, model, release, given, chunk=chunk)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    reserved += _speculation_mib(str(given.get("speculative-algorithm") or ""), release)
    if release < (0, 5, 10) and given.get("enable-piecewise-cuda-graph"):
        reserved += (whole(given, "piecewise-cuda-graph-max-tokens") or 4096) // 8
    return round((mib - reserved) / mib, 3) * model.vision_fraction


def prefill_chunk(memory_mib: int, release: Release) -> int:
    """`chunked_prefill_size` when unset, tokens, by the smallest GPU's MiB. SGLang 0.5.3-0.5.23."""
    gib = memory_mib / 1024
    if gib < 35:
        return 4096 if gib >= 20 and release >= (0, 5, 23) else 2048
    return 4096 if gib < 60 else 8192 if gib < 160 else 16384


def graph_batch(memory_mib: int, release: Release, tp: int) -> int:
    """The largest batch with a decode graph when unset, by the smallest GPU's MiB. SGLang 0.5.3-0.5.23."""
    gib, few = memory_mib / 1024, tp < 4
    if gib < 20:
        return 8
    if gib < 35:
        if release >= (0, 5, 23):
            return 48 if few else 160
        return (16 if release <= (0, 5, 3) else 24) if few else 80
    if gib < 60:
        return 32 if few else 160
    return 256 if few and gib < 160 else 512


def _graphs_mib(mib: int, model: ModelShape, release: Release, flags: Flags, *, chunk: int) -> float:
    decode = whole(flags, "cuda-graph-max-bs") or graph_batch(mib, release, whole(flags, "tp-size") or 1)
    reserved = 2.0 * decode
    if release < (0, 5, 10) or flags.get("disable-piecewise-cuda-graph"):
        return reserved
    return reserved + (1536 if model.mla_width else 8 * _prefill_graphs(chunk))


def _prefill_graphs(largest: int) -> int:
    steps = (*_STEPS, (4608, largest + 1, 512))
    return sum(max(0, -((start - min(stop, largest + 1)) // step)) for start, stop, step in steps)


def _speculation_mib(algorithm: str, release: Release) -> int:
    if not algorithm or algorithm == "NGRAM" or release >= (0, 5, 14):
        return 0
    if algorithm == "STANDALONE":
        return 6 * 1024
    return 4 * 1024 if release >= (0, 5, 10) else 2 * 1024
