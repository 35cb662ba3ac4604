"""A model's config.json and its shards' sizes → ModelShape. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rackhand.capacity.errors import UnknownModel
from rackhand.capacity.shapes import GIB, STATE_BYTES, ModelShape

Config: TypeAlias = Mapping[str, Any]

HYBRID = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
)
LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM")
WINDOW_POOL = ("GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
PLAIN = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
)
"""SGLang keeps every token of every layer of these, also where a layer reads only a window (0.5.11-0.5.23)."""

_HEADS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
_LINEAR = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_CONTEXT = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_SIZE = re.compile(
    r"(?:\w+_)?num_\w+|n_\w+_experts|(?!use_)\w+_(?:size|dim|dense_replace|interval|topk|rank|window|pattern)", re.ASCII
)
_LARGEST = 10**9
_FOUR_BITS = ("awq", "gptq", "mxfp4", "nvfp4", "modelopt_fp4", "bitsandbytes")


def parse_model(config: Config, *, weights_gib: float, draft_gib: float = 0.0, name: str = "") -> ModelShape:
    """The shape that a config.json describes. `weights_gib` and `draft_gib` as loaded, on one GPU.

    UnknownModel names an architecture that isn't known, and every field that sizing would need and isn't there.
    """
    text = _text_part(config)
    _check_kinds(config)
    _check_kinds(text)
    _check_kinds({"factor": (text.get("rope_scaling") or {}).get("factor")})
    vision = config.get("vision_config") or {}
    _check_kinds({key: vision.get(key) for key in ("num_hidden_layers", "hidden_size")})
    arch = next(iter(config.get("architectures") or text.get("architectures") or ()), "")
    kinds = {a: kind for kind in (HYBRID, LATENT, WINDOW_POOL, PLAIN) for a in kind}
    kind = kinds.get(arch)
    missing = [field for field in _required(kind, text) if not text.get(field)]
    if kind is None or missing:
        raise UnknownModel(_why_unknown(arch, missing, known=kind is not None))
    fields = _common(config, text, weights_gib) | {"draft_gib": draft_gib, "name": name or arch}
    if kind is HYBRID:
        fields |= _hybrid(text)
    elif kind is LATENT:
        fields |= _latent(text)
    elif kind is WINDOW_POOL:
        fields |= _window_pool(text)
    shape = ModelShape(**fields)
    if not shape.full_layers + shape.swa_layers or not (shape.head_dim or shape.mla_width):
        raise UnknownModel(f"{arch}: by its config.json none of its layers keeps KV tokens")
    return shape


def _check_kinds(part: Config) -> None:
    """UnknownModel for a value of a kind that no model has: sizes are whole numbers, names lists of texts."""
    for key, value in part.items():
        if value is None:
            continue
        if _SIZE.fullmatch(key):
            fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
        elif key in _CONTEXT or key == "factor":
            fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST
        elif key == "mamba_ssm_dtype":
            fits = isinstance(value, str) and value in STATE_BYTES
        elif key in ("architectures", "layer_types"):
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        elif key in ("quantization_config", "rope_scaling", "vision_config"):
            fits = isinstance(value, Mapping)
        else:
            continue
        if not fits:
            raise UnknownModel(f"config.json: {key} can't be {str(value)[:40]!r}")
    if zero := next((key for key in ("num_hidden_layers", "hidden_size") if part.get(key) == 0), None):
        raise UnknownModel(f"config.json: {zero} can't be 0")


def weights_gib_of(shard_bytes: Sequence[int]) -> float:
    """GiB of safetensors shards together. It holds the draft layer too where the checkpoint does."""
    return sum(shard_bytes) / GIB


def _text_part(config: Config) -> Config:
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            return {**config, **config[key]}
    return config


def _required(kind: tuple[str, ...] | None, text: Config) -> tuple[str, ...]:
    if kind is HYBRID:
        return (*_HEADS, *_LINEAR)
    if kind is LATENT:
        return ("num_hidden_layers", "hidden_size", "kv_lora_rank", "qk_rope_head_dim")
    if kind is WINDOW_POOL:
        return (*_HEADS, "head_dim", "layer_types", "sliding_window")
    if kind is PLAIN:
        return tuple(f for f in _HEADS if f != "num_key_value_heads")
    return (*_HEADS, "head_dim", *(_LINEAR if "linear_attention" in (text.get("layer_types") or ()) else ()))


def _why_unknown(arch: str, missing: Sequence[str], *, known: bool) -> str:
    lacks = f"config.json lacks {', '.join(missing)}"
    if known:
        return f"{arch}: {lacks}"
    names = ", ".join((*HYBRID[:2], *LATENT[:2], *WINDOW_POOL[:2], *PLAIN[:1], "Qwen3ForCausalLM", "..."))
    said = f"architecture {arch or '(architectures is missing)'} isn't known (known: {names})"
    return f"{said}; {lacks}" if missing else f"{said}: which of its layers keep KV tokens can't be told"


def _common(config: Config, text: Config, weights_gib: float) -> dict[str, Any]:
    layers, heads = text["num_hidden_layers"], text.get("num_attention_heads") or 1
    bytes_each = _weight_bytes(config)
    experts = next((text[k] for k in ("num_experts", "n_routed_experts", "num_local_experts") if text.get(k)), 0)
    vision = config.get("vision_config")
    types = list(text.get("layer_types") or ())
    return {
        "full_layers": layers,
        "kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or text["hidden_size"] // heads,
        "windowed_layers": types.count("sliding_attention") or _patterned(text, layers),
        "window": text.get("sliding_window") or 0,
        "context_len": _context(text),
        "weights_gib": weights_gib,
        "weight_bytes": bytes_each,
        "embedding_gib": _embedding_gib(config, text),
        "experts": experts,
        "experts_used": text.get("num_experts_per_tok") or 0,
        "expert_share": _expert_share(text, experts, layers, weights_gib * GIB / bytes_each),
        "draft_layers": text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0,
        "vision_fraction": 1.0 if vision is None else vision_fraction(vision),
        "multimodal": vision is not None,
    }


def _hybrid(text: Config) -> dict[str, Any]:
    layers = text["num_hidden_layers"]
    types = text.get("layer_types")
    full = types.count("full_attention") if types else layers // (text.get("full_attention_interval") or 4)
    return {
        "full_layers": full,
        "linear_layers": layers - full,
        "linear_key_heads": text["linear_num_key_heads"],
        "linear_value_heads": text["linear_num_value_heads"],
        "linear_key_dim": text["linear_key_head_dim"],
        "linear_value_dim": text["linear_value_head_dim"],
        "conv_kernel": text["linear_conv_kernel_dim"],
        "state_dtype": text.get("mamba_ssm_dtype") or "float32",
    }


def _latent(text: Config) -> dict[str, Any]:
    index = text.get("index_head_dim") if text.get("index_topk") else None
    return {
        "mla_width": text["kv_lora_rank"] + text["qk_rope_head_dim"],
        "index_bytes": index + index // 128 * 4 if index else 0,
    }


def _window_pool(text: Config) -> dict[str, Any]:
    """Gemma 4's head fields are those of window layers, with global_* for the full ones; GPT-OSS has one set."""
    types = list(text["layer_types"])
    kv_heads = text.get("num_global_key_value_heads") or text["num_key_value_heads"]
    return {
        "full_layers": types.count("full_attention"),
        "kv_heads": kv_heads,
        "head_dim": text.get("global_head_dim") or text["head_dim"],
        "swa_layers": types.count("sliding_attention"),
        "swa_kv_heads": text["num_key_value_heads"],
        "swa_head_dim": text["head_dim"],
        "windowed_layers": 0,
    }


def _patterned(text: Config, layers: int) -> int:
    """Layers that read only a window where config.json tells a rhythm instead of a list: one in N is a full one."""
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return 0
    every = text.get("sliding_window_pattern") or (2 if text.get("model_type") == "gemma2" else 0)
    return layers - layers // every if every else layers if text.get("model_type") == "mistral" else 0


def _context(text: Config) -> int:
    scaling = text.get("rope_scaling") or {}
    fixed = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    factor = 1 if fixed else scaling.get("factor") or 1
    return next((int(factor * text[key]) for key in _CONTEXT if text.get(key)), 2048)


def _weight_bytes(config: Config) -> float:
    """Bytes of a parameter as stored: 2, 1 with fp8 or int8, 0.5625 with 4-bit formats and their scales."""
    quant = config.get("quantization_config") or {}
    method = str(quant.get("quant_algo") or quant.get("quant_method") or "").lower()
    if method in _FOUR_BITS or quant.get("bits") == 4:
        return 0.5625
    return 1.0 if method else 2.0


def _embedding_gib(config: Config, text: Config) -> float:
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    return 0.0 if tied else (text.get("vocab_size") or 0) * text["hidden_size"] * 2 / GIB


def _expert_share(text: Config, experts: int, layers: int, parameters: float) -> float:
    inner = text.get("moe_intermediate_size") or text.get("intermediate_size") or 0
    sparse = layers - (text.get("first_k_dense_replace") or 0)
    return min(0.97, sparse * experts * 3 * text["hidden_size"] * inner / parameters) if experts and parameters else 0.0


def vision_fraction(vision: Config) -> float:
    """What SGLang multiplies the automatic static fraction with for a vision tower. SGLang 0.5.7-0.5.23.

    0.95 x clamp(1 - 0.1 x (layers x width^2 / (24 x 1024^2) - 1), 0.8, 1.05); 24 and 1024 where config.json is silent.
    """
    layers, width = vision.get("num_hidden_layers") or 24, vision.get("hidden_size") or 1024
    complexity = float(layers * width**2) / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))
