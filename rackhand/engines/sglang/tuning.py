"""The flags of a running server's command line that decide its capacity and speed. Secrets are none of them."""

from __future__ import annotations

from collections.abc import Sequence

TUNING = frozenset((
    "attention-backend", "chunked-prefill-size", "context-length", "cuda-graph-backend-decode", "cuda-graph-bs",
    "cuda-graph-bs-decode", "cuda-graph-max-bs", "cuda-graph-max-bs-decode", "device", "disable-cuda-graph",
    "disable-decode-cuda-graph", "disable-overlap-schedule", "disable-radix-cache", "kv-cache-dtype",
    "mamba-full-memory-ratio", "mamba-radix-cache-strategy", "mamba-scheduler-strategy", "mamba-ssm-dtype",
    "max-mamba-cache-size", "max-prefill-tokens", "max-running-requests", "mem-fraction-static", "model-path",
    "page-size", "quantization", "schedule-conservativeness", "speculative-algorithm", "speculative-eagle-topk",
    "speculative-num-draft-tokens", "speculative-num-steps", "tp-size",
))  # fmt: skip


def parse_tuning(cmdline: Sequence[str]) -> dict[str, str]:
    """Flag (without dashes) → its words; `true` for a bare one."""
    found: dict[str, str] = {}
    name = ""
    for word in cmdline:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("_", "-") if flag.replace("_", "-") in TUNING else ""
            if name:
                found[name] = value if equals else "true"
        elif name:
            found[name] = word if found[name] == "true" else f"{found[name]} {word}"
    return found
