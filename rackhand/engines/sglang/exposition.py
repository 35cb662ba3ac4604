"""SGLang's /metrics and /v1/loads, read for the figures that a watch shows.

Only the named metrics are looked at: the histograms of one answer are 80 KB of text.
"""

from __future__ import annotations

import json
import re

from rackhand.engines.seen import Reading

LOADS = "/v1/loads"
METRICS = "/metrics"

_GAUGES = (
    "num_running_reqs", "num_queue_reqs", "full_token_usage", "token_usage", "mamba_usage", "mamba_used_tokens",
    "mamba_available_tokens", "spec_accept_length",
)  # fmt: skip
_LINE = re.compile(
    rb"^sglang:(" + "|".join((*_GAUGES, "generation_tokens_total", "realtime_tokens_total")).encode() + rb")"
    rb"(?:\{([^\n]*)\})? (\S+)(?: \d+)?$",
    re.MULTILINE,
)


def parse_loads(body: bytes) -> Reading | None:
    """/v1/loads (0.5.8 and newer), the data-parallel ranks added up; None when it isn't one."""
    try:
        loads = [load for load in json.loads(body)["loads"] if isinstance(load, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not loads:
        return None
    usages = [usage for load in loads if (usage := _kv_usage(load)) is not None]
    return Reading(
        running=_total(loads, "num_running_reqs"),
        queue=_total(loads, "num_waiting_reqs"),
        cap=_total(loads, "max_running_requests"),
        pending_tokens=_total(loads, "num_waiting_uncached_tokens"),
        kv_usage=max(usages) if usages else None,
    )


def parse_metrics(body: bytes) -> Reading | None:
    """/metrics, ranks added up (usages: the highest); None when no metric of SGLang is in it.

    The counter is realtime_tokens_total{mode="decode"} where there is one (0.5.9 and newer), and where not
    generation_tokens_total, which moves only when a request ends.
    """
    found: dict[str, list[float]] = {}
    for name, labels, word in _LINE.findall(body):
        key = name.decode()
        if key == "realtime_tokens_total" and b'mode="decode"' not in labels:
            continue
        try:
            value = float(word)
        except ValueError:
            continue
        if value - value == 0:
            found.setdefault(key, []).append(value)
    if not found:
        return None
    hybrid = any(found.get("mamba_used_tokens", ())) or any(found.get("mamba_available_tokens", ()))
    hybrid = hybrid or any(found.get("mamba_usage", ()))
    kv = found.get("full_token_usage") or ([] if "mamba_usage" in found else found.get("token_usage", []))
    accepted = max(found.get("spec_accept_length", [0.0]))
    counter = found.get("realtime_tokens_total") or found.get("generation_tokens_total")
    return Reading(
        running=_whole(found.get("num_running_reqs")),
        queue=_whole(found.get("num_queue_reqs")),
        kv_usage=max(kv) if kv else None,
        mamba_usage=max(found["mamba_usage"]) if hybrid and "mamba_usage" in found else None,
        accept_len=accepted or None,
        decoded_tokens=sum(counter) if counter else None,
    )


def _kv_usage(load: dict[str, object]) -> float | None:
    """Of the token pool. In some releases `token_usage` is that of the fullest pool, the mamba pool included;
    `num_used_tokens` never counts that one."""
    used, size = load.get("num_used_tokens"), load.get("max_total_num_tokens")
    if isinstance(used, int) and isinstance(size, int) and size > 0:
        return round(used / size, 4)
    usage = load.get("token_usage")
    return usage if isinstance(usage, float) else None


def _total(loads: list[dict[str, object]], name: str) -> int | None:
    values = [load.get(name) for load in loads]
    numbers = [int(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return sum(numbers) if numbers else None


def _whole(values: list[float] | None) -> int | None:
    return int(sum(values)) if values else None
