"""/metrics with the names and labels of 0.5.11."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .loading import GRAPH_GIB

if TYPE_CHECKING:
    from .life import Life

LATENCY_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, buckets: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._buckets, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Its samples, buckets cumulated."""
        total = 0
        yield f"{name}_sum{{{labels}}} {self._sum}"
        for bound, count in zip((*self._buckets, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"


def render_metrics(life: Life) -> str:
    """The whole exposition, with HELP and TYPE lines."""
    model = life.args.served_model_name
    scheduler = f'engine_type="unified",model_name="{model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    tokenizer = f'engine_type="unified",is_streaming="false",model_name="{model}"'
    lines: list[str] = []
    for name, value in _gauges(life).items():
        lines += [*_head(name, "gauge"), f"sglang:{name}{{{scheduler}}} {float(value)}"]
    for name, value in _counters(life).items():
        lines += [*_head(name, "counter"), f"sglang:{name}{{{tokenizer}}} {float(value)}"]
    totals = life.scheduler.totals
    modes = {"prefill_compute": totals.prefill_compute, "prefill_cache": totals.cached_tokens}
    lines += _head("realtime_tokens_total", "counter")
    for mode, count in {**modes, "decode": int(totals.generated_tokens)}.items():
        lines.append(f'sglang:realtime_tokens_total{{{scheduler},mode="{mode}"}} {float(count)}')
    lines += _head("cuda_graph_passes_total", "counter")
    lines.append(f'sglang:cuda_graph_passes_total{{{scheduler},mode="decode_cuda_graph"}} {totals.decode_passes:.0f}')
    for name, histogram in life.histograms.items():
        lines += _head(name, "histogram")
        lines += histogram.lines(f"sglang:{name}", tokenizer)
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f"# HELP sglang:{name} {name.replace('_', ' ')}", f"# TYPE sglang:{name} {kind}"]


def _gauges(life: Life) -> dict[str, float]:
    scheduler, limits = life.scheduler, life.loaded.limits
    used = scheduler.used_tokens
    accept = limits.accept_length if limits.draft_tokens else 0.0
    return {
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.queue),
        "num_grammar_queue_reqs": 0,
        "gen_throughput": scheduler.gen_throughput,
        "cache_hit_rate": scheduler.cache_hit_rate,
        "decode_sum_seq_lens": used,
        "token_usage": round(max(used / limits.kv_tokens, scheduler.slots_held / limits.slots), 2),
        "full_token_usage": used / limits.kv_tokens,
        "swa_token_usage": 0.0,
        "mamba_usage": scheduler.slots_held / limits.slots,
        "num_used_tokens": used,
        "kv_available_tokens": limits.kv_tokens - used,
        "kv_evictable_tokens": 0,
        "kv_used_tokens": used,
        "spec_accept_length": accept,
        "spec_accept_rate": (accept - 1) / (limits.draft_tokens - 1) if accept else 0.0,
        "num_retracted_reqs": 0,
        "num_paused_reqs": 0,
        "utilization": 0.0,
        "new_token_ratio": 0.7,
        "is_cuda_graph": float(0 < len(scheduler.running) <= limits.graph_batch),
        "max_total_num_tokens": limits.kv_tokens,
        "page_size": life.loaded.capacity.page_size,
        "num_pages": limits.kv_tokens // life.loaded.capacity.page_size,
        "context_len": life.loaded.context_len,
        "startup_available_gpu_memory_gb": life.loaded.capacity.outside_gib - GRAPH_GIB,
        "engine_startup_time": 0.0,
        "engine_load_weights_time": 0.0,
    }


def _counters(life: Life) -> dict[str, float]:
    totals = life.scheduler.totals
    return {
        "prompt_tokens_total": totals.prompt_tokens,
        "generation_tokens_total": totals.finished_tokens,
        "cached_tokens_total": totals.cached_tokens,
        "num_requests_total": totals.requests,
        "num_aborted_requests_total": totals.aborted,
        "num_retracted_requests_total": totals.retracted,
    }
