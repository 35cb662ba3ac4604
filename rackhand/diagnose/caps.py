"""What fills a server, and what its cap comes from: the figures of slots, flags and tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackhand.contract.watch import GpuSample

DEFAULT_CHUNK = 4096


def cap_figures(gpu: GpuSample, found: Mapping[str, float]) -> dict[str, float]:
    """What fills the server, and what its cap comes from: slots // slots_each, what was asked, or tokens."""
    more: dict[str, float] = dict(_flag_figures(gpu.flags))
    cap, running = found.get("cap"), found.get("running")
    if cap and running is not None:
        more |= {"fill": running / cap, "empty": max(0.0, cap - running)}
        if running > 0:
            more["gain"] = cap / running
            for name in ("kv", "mamba"):
                if name in found:
                    more[f"{name}_at_cap"] = min(1.0, found[name] * cap / running)
    if gpu.slots is not None:
        more["slots"] = gpu.slots
        each = more.get("slots_each") or (_slots_each(gpu.slots, round(cap)) if cap else None)
        if each:
            more |= {"slots_each": each, "cap_by_slots": gpu.slots // each, "cap_no_buffer": gpu.slots // 3}
    elif "slots_each" in more:
        more["slots_each_told"] = more["slots_each"]
    if "slots_each" in more and cap:
        more.setdefault("cap_no_buffer", cap * more["slots_each"] // 3)
        more["gain_no_buffer"] = more["cap_no_buffer"] / cap
    return more | _cap_source(cap, more)


def _cap_source(cap: float | None, more: Mapping[str, float]) -> dict[str, float]:
    """One of capped_by_slots, capped_by_asked, capped_by_tokens, cap_unexplained is 1 once the cap is known."""
    if not cap:
        return {}
    by_slots, asked = more.get("cap_by_slots"), more.get("asked")
    is_asked = asked is not None and abs(cap - asked) < 0.5
    if by_slots is not None and abs(cap - by_slots) < 0.5:
        return {"capped_by_slots": 1.0}
    if is_asked:
        return {"capped_by_asked": 1.0}
    if by_slots is None and "slots_each" in more:
        return {"capped_by_slots": 1.0}
    return {"capped_by_tokens": 1.0} if by_slots is not None and cap < by_slots else {"cap_unexplained": 1.0}


def _slots_each(slots: int, cap: int) -> int | None:
    """How many slots a request takes, by the cap that came of them: 5, 4, 3 or 1; None when no such number fits."""
    return next((each for each in (5, 4, 3, 1) if slots // each == cap), None)


def _flag_figures(flags: Mapping[str, str]) -> dict[str, float]:
    """Nothing without flags: then nothing is known of them."""
    if not flags:
        return {}
    chunk = int(flags.get("chunked-prefill-size", "0")) if flags.get("chunked-prefill-size", "").isdigit() else 0
    chunk = chunk or DEFAULT_CHUNK
    found: dict[str, float] = {
        "bf16_state": float(flags.get("mamba-ssm-dtype", "") == "bfloat16"),
        "drafts": float("speculative-algorithm" in flags),
        "fp8_kv": float(flags.get("kv-cache-dtype", "").startswith(("fp8", "fp4", "mxfp8", "nvfp4"))),
        "chunk": chunk,
        "two_chunks": 2 * chunk,
        "four_chunks": 4 * chunk,
    }
    if flags.get("max-running-requests", "").isdigit():
        found["asked"] = int(flags["max-running-requests"])
    strategy = flags.get("mamba-radix-cache-strategy") or flags.get("mamba-scheduler-strategy")
    each = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}.get(strategy or "")
    if strategy == "extra_buffer" and "disable-overlap-schedule" in flags:
        each = 4
    if "disable-radix-cache" in flags:
        each = 1
    return found | ({"slots_each": each} if each else {})
