"""Samples of one host → the figures that rules are asked about, for each GPU and for the host. Pure.

Means over the window unless a name says otherwise. A figure that no sample has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rackhand.contract.watch import LIVE, GpuSample, JobSample, Sample
from rackhand.diagnose.caps import cap_figures
from rackhand.diagnose.present import present
from rackhand.steady import relative_trend

SETTLED_CHANGE = 0.10
"""Running requests whose fitted line changes by less of its mean over the window are settled: no ramp, no drain. So are
those that go up and down: they cross their mean LEAST_CROSSINGS times, and the line's rise is less than NO_TREND of its
standard errors. One step up or down crosses once."""
NO_TREND, LEAST_CROSSINGS = 3.0, 4
LEAST_SAMPLES = 4
EQUAL_RUNNING = 0.25
"""GPUs are compared with those that run as many requests, within this share."""
ARRIVED = 0.9
"""A generator that keeps up has this share of what it may send at the server; the rest is on its way."""
WRITTEN_WITHIN_S = 60.0
"""A generator at work, paused or not, writes its progress every few seconds."""
MEANS = {
    "running": "running", "cap": "cap", "queue": "queue", "kv": "kv_usage", "mamba": "mamba_usage", "tok_s": "tok_s",
    "accept_len": "accept_len", "power_w": "power_w", "pending_tokens": "pending_tokens",
    "temperature_c": "temperature_c",
}  # fmt: skip
OF_GPU = frozenset({"util_pct", "thermal", "power_brake", "power_cap", "power_w", "temperature_c", "graph_off"})
"""Of a server that runs on another device these say nothing."""
HOST_MEANS = ("cpu_pct", "iowait_pct", "cpu_pressure_pct", "io_pressure_pct")
STILL_S = 20.0
"""A server whose requests have not moved for this long is not at work, whatever it counts as running."""


def gpu_figures(window: Sequence[Sample]) -> dict[int, dict[str, float]]:
    """By GPU, of those in the newest sample."""
    if not window:
        return {}
    gpus = [gpu.gpu for gpu in window[-1].gpus]
    rows = {gpu: [(s.time, g) for s in window for g in s.gpus if g.gpu == gpu] for gpu in gpus}
    found = {gpu: _own(rows[gpu]) for gpu in gpus}
    for at, gpu in enumerate(gpus):
        found[gpu] |= _feeding(window[-1], at, len(gpus))
        found[gpu] |= _arrival(found[gpu])
        equals = {other: found[other] for other in gpus if rows[other][-1][1].flags == rows[gpu][-1][1].flags}
        found[gpu] |= _among_peers(equals, gpu)
    return found


def host_figures(window: Sequence[Sample], gpus: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Of the host, with the means over the GPUs at work where a GPU's figure isn't the host's own: one that has
    nothing to do waits for nobody."""
    found = mean_figures([own for own in gpus.values() if _is_at_work(own)])
    for name in HOST_MEANS:
        _put_mean(found, name, [getattr(s.host, name) for s in window])
    if window:
        last = window[-1].host
        found |= {"samples": len(window), "seconds": window[-1].time - window[0].time}
        found["xids"] = len(last.xids)
        if last.disk_free_gib is not None:
            found["disk_free_gib"] = last.disk_free_gib
        found["killed"] = float(_first_with(window, "killed") is not None)
        found["suspended"] = float(_first_with(window, "suspended") is not None)
        paused = _first_with(window, "paused")
        found["paused"] = float(paused is not None)
        if paused is not None and paused.age_s is not None:
            found["paused_age_s"] = paused.age_s
    if util := found.get("util_pct"):
        found["util_gain"] = 100 / util
    return found


def host_words(window: Sequence[Sample]) -> dict[str, str]:
    """Which job is paused, killed or suspended and what is known of it; the Xids with the GPUs' PCI addresses."""
    found: dict[str, str] = {}
    if window and window[-1].host.xids:
        found["xid_lines"] = ", ".join(window[-1].host.xids)
    for status in ("paused", "killed", "suspended"):
        job = _first_with(window, status)
        if job is not None and job.progress is not None:
            message = str(job.progress.get("message") or "it doesn't say why")
            found |= {f"{status}_job": job.name, f"{status}_for": message}
    return found


def gpu_words(window: Sequence[Sample], gpus: Sequence[int]) -> dict[str, str]:
    """Why those that are down ended, as far as it is known."""
    causes = {gpu.cause: None for gpu in (window[-1].gpus if window else ()) if gpu.gpu in gpus and gpu.cause}
    return {"down_for": "; ".join(causes)} if causes else {}


def _first_with(window: Sequence[Sample], status: str) -> JobSample | None:
    return next((job for job in (window[-1].jobs if window else ()) if _status(job) == status), None)


def _status(job: JobSample) -> str:
    """A progress.json that nobody writes any more says nothing of now: who wrote it can't be known there (a foreign
    generator), or it would be called killed."""
    status = str(job.progress.get("status", "")) if job.progress is not None else ""
    is_fresh = job.age_s is None or job.age_s < WRITTEN_WITHIN_S
    return status if is_fresh or status in ("killed", "suspended") else ""


def _is_at_work(figures: Mapping[str, float]) -> bool:
    return figures.get("running_now", 0.0) > 0 and figures.get("still_s", 0.0) < STILL_S


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
    _put_mean(found, "util_pct", [gpu.util_pct for gpu in live if gpu.running])
    by_smi = [gpu.throttle for gpu in gpus if gpu.throttle or gpu.util_pct is not None or gpu.power_w is not None]
    found["thermal"] = fmean(map(_is_hot, by_smi)) if by_smi else 0.0
    for name in ("power_brake", "power_cap"):
        found[name] = fmean(name in throttle for throttle in by_smi) if by_smi else 0.0
    if last.state in LIVE and last.running is not None:
        found["running_now"] = last.running
    _put_mean(found, "graph_off", [None if gpu.graph is None else float(not gpu.graph) for gpu in live])
    if last.still_s is not None:
        found["still_s"] = last.still_s
    if found["seconds"] > 0:
        found["retractions_per_min"] = 60 * found["retractions"] / max(found["seconds"], 10)
    _put_extremes(found, live)
    found["settled"] = float(_is_settled(row))
    found |= present(gpus)
    if found.get("on_gpu") == 0:
        found = {name: value for name, value in found.items() if name not in OF_GPU}
    return found | cap_figures(last, found)


def _is_hot(throttle: Sequence[str]) -> bool:
    """hw_slowdown stands beside hw_thermal and beside power_brake; alone it is taken for heat, its usual cause."""
    return (
        "thermal" in throttle
        or "hw_thermal" in throttle
        or ("hw_slowdown" in throttle and "power_brake" not in throttle)
    )


def _put_extremes(found: dict[str, float], live: Sequence[GpuSample]) -> None:
    for name in ("running", "queue"):
        values = [getattr(gpu, name) for gpu in live if getattr(gpu, name) is not None]
        if values:
            found[f"{name}_max"] = max(values)


def _is_settled(row: Sequence[tuple[float, GpuSample]]) -> bool:
    running = [(at, float(gpu.running)) for at, gpu in row if gpu.running is not None and gpu.state in LIVE]
    if len(running) < LEAST_SAMPLES or len(running) < len(row) * 2 / 3:
        return False
    change, error = relative_trend(running)
    if abs(change) <= SETTLED_CHANGE:
        return True
    mean = fmean(value for _, value in running)
    crossings = sum((one > mean) != (other > mean) for (_, one), (_, other) in pairwise(running))
    return crossings >= LEAST_CROSSINGS and abs(change) <= NO_TREND * error


def _feeding(sample: Sample, at: int, count: int) -> dict[str, float]:
    """What generators send to the `at`-th of `count` GPUs; to the mean GPU when servers and GPUs don't match."""
    servers: list[tuple[str, Mapping[str, Any]]] = []
    for job in sample.jobs:
        if job.progress is None or _status(job) not in ("running", "draining"):
            continue
        named = job.progress.get("servers")
        servers += [(url, s) for url, s in (named if isinstance(named, dict) else {}).items() if isinstance(s, dict)]
    servers.sort(key=lambda pair: (len(pair[0]), pair[0]))
    chosen = [servers[at]] if len(servers) == count else servers
    limits = [s["limit"] for _, s in chosen if isinstance(s.get("limit"), int)]
    if not limits or not sum(limits):
        return {}
    return {"sent": fmean(limits)}


def _arrival(own: Mapping[str, float]) -> dict[str, float]:
    """How much of what may be sent the server has, and the slots that stay empty even with nothing on its way. By the
    server's count: a generator that stands still counts what was answered meanwhile as in flight."""
    sent, cap = own.get("sent"), own.get("cap")
    if not sent or cap is None:
        return {"client_lags": 0.0}
    share = (own.get("running", 0.0) + own.get("queue", 0.0)) / sent
    found = {"arrived_share": share, "client_lags": float(sent >= cap and share < ARRIVED)}
    return found | ({"empty": cap - sent} if sent < cap else {})


def _among_peers(equals: Mapping[int, Mapping[str, float]], gpu: int) -> dict[str, float]:
    """Against the others with the same flags that run as many requests, settled: rates of a ramp say nothing."""
    mine = equals[gpu]
    running, rate = mine.get("running"), mine.get("tok_s")
    if not running or rate is None or not mine["live"] or not mine["settled"]:
        return {}
    peers = [
        other
        for number, other in equals.items()
        if number != gpu
        and other["live"]
        and other["settled"]
        and abs(other.get("running", 0) - running) <= EQUAL_RUNNING * running
    ]
    rates = [other["tok_s"] for other in peers if other.get("tok_s")]
    if not rates:
        return {"peers": 0.0}
    usual = median(rates)
    found = {"peers": float(len(rates)), "peers_tok_s": usual, "rate_of_peers": rate / usual}
    if "power_cap" in mine:
        found["power_cap_beyond_peers"] = mine["power_cap"] - median([other["power_cap"] for other in peers])
    return found | ({"peers_gain": usual / rate} if rate else {})


def _put_mean(found: dict[str, float], name: str, values: Sequence[float | None]) -> None:
    known = [value for value in values if value is not None]
    if known:
        found[name] = fmean(known)
