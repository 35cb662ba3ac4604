"""How many requests may run: state slots per request, and the terms of max_running_requests. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rackhand.capacity.regimes import Release

CappedBy: TypeAlias = Literal["asked", "tokens", "slots"]
Strategy: TypeAlias = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]
BASE_SLOTS_PER_REQUEST = 3


def slots_per_request(
    release: Release,
    strategy: Strategy,
    *,
    radix: bool,
    overlap: bool,
    speculation: bool = False,
    skips_decode_lock: bool = False,
) -> int:
    """State slots that one running request needs (S). SGLang 0.5.3-0.5.23.

    1 without radix cache (0.5.3 has none for these models); 3 with no_buffer; 5 with extra_buffer under the overlap
    scheduler, 4 without; 4 lazy (0.5.13+). 0.5.7 knows 5, or 4 with extra_buffer and speculation.
    SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK (0.5.17+) takes one off the buffered ones.
    """
    if not radix or release <= (0, 5, 3):
        return 1
    if release == (0, 5, 7):
        return BASE_SLOTS_PER_REQUEST + (1 if speculation and strategy == "extra_buffer" else 2)
    if strategy == "no_buffer" or release < (0, 5, 7):
        return BASE_SLOTS_PER_REQUEST
    base = BASE_SLOTS_PER_REQUEST - (1 if skips_decode_lock and release >= (0, 5, 17) else 0)
    return base + (2 if overlap and strategy == "extra_buffer" else 1)


def estimated_running(kv_tokens: int, context_len: int) -> int:
    """E = clamp(floor(tokens / context length x 512), 2048, 4096). SGLang 0.5.3-0.5.23."""
    return min(max(int(kv_tokens / context_len * 512), 2048), 4096)


def cap_running(
    release: Release, *, asked: int | None, kv_tokens: int, context_len: int, by_slots: int | None
) -> tuple[int, CappedBy]:
    """max_running_requests, and which term decides it. `by_slots` is slots // S, None without a state pool.

    Not asked: min(E, tokens // 2). Asked: that number up to 0.5.7, min(asked, E) in 0.5.8-0.5.13,
    min(asked, tokens // 2) in 0.5.14-0.5.23. Then at most `by_slots`.
    """
    by_tokens = estimated_running(kv_tokens, context_len)
    if asked is None:
        by_tokens = min(by_tokens, kv_tokens // 2)
    elif release >= (0, 5, 14):
        by_tokens = kv_tokens // 2
    elif release <= (0, 5, 7):
        by_tokens = asked
    running = min(by_tokens, asked if asked is not None else by_tokens)
    capped_by: CappedBy = "asked" if running == asked else "tokens"
    if by_slots is not None and by_slots < running:
        return by_slots, "slots"
    return running, capped_by
