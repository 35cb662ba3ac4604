"""What a server has of the things that rules and advice name: 1 there, 0 not there, no figure when unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackhand.contract.watch import GpuSample


def present(gpus: Sequence[GpuSample]) -> dict[str, float]:
    """By one server's samples, the newest last. The command line tells flags; without one nothing is known of these."""
    flags = gpus[-1].flags
    found = _by_flags(flags) if flags else {}
    if any(gpu.slots is not None or gpu.mamba_usage is not None for gpu in gpus):
        found["has_states"] = 1.0
    # A hybrid tells both usages in one line, so a server at work that tells one only keeps no states.
    elif any(gpu.kv_usage is not None and gpu.running for gpu in gpus):
        found["has_states"] = 0.0
    return found


def _by_flags(flags: Mapping[str, str]) -> dict[str, float]:
    found = {
        "on_gpu": flags.get("device", "cuda").partition(":")[0] in ("cuda", "auto"),
        "graphs_on": not {"disable-cuda-graph", "disable-decode-cuda-graph"} & flags.keys()
        and flags.get("cuda-graph-backend-decode") != "disabled",
        "has_radix": "disable-radix-cache" not in flags,
        "has_chunks": flags.get("chunked-prefill-size") not in ("-1", "0"),
        "drafts": "speculative-algorithm" in flags,
    }
    found |= {f"has_{name}": name in flags for name in ("disable-cuda-graph", "disable-decode-cuda-graph")}
    found["has_cuda-graph-backend-decode"] = flags.get("cuda-graph-backend-decode") == "disabled"
    return {name: float(there) for name, there in found.items()}
