"""Which changes would serve a job best, each with its gain and its cost. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rackhand.capacity.errors import CapacityError
from rackhand.capacity.measured import MEASURED
from rackhand.capacity.outlook import KV_FULL, Launch, Outlook, look_ahead
from rackhand.capacity.rate import Lengths, Point
from rackhand.capacity.read import Flags, FlagValue, dashed
from rackhand.capacity.regimes import release_of
from rackhand.capacity.shapes import ModelShape, conv_bytes, kv_token_bytes, ssm_bytes

OUTSIDE_GIB = 6.0
"""What activations, graphs and workspaces should find outside the pools of a large GPU."""
LEAST_GAIN = 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Flags to set (None: leave out) and what that costs, in words."""

    flags: Flags
    cost: str

    def __str__(self) -> str:
        """As restart-servers and capacity take it: `--set a=1 --set b=false`."""
        values = {None: "false", True: "true", False: "false"}
        given = {k: values[v] if v is None or isinstance(v, bool) else v for k, v in self.flags.items()}
        return " ".join(f"--set {name}={value}" for name, value in given.items())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change with what it brings: `gain` is the token rate's growth as a share, or the running requests' where
    nothing is known of the rate."""

    change: Change
    outlook: Outlook
    gain: float


def advise(
    launch: Launch, lengths: Lengths, points: Sequence[Point] = MEASURED, *, most: int = 3
) -> tuple[Advice, ...]:
    """The best single changes for this job's lengths, best first; none that gains less than 1 %.

    Changes that SGLang would refuse, that don't fit, that leave too little outside the pools or would make it retract
    requests are left out.
    """
    before = look_ahead(launch, lengths, points)
    found: list[Advice] = []
    for change in changes(launch, lengths, before):
        after = _after(launch, change, lengths, points)
        if after is None or _is_tight(before, after):
            continue
        gain = _value(after) / _value(before) - 1
        if gain >= LEAST_GAIN:
            found.append(Advice(change=_as_told(change, launch), outlook=after, gain=gain))
    best: dict[str, Advice] = {}
    for one in sorted(found, key=lambda advice: advice.gain, reverse=True):
        best.setdefault(next(iter(one.change.flags)), one)
    return tuple(best.values())[:most]


def changes(launch: Launch, lengths: Lengths, now: Outlook) -> Iterator[Change]:
    """Everything worth trying, refused or not."""
    given, release = dashed(launch.flags), release_of(launch.version)
    model = launch.model
    if model.hybrid:
        yield from _state_changes(given, release, now)
        yield from _ratios(model, lengths, now)
    yield from _memory_changes(launch, now)
    if given.get("speculative-algorithm"):
        off = {name: None for name in given if name.startswith("speculative-")}
        yield Change(flags={"speculative-algorithm": None, **off}, cost="latency: no drafts; their memory comes back")
    if now.limit == "asked":
        more = "memory: in 0.5.8-0.5.12 speculation reserves for the asked number" if now.capacity.draft_tokens else ""
        fits = int(now.capacity.kv_tokens * KV_FULL // lengths.resident)
        for asked in (None, fits):
            yield Change(flags={"max-running-requests": asked}, cost=more or "latency: more requests share a step")
    if now.capacity.reserved_unused_gib > 1:
        fits = max(1, now.capacity.slots // max(1, now.capacity.slots_per_request))
        yield Change(flags={"max-running-requests": fits}, cost="none: more never ran")


def _state_changes(given: Flags, release: tuple[int, int, int], now: Outlook) -> Iterator[Change]:
    if now.capacity.state_dtype == "float32" and not given.get("enable-linear-replayssm-spec"):
        yield Change(flags={"mamba-ssm-dtype": "bfloat16"}, cost="quality: the state's numerics change, check answers")
    speculation = bool(given.get("speculative-algorithm"))
    name = "mamba-radix-cache-strategy" if release >= (0, 5, 14) else "mamba-scheduler-strategy"
    if now.capacity.strategy != "no_buffer" and not speculation and release >= (0, 5, 8):
        extra: dict[str, FlagValue] = {"disable-overlap-schedule": True} if release >= (0, 5, 14) else {}
        yield Change(flags={_key(name): "no_buffer", **extra}, cost="overlap off: each step is slower; measure it")
    if now.capacity.strategy != "extra_buffer_lazy" and release >= (0, 5, 13):
        yield Change(flags={_key(name): "extra_buffer_lazy"}, cost="none known; overlap has to stay on")
    if speculation and release >= (0, 5, 17) and now.capacity.state_dtype == "float32":
        yield Change(flags={"enable-linear-replayssm-spec": True}, cost="compute: rejected drafts are replayed")
    if now.capacity.slots_per_request > 1:
        for running in range(32, 513, 16):
            off: dict[str, FlagValue] = {"disable-radix-cache": True, "max-running-requests": running}
            if release < (0, 5, 14):
                off["mamba-scheduler-strategy"] = "no_buffer"
            off["max-mamba-cache-size"] = None
            yield Change(flags=off, cost="prefill: shared prefixes are computed anew for every request")


def _memory_changes(launch: Launch, now: Outlook) -> Iterator[Change]:
    spare = now.capacity.outside_gib - OUTSIDE_GIB
    if spare > 0.5:
        raised = int(100 * (now.capacity.mem_fraction_static + spare / launch.gpu.free_gib)) / 100
        if raised > now.capacity.mem_fraction_static:
            cost = f"headroom: {OUTSIDE_GIB:.0f} GiB stay for activations and graphs; look at available_gpu_mem"
            yield Change(flags={"mem-fraction-static": min(0.95, raised)}, cost=cost)
    if now.capacity.kv_dtype in ("auto", "bf16", "bfloat16"):
        yield Change(flags={"kv-cache-dtype": "fp8_e4m3"}, cost="quality: rounded keys and values, check answers")


def _ratios(model: ModelShape, lengths: Lengths, now: Outlook) -> Iterator[Change]:
    balanced = balanced_ratio(
        model,
        lengths,
        per_request=now.capacity.slots_per_request,
        drafts=now.capacity.draft_tokens,
        state_dtype=now.capacity.state_dtype,
        kv_dtype=now.capacity.kv_dtype,
    )
    cost = "KV tokens: long answers and cached prefixes find less room"
    for part in (1.0, 0.75, 0.5, 0.25):
        ratio = round(part * balanced, 1)
        if ratio > 0:
            yield Change(flags={"mamba-full-memory-ratio": ratio, "max-mamba-cache-size": None}, cost=cost)


def balanced_ratio(
    model: ModelShape, lengths: Lengths, *, per_request: int, drafts: int, state_dtype: str, kv_dtype: str
) -> float:
    """The mamba_full_memory_ratio at which state and KV fill at the same number of requests. SGLang 0.5.4-0.5.23.

    (S + D) x slot / (L x KV token), with L the mean tokens a running request holds, and a tenth of room for KV.
    """
    slot = ssm_bytes(model, state_dtype) + conv_bytes(model)
    return (per_request + drafts) * slot / (1.1 * lengths.resident * kv_token_bytes(model, kv_dtype))


def _is_tight(before: Outlook, after: Outlook) -> bool:
    """Too little outside the pools, or KV tokens that fill before the running requests are reached."""
    if after.capacity.outside_gib < min(OUTSIDE_GIB - 0.5, before.capacity.outside_gib):
        return True
    return after.limit == "kv" and before.limit != "kv"


def _after(launch: Launch, change: Change, lengths: Lengths, points: Sequence[Point]) -> Outlook | None:
    flags = {name: value for name, value in {**dashed(launch.flags), **change.flags}.items() if value is not None}
    try:
        return look_ahead(dataclasses.replace(launch, flags=flags), lengths, points)
    except CapacityError:
        return None


def _as_told(change: Change, launch: Launch) -> Change:
    """Without what is so already, and in the names of that release."""
    given = dashed(launch.flags)
    flags = {name: value for name, value in change.flags.items() if given.get(name) != value}
    if release_of(launch.version) >= (0, 5, 14):
        flags = {name.replace("mamba-scheduler", "mamba-radix-cache"): value for name, value in flags.items()}
    return dataclasses.replace(change, flags=flags)


def _key(name: str) -> str:
    return next(iter(dashed({name: None})))


def _value(outlook: Outlook) -> float:
    return float(outlook.steady_running) if outlook.rate is None else outlook.rate.tokens_per_s
