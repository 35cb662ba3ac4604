"""Which GPU and which model a command line means."""

from __future__ import annotations

import os
import sys

from lab.gpu import state
from rackhand.capacity import QWEN3_6_27B, QWEN3_6_27B_FP8, QWEN3_6_27B_NVFP4, ModelShape

from .lines import raw


def choose_gpu(gpus: list[state.Gpu], base_gpu_id: int) -> state.Gpu:
    """The GPU that CUDA_VISIBLE_DEVICES (UUIDs or indices) and --base-gpu-id name. SystemExit 1 where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = gpus
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        chosen = [g for name in names for g in gpus if g.uuid == name or str(g.number) == name]
    if base_gpu_id >= len(chosen):
        text = "CUDA error: invalid device ordinal" if chosen else "No CUDA GPUs are available"
        raw(f"Traceback (most recent call last):\nRuntimeError: {text}\n")
        sys.exit(1)
    return chosen[base_gpu_id]


def choose_model(path: str) -> ModelShape:
    """The shape for a model path: every path is Qwen3.6-27B, in the precision that its name tells."""
    name = path.upper()
    if "FP8" in name:
        return QWEN3_6_27B_FP8
    return QWEN3_6_27B_NVFP4 if "FP4" in name else QWEN3_6_27B
