"""What an operator should know before launching, in sentences. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from rackhand.capacity.errors import CapacityError
from rackhand.capacity.flag_names import IN_BOTH, ONLY_0_5_11, ONLY_0_5_23
from rackhand.capacity.outlook import Launch, Outlook
from rackhand.capacity.predict import predict
from rackhand.capacity.read import dashed
from rackhand.capacity.regimes import Release, release_of

RENAMED: tuple[tuple[str, str, Release, Release], ...] = (
    ("mamba-scheduler-strategy", "mamba-radix-cache-strategy", (0, 5, 14), (0, 5, 20)),
    ("enable-gdn-replayssm-spec", "enable-linear-replayssm-spec", (0, 5, 17), (0, 5, 20)),
    ("cuda-graph-max-bs", "cuda-graph-max-bs-decode", (0, 5, 14), (0, 5, 20)),
)
"""Old name, new name, the first release with the new one, the first without the old one."""
SINCE: dict[str, Release] = {
    "mamba-full-memory-ratio": (0, 5, 4),
    "mamba-scheduler-strategy": (0, 5, 7),
    "mamba-track-interval": (0, 5, 7),
    "mamba-backend": (0, 5, 9),
    "linear-attn-backend": (0, 5, 10),
    "mamba-radix-cache-strategy": (0, 5, 14),
    "enable-int8-mamba-checkpoint": (0, 5, 14),
    "enable-linear-replayssm": (0, 5, 15),
    "enable-unified-memory": (0, 5, 15),
    "enable-gdn-replayssm-spec": (0, 5, 16),
    "enable-linear-replayssm-spec": (0, 5, 17),
    "mamba-max-states-per-path": (0, 5, 17),
}
"""Flags and the first release that knows them."""
UNSIZED = ("enable-unified-memory", "enable-int8-mamba-checkpoint", "enable-hierarchical-cache", "enable-lmcache")
HEADROOM_GIB = 3.0


def warn(launch: Launch, outlook: Outlook, *, gpu_totals_mib: tuple[int, ...] = ()) -> tuple[str, ...]:
    """One sentence for each thing that isn't as the flags suggest. `gpu_totals_mib` are all GPUs of the host."""
    return (*_of_flags(launch), *_of_sizes(launch, outlook), *_of_host(launch, gpu_totals_mib))


def _of_flags(launch: Launch) -> Iterator[str]:
    release, version = release_of(launch.version), launch.version
    given = {name.lstrip("-").replace("_", "-") for name, value in launch.flags.items() if value is not None}
    for old, new, since, gone in RENAMED:
        if old in given and release >= since:
            state = "is gone" if release >= gone else "is deprecated"
            yield f"--{old} {state} in {version}: its name is --{new} (rackhand writes that one)"
        if new in given and release < since and release >= SINCE.get(old, release):
            yield f"--{new} is unknown to {version}: its name there is --{old} (rackhand writes that one)"
    for name in sorted(given):
        if name in SINCE and release < SINCE[name] and not any(name == new for _, new, _, _ in RENAMED):
            known = ".".join(map(str, SINCE[name]))
            yield f"--{name} is unknown to {version}, which ends with status 2; it is there from {known} on"
    yield from _of_names(sorted(given.difference(SINCE, *((old, new) for old, new, _, _ in RENAMED))), launch.version)
    for name in sorted(given.intersection(UNSIZED)):
        yield f"--{name} changes the pools in a way that isn't modelled: expect other sizes"


def _of_names(names: Iterable[str], version: str) -> Iterator[str]:
    """Judged by the two releases whose flags are all known; between them only what both know is certain."""
    release = release_of(version)
    for name in names:
        if name in ONLY_0_5_23 and release <= (0, 5, 11):
            yield f"--{name} is unknown to {version}, which ends with status 2; it came after 0.5.11"
        elif name in ONLY_0_5_11 and release >= (0, 5, 23):
            yield f"--{name} is gone in {version}, which ends with status 2"
        elif name in ONLY_0_5_23 | ONLY_0_5_11 and (0, 5, 11) < release < (0, 5, 23):
            verb = "came" if name in ONLY_0_5_23 else "went"
            yield f"--{name} {verb} between 0.5.11 and 0.5.23; restart-servers asks the installed {version} about it"
        elif name not in IN_BOTH | ONLY_0_5_23 | ONLY_0_5_11:
            near = difflib.get_close_matches(name, IN_BOTH | ONLY_0_5_23 | ONLY_0_5_11, n=1)
            meant = f"; did you mean --{near[0]}" if near else ""
            yield f"--{name} is no flag of SGLang 0.5.11 or 0.5.23: expect it to end with status 2{meant}"


def _of_sizes(launch: Launch, outlook: Outlook) -> Iterator[str]:
    found, given, release = outlook.capacity, dashed(launch.flags), release_of(launch.version)
    asked = given.get("max-running-requests")
    if asked is not None and int(asked) > found.max_running_requests:
        carries = f"{found.slots} slots carry {found.slots // found.slots_per_request}" if found.slots else ""
        why = carries if found.capped_by == "slots" else f"{found.kv_tokens:,} KV tokens allow fewer"
        yield f"{asked} running requests asked, {found.max_running_requests} will run: {why}"
    if found.reserved_unused_gib > 0.5:
        yield f"{found.reserved_unused_gib:.2f} GiB are reserved for requests that never run: {_fewer(launch, outlook)}"
    if given.get("max-mamba-cache-size") is not None and found.regime == "A" and not given.get("disable-radix-cache"):
        yield f"--max-mamba-cache-size is ignored by {launch.version} unless the radix cache is off"
    if found.outside_gib < 0:
        yield f"the pools pass the GPU's memory by {-found.outside_gib:.1f} GiB: expect CUDA out of memory"
    elif found.outside_gib < HEADROOM_GIB:
        yield f"only {found.outside_gib:.1f} GiB stay for activations and graphs: expect CUDA out of memory"
    if found.draft_gib and release < (0, 5, 14):
        uncounted = found.draft_gib + found.draft_kv_gib
        yield f"the draft's {uncounted:.1f} GiB aren't counted by {launch.version}: they come out of what stays free"
    if outlook.limit == "kv":
        yield f"KV tokens fill at {outlook.steady_running} of {found.max_running_requests} running: expect retractions"


def _fewer(launch: Launch, outlook: Outlook) -> str:
    """What asking for as many as run would give."""
    now = outlook.capacity
    flags = {**dashed(launch.flags), "max-running-requests": now.max_running_requests}
    try:
        then = predict(launch.model, launch.gpu, launch.version, flags, launch.environ)
    except CapacityError:
        return "ask for fewer"
    gain = then.kv_tokens / now.kv_tokens - 1
    asks = f"--max-running-requests {now.max_running_requests} gives {then.kv_tokens:,} KV tokens ({gain:+.0%})"
    return f"{asks} and leaves {then.outside_gib:.1f} GiB outside the pools"


def _of_host(launch: Launch, gpu_totals_mib: tuple[int, ...]) -> Iterator[str]:
    given, release = dashed(launch.flags), release_of(launch.version)
    if len(set(gpu_totals_mib)) > 1 and given.get("mem-fraction-static") is None:
        sizes = ", ".join(f"{mib:,}" for mib in sorted(set(gpu_totals_mib)))
        yield f"GPUs of {sizes} MiB and no --mem-fraction-static: SGLang sizes all for the smallest; set it"
    if (
        launch.model.hybrid
        and (given.get("mamba-scheduler-strategy") or "auto") == "auto"
        and not given.get("disable-radix-cache")
    ):
        if release < (0, 5, 14):
            yield "an upgrade to 0.5.14 or later makes extra_buffer the default: 5 slots a request instead of 3"
        elif not given.get("disable-overlap-schedule"):
            yield "the strategy is left to SGLang: from 0.5.14 that is extra_buffer, 5 slots a request"
