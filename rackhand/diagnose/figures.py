"""Samples of one host → the figures that rules are asked about, for each GPU and for the host. Pure.

Means over the window unless a name says otherwise. A figure that no sample has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from rackhand.contract.watch import GpuSample, JobSample, Sample
from rackhand.steady import relative_change

SETTLED_CHANGE = 0.10
"""Running requests whose fitted line changes by less of its mean over the window are settled: no ramp, no drain."""
LEAST_SAMPLES = 4
EQUAL_RUNNING = 0.25
"""GPUs are compared with those that run as many requests, within this share."""
DEFAULT_CHUNK = 4096
WRITTEN_WITHIN_S = 60.0
"""A generator at work, paused or not, writes its progress every few seconds."""
LIVE = ("running", "draining", "stalled")
MEANS = {
    "running": "running", "cap": "cap", "queue": "queue", "kv": "kv_usage", "mamba": "mamba_usage", "tok_s": "tok_s",
    "accept_len": "accept_len", "util_pct": "util_pct", "power_w": "power_w", "pending_tokens": "pending_tokens",
    "temperature_c": "temperature_c",
}  # fmt: skip
HOST_MEANS = ("cpu_pct", "iowait_pct", "cpu_pressure_pct", "io_pressure_pct")
THROTTLES = {
    "thermal": frozenset({"thermal", "hw_thermal", "hw_slowdown"}),
    "power_brake": frozenset({"power_brake"}),
    "power_cap": frozenset({"power_cap"}),
}


def gpu_figures(window: Sequence[Sample]) -> dict[int, dict[str, float]]:
    """By GPU, of those in the newest sample."""
    if not window:
        return {}
    gpus = [gpu.gpu for gpu in window[-1].gpus]
    rows = {gpu: [(s.time, g) for s in window for g in s.gpus if g.gpu == gpu] for gpu in gpus}
    found = {gpu: _own(rows[gpu]) for gpu in gpus}
    for at, gpu in enumerate(gpus):
        found[gpu] |= _feeding(window[-1], at, len(gpus))
        found[gpu] |= _among_peers(found, gpu)
    return found


def host_figures(window: Sequence[Sample], gpus: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Of the host, with the means over its GPUs where a GPU's figure isn't the host's own."""
    found = mean_figures(list(gpus.values()))
    for name in HOST_MEANS:
        _put_mean(found, name, [getattr(s.host, name) for s in window])
    if window:
        last = window[-1].host
        found["xids"] = len(last.xids)
        if last.disk_free_gib is not None:
            found["disk_free_gib"] = last.disk_free_gib
        paused = _paused(window)
        found["paused"] = float(paused is not None)
        if paused is not None and paused.age_s is not None:
            found["paused_age_s"] = paused.age_s
    if util := found.get("util_pct"):
        found["util_gain"] = 100 / util
    return found


def pause_words(window: Sequence[Sample]) -> dict[str, str]:
    """Which job is paused, and what its generator says of it."""
    paused = _paused(window)
    if paused is None or paused.progress is None:
        return {}
    return {"paused_job": paused.name, "paused_for": str(paused.progress.get("message") or "it doesn't say why")}


def _paused(window: Sequence[Sample]) -> JobSample | None:
    """A progress.json that nobody writes any more is what a generator left that ended while it was paused."""
    for job in window[-1].jobs if window else ():
        is_fresh = job.age_s is None or job.age_s < WRITTEN_WITHIN_S
        if job.progress is not None and job.progress.get("status") == "paused" and is_fresh:
            return job
    return None


def mean_figures(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of the figures that all of them have."""
    if not several:
        return {}
    names = set(several[0]).intersection(*several[1:])
    return {name: fmean(figures[name] for figures in several) for name in sorted(names)}


def projected(figures: Mapping[str, float]) -> dict[str, float]:
    """The same server with as many requests as its cap allows; nothing is known of a queue then."""
    found = {**figures, "projected": 1.0, "fill": 1.0, "retractions": 0.0}
    found.pop("queue", None)
    for name in ("kv", "mamba"):
        if f"{name}_at_cap" in figures:
            found[name] = figures[f"{name}_at_cap"]
    if "cap" in figures:
        found["running"] = figures["cap"]
    return found


def _own(row: Sequence[tuple[float, GpuSample]]) -> dict[str, float]:
    gpus = [gpu for _, gpu in row]
    last, live = gpus[-1], [gpu for gpu in gpus if gpu.state in LIVE]
    found: dict[str, float] = {
        "samples": len(gpus),
        "seconds": row[-1][0] - row[0][0],
        "live": float(last.state in LIVE),
        "down": float(last.state == "dead"),
        "stalled": float(last.state == "stalled"),
        "draining": float(last.state == "draining"),
        "retractions": max(0, last.retractions - gpus[0].retractions),
    }
    for name, field in MEANS.items():
        _put_mean(found, name, [getattr(gpu, field) for gpu in live])
    for name, reasons in THROTTLES.items():
        found[name] = fmean(bool(reasons & {*gpu.throttle}) for gpu in gpus)
    _put_mean(found, "graph_off", [None if gpu.graph is None else float(not gpu.graph) for gpu in live])
    if last.still_s is not None:
        found["still_s"] = last.still_s
    if found["seconds"] > 0:
        found["retractions_per_min"] = 60 * found["retractions"] / max(found["seconds"], 10)
    _put_extremes(found, live)
    found["settled"] = float(_is_settled(row))
    return found | _capacity(last, found)


def _put_extremes(found: dict[str, float], live: Sequence[GpuSample]) -> None:
    for name in ("running", "queue"):
        values = [getattr(gpu, name) for gpu in live if getattr(gpu, name) is not None]
        if values:
            found[f"{name}_max"] = max(values)


def _is_settled(row: Sequence[tuple[float, GpuSample]]) -> bool:
    running = [(at, float(gpu.running)) for at, gpu in row if gpu.running is not None and gpu.state in LIVE]
    if len(running) < LEAST_SAMPLES or len(running) < len(row) * 2 / 3:
        return False
    return abs(relative_change(running)) <= SETTLED_CHANGE


def _capacity(gpu: GpuSample, found: Mapping[str, float]) -> dict[str, float]:
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


def _feeding(sample: Sample, at: int, count: int) -> dict[str, float]:
    """What generators send to the `at`-th of `count` GPUs; to the mean GPU when servers and GPUs don't match."""
    servers: list[tuple[str, Mapping[str, Any]]] = []
    for job in sample.jobs:
        if job.progress is None or job.progress.get("status") not in ("running", "draining"):
            continue
        named = job.progress.get("servers")
        servers += [(url, s) for url, s in (named if isinstance(named, dict) else {}).items() if isinstance(s, dict)]
    servers.sort(key=lambda pair: (len(pair[0]), pair[0]))
    chosen = [servers[at]] if len(servers) == count else servers
    limits = [s["limit"] for _, s in chosen if isinstance(s.get("limit"), int)]
    flights = [s["in_flight"] for _, s in chosen if isinstance(s.get("in_flight"), int)]
    if not limits or not sum(limits):
        return {}
    return {"sent": fmean(limits), "in_flight_share": sum(flights) / sum(limits)}


def _among_peers(all_gpus: Mapping[int, Mapping[str, float]], gpu: int) -> dict[str, float]:
    """Against the other GPUs that run as many requests."""
    mine = all_gpus[gpu]
    running, rate = mine.get("running"), mine.get("tok_s")
    if not running or rate is None or not mine["live"]:
        return {}
    peers = [
        other
        for number, other in all_gpus.items()
        if number != gpu and other["live"] and abs(other.get("running", 0) - running) <= EQUAL_RUNNING * running
    ]
    rates = [other["tok_s"] for other in peers if other.get("tok_s")]
    if not rates:
        return {"peers": 0.0}
    usual = median(rates)
    beyond = mine["power_cap"] - median([other["power_cap"] for other in peers])
    found = {"peers": float(len(rates)), "peers_tok_s": usual, "rate_of_peers": rate / usual}
    return found | {"power_cap_beyond_peers": beyond} | ({"peers_gain": usual / rate} if rate else {})


def _put_mean(found: dict[str, float], name: str, values: Sequence[float | None]) -> None:
    known = [value for value in values if value is not None]
    if known:
        found[name] = fmean(known)
