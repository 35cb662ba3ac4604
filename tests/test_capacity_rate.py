"""The rate model: the roofline, the fixed part, and what two measured points say of the rest."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackhand.capacity import QWEN3_6_27B
from rackhand.capacity.gpus import KINDS, kind_of
from rackhand.capacity.measured import MEASURED
from rackhand.capacity.rate import (
    Lengths,
    Work,
    predict_rate,
    read_weights_gib,
    roofline_s,
    step_bytes,
    step_flops,
)
from tests.capacity import model

RTX = kind_of("rtx-pro-6000")
assert RTX is not None
PLAIN = [point for point in MEASURED if not point.work.drafts]
BF16 = Work(running=64, resident=2000, state_dtype="bfloat16")


def test_a_steps_bytes_are_weights_kv_and_states() -> None:
    # (51.05 - 2.368) GiB of weights; 64 x 2,000 x 65,536 B of KV; 64 x 2 x 78,446,592 B of state
    weights, kv, state = 48.682 * 2**30, 64 * 2000 * 65_536, 64 * 2 * (48 * 48 * 128 * 128 * 2 + 48 * 10_240 * 6)
    assert step_bytes(QWEN3_6_27B, BF16) == pytest.approx(weights + kv + state)


def test_a_window_bounds_what_is_read_of_long_requests() -> None:
    gemma, work = model("gemma-3-27b"), Work(running=1, resident=10_000)
    # 10 layers of all, 52 of the last 1,024; 16 heads x 256 x 2 B
    kv = (10 * 10_000 + 52 * 1024) * 8192
    assert step_bytes(gemma, work) - read_weights_gib(gemma, 1) * 2**30 == pytest.approx(kv)


def test_a_small_batch_reads_few_experts_and_a_large_one_all() -> None:
    deepseek = model("deepseek-v3")
    one, many = read_weights_gib(deepseek, 1), read_weights_gib(deepseek, 4096)
    assert one < 0.1 * deepseek.weights_gib
    assert many == pytest.approx(deepseek.weights_gib - deepseek.embedding_gib, rel=0.001)


def test_a_large_batch_of_a_short_job_is_bound_by_compute() -> None:
    llama, b200 = model("llama-3.1-8b"), kind_of("b200")
    assert b200 is not None
    work = Work(running=4096, resident=10)
    seconds, bound = roofline_s(llama, b200, work)
    assert (bound, seconds) == ("compute", pytest.approx(step_flops(llama, work) / 2250e12))


def test_two_measured_points_are_met_and_predict_the_rest_with_a_range() -> None:
    assert RTX is not None
    for point in PLAIN:
        found = predict_rate(point.model, RTX, point.work, PLAIN)
        assert found.tokens_per_s == pytest.approx(point.tokens_per_s, rel=0.001)
    between = predict_rate(QWEN3_6_27B, RTX, dataclasses.replace(BF16, running=48), PLAIN)
    far = predict_rate(QWEN3_6_27B, RTX, dataclasses.replace(BF16, running=128), PLAIN)
    assert 670 < between.low < between.tokens_per_s < between.high < 1180
    assert 1180 < far.tokens_per_s < 2 * 1180
    assert (far.high - far.low) / far.tokens_per_s > (between.high - between.low) / between.tokens_per_s


def test_the_field_reports_ranges_lie_in_the_predicted_ones() -> None:
    assert RTX is not None
    for point, (low, high) in zip(PLAIN, ((650, 680), (1155, 1196)), strict=True):
        found = predict_rate(point.model, RTX, point.work, PLAIN)
        assert found.low <= low and high <= found.high


def test_one_point_predicts_the_other_within_its_range() -> None:
    assert RTX is not None
    for known, other in (PLAIN, PLAIN[::-1]):
        found = predict_rate(other.model, RTX, other.work, [known])
        assert found.low <= other.tokens_per_s <= found.high
        assert found.tokens_per_s == pytest.approx(other.tokens_per_s, rel=0.02)


def test_without_a_point_the_range_is_wide_and_it_is_said() -> None:
    h100 = kind_of("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    found = predict_rate(QWEN3_6_27B, h100, BF16, MEASURED)
    assert "a guess" in found.basis
    assert found.high / found.low > 1.3


@settings(deadline=None)
@given(running=st.integers(1, 2000), resident=st.floats(1, 50_000), drafts=st.sampled_from([0, 4]))
def test_no_prediction_passes_the_roofline(running: int, resident: float, drafts: int) -> None:
    work = Work(running=running, resident=resident, drafts=drafts)
    for kind in KINDS:
        found = predict_rate(QWEN3_6_27B, kind, work, MEASURED)
        assert 0 < found.low <= found.tokens_per_s <= found.roofline_tokens_per_s * 1.000001
        assert found.tokens_per_s <= found.high * 1.000001
        assert 0 < found.share <= 1.000001


def test_long_answers_are_seen_more_often_than_they_come() -> None:
    assert Lengths(prompt=100, output=2000, variation=0).resident == 1100
    assert Lengths(prompt=100, output=2000, variation=1).resident == 2100


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("RTX_PRO_6000", "rtx-pro-6000"),
        ("NVIDIA H100 PCIe", None),
        ("Tesla T4", None),
    ],
)
def test_nvidia_smis_names_find_their_kind(name: str, key: str | None) -> None:
    kind = kind_of(name)
    assert (kind.key if kind else None) == key


def test_every_kind_says_where_its_figures_are_from() -> None:
    assert all(len(kind.source) > 20 for kind in KINDS)
    assert len({kind.key for kind in KINDS}) == len(KINDS)
