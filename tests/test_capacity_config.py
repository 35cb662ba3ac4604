"""ModelShape out of config.json."""

from __future__ import annotations

import dataclasses

import pytest

from rackhand.capacity import QWEN3_6_27B, UnknownModel
from rackhand.capacity.config import parse_model, weights_gib_of
from tests.capacity import config


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "qwen3-next-80b",
            {
                "full_layers": 12,
                "linear_layers": 36,
                "kv_heads": 2,
                "linear_value_heads": 32,
                "experts": 512,
                "experts_used": 10,
                "context_len": 262_144,
                "state_dtype": "float32",
            },
        ),
        # The factor of a llama3 rope isn't multiplied in: 131,072 stands.
        ("llama-3.1-8b", {"full_layers": 32, "kv_heads": 8, "head_dim": 128, "context_len": 131_072, "experts": 0}),
        ("qwen3-32b", {"full_layers": 64, "head_dim": 128, "windowed_layers": 0, "context_len": 40_960}),
        ("mistral-7b-v0.1", {"full_layers": 32, "windowed_layers": 32, "window": 4096, "swa_layers": 0}),
        ("gemma-3-27b", {"full_layers": 62, "windowed_layers": 52, "window": 1024, "multimodal": True}),
        ("gpt-oss-20b", {"full_layers": 12, "swa_layers": 12, "swa_head_dim": 64, "weight_bytes": 0.5625}),
        ("deepseek-v3", {"mla_width": 576, "full_layers": 61, "draft_layers": 1, "weight_bytes": 1.0, "experts": 256}),
    ],
)
def test_a_config_gives_the_shape(name: str, expected: dict[str, object]) -> None:
    found = dataclasses.asdict(parse_model(config(name), weights_gib=100.0))
    assert {field: found[field] for field in expected} == expected


def test_the_config_of_qwen3_6_is_the_shape_that_the_check_values_are_about() -> None:
    found = parse_model(config("qwen3.6-27b"), weights_gib=51.05, draft_gib=5.53, name="Qwen3.6-27B")
    assert found.vision_fraction == pytest.approx(0.9248, abs=0.0001)
    assert found.embedding_gib == pytest.approx(2.368, abs=0.001)
    same = dataclasses.replace(found, vision_fraction=0.9248, embedding_gib=2.368)
    assert same == QWEN3_6_27B


def test_deepseek_v3_2_keeps_an_index_row_beside_the_latent_one() -> None:
    v32 = {**config("deepseek-v3"), "architectures": ["DeepseekV32ForCausalLM"]}
    found = parse_model({**v32, "index_topk": 2048, "index_head_dim": 128}, weights_gib=642)
    assert found.index_bytes == 132


def test_gemma_4_names_its_window_layers_heads_first() -> None:
    types = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    text = {
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "hidden_size": 2048,
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": types,
        "sliding_window": 1024,
    }
    found = parse_model({"architectures": ["Gemma4ForCausalLM"], "text_config": text}, weights_gib=20)
    assert (found.full_layers, found.kv_heads, found.head_dim) == (2, 2, 512)
    assert (found.swa_layers, found.swa_kv_heads, found.swa_head_dim) == (10, 8, 256)


def test_most_of_a_sparse_models_weights_are_experts() -> None:
    # 58 layers x 256 experts x 3 x 7,168 x 2,048 = 654 G of 671 G parameters
    found = parse_model(config("deepseek-v3"), weights_gib=671e9 / 2**30)
    assert found.expert_share == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            config("unknown-mamba"),
            "Zamba9ForCausalLM isn't known.*lacks num_attention_heads, num_key_value_heads, head_dim",
        ),
        (
            {"architectures": ["Qwen3NextForCausalLM"], "hidden_size": 1},
            "Qwen3NextForCausalLM: config.json lacks num_hid",
        ),
        ({}, "architectures is missing"),
        ({**config("llama-3.1-8b"), "architectures": ["New"], "head_dim": 128}, "New isn't known.*can't be told"),
    ],
)
def test_an_unknown_model_is_an_error_that_names_what_is_missing(text: dict[str, object], says: str) -> None:
    with pytest.raises(UnknownModel, match=says):
        parse_model(text, weights_gib=1.0)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("deepseek-v3", "n_routed_experts", "64"),
        ("deepseek-v3", "n_routed_experts", [1]),
        ("deepseek-v3", "rope_scaling", {"factor": "40"}),
        ("llama-3.1-8b", "max_position_embeddings", float("inf")),
        ("gemma-3-27b", "vision_config", {"num_hidden_layers": "27"}),
        ("qwen3-next-80b", "mamba_ssm_dtype", "int4"),
        ("qwen3-next-80b", "mamba_ssm_dtype", [1]),
        ("qwen3-next-80b", "layer_types", ["unheard"]),
        ("gpt-oss-20b", "layer_types", []),
        ("gpt-oss-20b", "head_dim", 0),
        ("llama-3.1-8b", "num_attention_heads", 10**8),
    ],
)
def test_a_value_that_no_model_has_is_an_error_that_names_it(name: str, field: str, value: object) -> None:
    with pytest.raises(UnknownModel, match=r"config\.json"):
        parse_model({**config(name), field: value}, weights_gib=20.0)


def test_a_vision_tower_that_says_nothing_of_its_size_counts_as_the_usual_one() -> None:
    silent = {**config("gemma-3-27b"), "vision_config": {"num_hidden_layers": None, "hidden_size": None}}
    assert parse_model(silent, weights_gib=20.0).vision_fraction == 0.95


def test_weights_are_the_sum_of_the_shards() -> None:
    assert weights_gib_of([2**30, 2**29]) == 1.5


FIELDS = ("architectures", "num_hidden_layers", "hidden_size", "head_dim", "layer_types", "quantization_config")
VALUES = ("x", -1, 1.5, [1], {"a": [1]}, 10**30, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [(f, v) for f in FIELDS for v in VALUES if not (f == "quantization_config" and isinstance(v, dict))],
    ids=str,
)
def test_a_value_of_a_kind_that_no_model_has_is_an_unknown_model_and_no_crash(field: str, value: object) -> None:
    with pytest.raises(UnknownModel):
        parse_model({**config("qwen3-32b"), field: value}, weights_gib=60.0)
