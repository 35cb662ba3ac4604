"""What fills a server, and what its cap comes from: the figures of slots, flags and tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rackhand.contract.watch import GpuSample

DEFAULT_CHUNK = 4096
EXAMPLE = {"mem-fraction-static": 0.90, "mamba-full-memory-ratio": 1.2}
"""What advice names as larger values; a server that has one of them already gets no such advice."""


def cap_figures(gpu: GpuSample, found: Mapping[str, float]) -> dict[str, float]:
    """What fills the server, and what its cap comes from: slots // slots_each, what was asked, or tokens."""
    more: dict[str, float] = dict(_flag_figures(gpu.flags))
    if found.get("has_states") == 0:
        more.pop("slots_each", None)
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


def _whole(flags: Mapping[str, str], name: str) -> int | None:
    return int(flags[name]) if flags.get(name, "").isdecimal() else None


def _share(flags: Mapping[str, str], name: str) -> float:
    """0 when it isn't given, or isn't a number."""
    try:
        return float(flags[name])
    except (KeyError, ValueError):
        return 0.0


def _largest_graph(flags: Mapping[str, str]) -> int | None:
    """The most requests that a captured graph was asked to hold."""
    for end in ("-decode", ""):
        sizes = [int(size) for size in flags.get(f"cuda-graph-bs{end}", "").split() if size.isdecimal()]
        if sizes or (most := _whole(flags, f"cuda-graph-max-bs{end}")):
            return max(sizes) if sizes else most
    return None


def _flag_figures(flags: Mapping[str, str]) -> dict[str, float]:
    """Nothing without flags: then nothing is known of them."""
    if not flags:
        return {}
    chunk = _whole(flags, "chunked-prefill-size") or DEFAULT_CHUNK
    found: dict[str, float] = {
        "bf16_state": float(flags.get("mamba-ssm-dtype", "") == "bfloat16"),
        "fp8_kv": float(flags.get("kv-cache-dtype", "").startswith(("fp8", "fp4", "mxfp8", "nvfp4"))),
        "chunk": chunk,
        "two_chunks": 2 * chunk,
        "four_chunks": 4 * chunk,
    }
    if asked := _whole(flags, "max-running-requests"):
        found["asked"] = asked
    if (drafted := _whole(flags, "speculative-num-draft-tokens")) is not None:
        found["draft_tokens"] = drafted
    if graph_max := _largest_graph(flags):
        found["graph_max"] = graph_max
    found["past_example"] = float(any(_share(flags, name) >= value for name, value in EXAMPLE.items()))
    strategy = flags.get("mamba-radix-cache-strategy") or flags.get("mamba-scheduler-strategy")
    each = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}.get(strategy or "")
    if strategy == "extra_buffer" and "disable-overlap-schedule" in flags:
        each = 4
    if "disable-radix-cache" in flags:
        each = 1
    return found | ({"slots_each": each} if each else {})
