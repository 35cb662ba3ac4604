"""What sizing needs to know of models and GPUs, and the bytes of one slot and one token. Pure."""

from __future__ import annotations

import dataclasses

GIB = 1 << 30
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}
CONV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CONV_DTYPE = "bfloat16"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What sizing needs of a model: layers, heads, widths, and its weights in GiB as loaded on one GPU.

    `full_layers` keep every token; `windowed_layers` of them read the last `window` tokens only. `swa_layers` stand in
    a pool of their own. `mla_width` > 0 replaces heads by one latent row (kv_lora_rank + qk_rope_head_dim elements) and
    `index_bytes` per layer. `embedding_gib` are weights of which a step reads single rows; `expert_share` of the
    weights lies in routed experts.
    """

    name: str
    full_layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    swa_layers: int = 0
    swa_kv_heads: int = 0
    swa_head_dim: int = 0
    window: int = 0
    windowed_layers: int = 0
    mla_width: int = 0
    index_bytes: int = 0
    linear_layers: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv_kernel: int = 4
    context_len: int
    weights_gib: float
    weight_bytes: float = 2.0
    embedding_gib: float = 0.0
    expert_share: float = 0.0
    experts: int = 0
    experts_used: int = 0
    draft_gib: float = 0.0
    draft_layers: int = 0
    state_dtype: str = "float32"
    vision_fraction: float = 1.0
    """What the automatic static fraction is multiplied with; below 1 for models that see images."""
    multimodal: bool = False

    @property
    def hybrid(self) -> bool:
        """Whether a running request holds slots of a linear-attention state."""
        return self.linear_layers > 0


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
    embedding_gib=2.368,
    draft_gib=5.53,
    draft_layers=1,
    vision_fraction=0.9248,
    multimodal=True,
)
"""Qwen3.5-27B and Qwen3.6-27B in bf16, public config; weights and MTP draft as measured after loading."""
QWEN3_6_27B_FP8 = dataclasses.replace(QWEN3_6_27B, name="Qwen3.6-27B-FP8", weights_gib=28.47, weight_bytes=1.0)
QWEN3_6_27B_NVFP4 = dataclasses.replace(QWEN3_6_27B, name="Qwen3.6-27B-NVFP4", weights_gib=24.6, weight_bytes=0.5625)


def known_model(path: str) -> ModelShape | None:
    """A shape whose weights were measured, by a path or hub name such as Qwen/Qwen3.6-27B-FP8; None for others."""
    name = path.rstrip("/").rsplit("/", 1)[-1].lower()
    measured = {"": QWEN3_6_27B, "-fp8": QWEN3_6_27B_FP8, "-nvfp4": QWEN3_6_27B_NVFP4}
    for stem in ("qwen3.6-27b", "qwen3.5-27b"):
        if name.startswith(stem):
            return measured.get(name.removeprefix(stem))
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `free_gib` is free memory before the weights load (`Load weight begin. avail mem`), not the total.

    `memory_mib` is the total of the smallest GPU that nvidia-smi lists on that machine.
    """

    name: str
    memory_mib: int
    free_gib: float
    compute_capability: str


RTX_PRO_6000 = Gpu(name="RTX PRO 6000", memory_mib=97_887, free_gib=94.14, compute_capability="12.0")
B200 = Gpu(name="B200", memory_mib=183_359, free_gib=177.57, compute_capability="10.0")


def ssm_bytes(model: ModelShape, state_dtype: str, tp: int = 1) -> int:
    """Bytes of one slot's recurrent state on each of `tp` GPUs. SGLang 0.5.3-0.5.23.

    layers x value heads / tp x value dim x key dim x element.
    """
    heads = model.linear_value_heads // tp
    return model.linear_layers * heads * model.linear_value_dim * model.linear_key_dim * STATE_BYTES[state_dtype]


def conv_bytes(model: ModelShape, tp: int = 1, conv_dtype: str = CONV_DTYPE) -> int:
    """Bytes of one slot's convolution window on each of `tp` GPUs. SGLang 0.5.3-0.5.23.

    layers x channels / tp x (kernel - 1) x element; channels = 2 x key heads x key dim + value heads x value dim.
    """
    channels = 2 * model.linear_key_heads * model.linear_key_dim + model.linear_value_heads * model.linear_value_dim
    return model.linear_layers * (channels // tp) * (model.conv_kernel - 1) * CONV_BYTES[conv_dtype]


def layer_token_bytes(model: ModelShape, kv_dtype: str, tp: int = 1) -> int:
    """Bytes of one token in one full-attention layer, K and V, on each of `tp` GPUs. SGLang 0.5.3-0.5.23.

    max(1, KV heads // tp) x (head dim + V head dim) x element; with MLA one latent row, the same on every GPU.
    """
    if model.mla_width:
        return model.mla_width * KV_BYTES[kv_dtype] + model.index_bytes
    width = model.head_dim + (model.head_dim if model.v_head_dim is None else model.v_head_dim)
    return max(1, model.kv_heads // tp) * width * KV_BYTES[kv_dtype]


def kv_token_bytes(model: ModelShape, kv_dtype: str, tp: int = 1) -> int:
    """Bytes of one token in the pool of the full-attention layers: layers x `layer_token_bytes`. 0.5.3-0.5.23."""
    return model.full_layers * layer_token_bytes(model, kv_dtype, tp)


def swa_token_bytes(model: ModelShape, kv_dtype: str, tp: int = 1) -> int:
    """Bytes of one token in the pool of the sliding-window layers. SGLang 0.5.11-0.5.23.

    layers x max(1, KV heads // tp) x 2 x head dim x element.
    """
    return model.swa_layers * max(1, model.swa_kv_heads // tp) * 2 * model.swa_head_dim * KV_BYTES[kv_dtype]
