"""What sizing needs to know of models and GPUs, and the bytes of one slot and one token."""

from __future__ import annotations

import dataclasses

GIB = 1 << 30
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}
CONV_BYTES = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What sizing needs of a hybrid model: layer counts, heads, widths, and the weights in GiB as loaded."""

    name: str
    full_layers: int
    kv_heads: int
    head_dim: int
    linear_layers: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_kernel: int
    context_len: int
    weights_gib: float
    draft_gib: float = 0.0
    state_dtype: str = "float32"
    vision_fraction: float = 1.0
    """What the automatic static fraction is multiplied with; below 1 for models that see images."""


QWEN3_6_27B = ModelShape(
    name="Qwen3.6-27B",
    full_layers=16,
    kv_heads=4,
    head_dim=256,
    linear_layers=48,
    linear_key_heads=16,
    linear_value_heads=48,
    linear_key_dim=128,
    linear_value_dim=128,
    conv_kernel=4,
    context_len=262_144,
    weights_gib=51.05,
    draft_gib=5.53,
    vision_fraction=0.9248,
)
"""Qwen3.5-27B and Qwen3.6-27B in bf16, public config; weights and MTP draft as measured after loading."""
QWEN3_6_27B_FP8 = dataclasses.replace(QWEN3_6_27B, name="Qwen3.6-27B-FP8", weights_gib=28.47)
QWEN3_6_27B_NVFP4 = dataclasses.replace(QWEN3_6_27B, name="Qwen3.6-27B-NVFP4", weights_gib=24.6)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `free_gib` is free memory before the weights load (`Load weight begin. avail mem`), not the total."""

    name: str
    memory_mib: int
    free_gib: float
    compute_capability: str


RTX_PRO_6000 = Gpu(name="RTX PRO 6000", memory_mib=97_887, free_gib=94.14, compute_capability="12.0")
B200 = Gpu(name="B200", memory_mib=183_359, free_gib=177.57, compute_capability="10.0")


def ssm_bytes(model: ModelShape, state_dtype: str) -> int:
    """Bytes of one slot's recurrent state: layers x value heads x value dim x key dim x element. All versions."""
    elements = model.linear_layers * model.linear_value_heads * model.linear_value_dim * model.linear_key_dim
    return elements * STATE_BYTES[state_dtype]


def conv_bytes(model: ModelShape) -> int:
    """Bytes of one slot's convolution window: layers x channels x (kernel - 1) x 2 (bf16). All versions."""
    keys = 2 * model.linear_key_heads * model.linear_key_dim
    channels = keys + model.linear_value_heads * model.linear_value_dim
    return model.linear_layers * channels * (model.conv_kernel - 1) * CONV_BYTES


def kv_token_bytes(model: ModelShape, kv_dtype: str) -> int:
    """Bytes of one KV token, K and V: full layers x KV heads x 2 x head dim x element. To 0.5.13 without the draft."""
    return model.full_layers * model.kv_heads * 2 * model.head_dim * KV_BYTES[kv_dtype]
