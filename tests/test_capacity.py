"""The memory model against values that real servers printed and the formulas' own table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackhand.capacity import (
    B200,
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    RTX_PRO_6000,
    Capacity,
    CapacityError,
    DoesNotFit,
    FlagsRefused,
    FlagValue,
    Gpu,
    ModelShape,
    UnsupportedVersion,
    auto_fraction,
    predict,
)

MTP: Mapping[str, FlagValue] = {"speculative-algorithm": "NEXTN", "mamba-scheduler-strategy": "extra_buffer"}
EXTRA: Mapping[str, FlagValue] = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.9}
NO_BUFFER: Mapping[str, FlagValue] = {"mem-fraction-static": 0.9}
B200_200: Mapping[str, FlagValue] = {
    **MTP,
    "max-mamba-cache-size": 200,
    "mamba-full-memory-ratio": 0.6,
    "mem-fraction-static": 0.93,
    "max-running-requests": 64,
}
BF16: Mapping[str, FlagValue] = {"mamba-ssm-dtype": "bfloat16"}


class Row(NamedTuple):
    name: str
    model: ModelShape
    gpu: Gpu
    flags: Mapping[str, FlagValue]
    expected: Mapping[str, float]


def fp8(name: str, flags: Mapping[str, FlagValue], slots: int, running: int, kv_tokens: int) -> Row:
    expected = {"slots": slots, "max_running_requests": running, "kv_tokens": kv_tokens}
    return Row(name, QWEN3_6_27B_FP8, RTX_PRO_6000, flags, expected)


def radix_off(asked: int) -> Mapping[str, FlagValue]:
    return {**NO_BUFFER, "disable-radix-cache": True, "max-running-requests": asked}


def mtp(asked: int | None) -> Mapping[str, FlagValue]:
    return {**MTP, "mem-fraction-static": 0.9, "max-running-requests": asked}


ROWS = [
    Row(
        "the B200's 200 slots",
        QWEN3_6_27B,
        B200,
        B200_200,
        {
            "ssm_gib": 28.27,
            "intermediate_ssm_gib": 23.06,
            "kv_tokens": 798_080,
            "kv_each_gib": 24.36,
            "max_running_requests": 40,
            "slots_per_request": 5,
            "reserved_unused_gib": 13.19,
            "page_size": 64,
        },
    ),
    Row(
        "the B200's 80 slots",
        QWEN3_6_27B,
        B200,
        {**B200_200, "max-mamba-cache-size": 80},
        {"ssm_gib": 11.39, "intermediate_ssm_gib": 9.56, "max_running_requests": 16},
    ),
    fp8("extra_buffer", EXTRA, 185, 37, 487_133),
    fp8("extra_buffer, bf16 state", {**EXTRA, **BF16}, 364, 72, 485_990),
    fp8("no_buffer", NO_BUFFER, 185, 61, 487_133),
    fp8("radix off, 64", radix_off(64), 64, 64, 771_362),
    fp8("radix off, 128", radix_off(128), 128, 128, 621_026),
    fp8("radix off, 256", radix_off(256), 256, 256, 320_354),
    fp8(
        "fp8 KV, ratio 2",
        {**EXTRA, "kv-cache-dtype": "fp8_e4m3", "mamba-full-memory-ratio": 2.0},
        261,
        52,
        617_218,
    ),
    fp8("MTP, default 48", mtp(None), 94, 18, 249_884),
    fp8("MTP, asked 32", mtp(32), 125, 25, 327_401),
    Row(
        "machine A before",
        QWEN3_6_27B,
        RTX_PRO_6000,
        {**EXTRA, **BF16, "mem-fraction-static": 0.85},
        {"max_running_requests": 37},
    ),
    Row(
        "machine A after",
        QWEN3_6_27B,
        RTX_PRO_6000,
        {**NO_BUFFER, **BF16, "max-running-requests": 128},
        {"max_running_requests": 72, "slots_per_request": 3},
    ),
]
COUNTS = {"max_running_requests", "slots", "slots_per_request", "page_size"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_prediction_meets_the_recorded_values(row: Row) -> None:
    found = predict(row.model, row.gpu, "0.5.11", row.flags)
    for field, expected in row.expected.items():
        tolerance = 0 if field in COUNTS else 0.005
        assert getattr(found, field) == pytest.approx(expected, rel=tolerance), field


@pytest.mark.parametrize(
    ("flags", "capped_by", "running"),
    [
        ({**EXTRA, "max-running-requests": 20}, "asked", 20),
        ({**EXTRA, "max-running-requests": 128}, "slots", 37),
        ({**NO_BUFFER, "disable-radix-cache": True, "max-mamba-cache-size": 300}, "slots", 300),
        ({**EXTRA, **BF16, "max-mamba-cache-size": 769, "mamba-scheduler-strategy": "no_buffer"}, "slots", 256),
        ({**NO_BUFFER, **BF16, "max-mamba-cache-size": 769, "disable-radix-cache": True}, "tokens", 602),
    ],
)
def test_the_cap_names_its_cause(flags: Mapping[str, FlagValue], capped_by: str, running: int) -> None:
    found = predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", flags)
    assert (found.capped_by, found.max_running_requests) == (capped_by, running)


def test_slots_that_leave_no_kv_token_do_not_fit() -> None:
    with pytest.raises(DoesNotFit, match="raise mem-fraction-static"):
        predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {**EXTRA, "max-mamba-cache-size": 400})


@pytest.mark.parametrize("version", ["0.5.8", "0.5.9", "0.5.10", "0.5.11", "0.5.11.post1", "0.5.12"])
def test_every_release_of_the_regime_is_known(version: str) -> None:
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, version, EXTRA).max_running_requests == 37


@pytest.mark.parametrize(("version", "running"), [("0.5.9", 50), ("0.5.10", 50), ("0.5.11", 40)])
def test_speculation_without_overlap_needs_a_slot_less(version: str, running: int) -> None:
    assert predict(QWEN3_6_27B, B200, version, B200_200).max_running_requests == running


@pytest.mark.parametrize("version", ["0.5.7", "0.5.13", "0.5.23", "0.6.0", "nightly", "0.5"])
def test_another_release_is_an_error_that_names_those_known(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"knows 0\.5\.8 to 0\.5\.12"):
        predict(QWEN3_6_27B, B200, version, {})


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"speculative-algorithm": "NEXTN"}, "disable-radix-cache"),
        ({"mamba-scheduler-strategy": "extra_buffer", "disable-radix-cache": True}, "use no_buffer"),
        ({"tp-size": 2}, "one GPU per server"),
        ({"mamba-ssm-dtype": "float8"}, "knows float32, bfloat16, float16"),
        ({"max-running-requests": "many"}, "not a whole number"),
        ({"mem-fraction-static": "half"}, "not a number"),
    ],
)
def test_flags_that_sglang_refuses_are_refused_before_launch(flags: Mapping[str, FlagValue], text: str) -> None:
    with pytest.raises(FlagsRefused, match=text):
        predict(QWEN3_6_27B, B200, "0.5.11", flags)


def test_flag_names_may_be_written_with_dashes_or_underscores() -> None:
    plain = predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", EXTRA)
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {f"--{k}": v for k, v in EXTRA.items()}) == plain
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {k.replace("-", "_"): v for k, v in EXTRA.items()}) == plain


def test_the_automatic_fraction_of_a_96_gb_card_is_that_of_the_source() -> None:
    assert auto_fraction(RTX_PRO_6000, QWEN3_6_27B, {}) == pytest.approx(0.793, abs=0.001)
    unset = predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {})
    assert unset.mem_fraction_static == pytest.approx(0.793, abs=0.001)


FLAG_SETS = st.fixed_dictionaries(
    {
        "mem-fraction-static": st.floats(0.6, 0.97),
        "mamba-full-memory-ratio": st.floats(0.1, 4.0),
        "mamba-scheduler-strategy": st.sampled_from(["no_buffer", "extra_buffer"]),
        "mamba-ssm-dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "kv-cache-dtype": st.sampled_from(["auto", "fp8_e4m3"]),
        "max-running-requests": st.none() | st.integers(1, 5000),
        "max-mamba-cache-size": st.none() | st.integers(5, 400),
    }
)


def sized(free_gib: float, flags: Mapping[str, FlagValue]) -> Capacity | None:
    gpu = Gpu(name="any", memory_mib=round(free_gib * 1040), free_gib=free_gib, compute_capability="12.0")
    try:
        return predict(QWEN3_6_27B_FP8, gpu, "0.5.11", flags)
    except CapacityError:
        return None


@settings(deadline=None)
@given(free_gib=st.floats(60, 190), more_gib=st.floats(0, 50), flags=FLAG_SETS)
def test_more_free_memory_never_gives_less(free_gib: float, more_gib: float, flags: Mapping[str, FlagValue]) -> None:
    small, large = sized(free_gib, flags), sized(free_gib + more_gib, flags)
    if small is not None:
        assert large is not None
        # A slot more takes its share of the rest: less than one slot's worth of KV tokens may go.
        slot_in_tokens = 0 if flags["max-mamba-cache-size"] else 4700
        assert large.kv_tokens >= small.kv_tokens - slot_in_tokens
        assert large.slots >= small.slots
        assert large.max_running_requests >= min(small.max_running_requests, large.kv_tokens // 2)


@settings(deadline=None)
@given(free_gib=st.floats(60, 190), flags=FLAG_SETS)
def test_the_parts_never_pass_the_static_fraction(free_gib: float, flags: Mapping[str, FlagValue]) -> None:
    found = sized(free_gib, flags)
    if found is not None:
        padding_gib = 0.15
        static_gib = free_gib * found.mem_fraction_static
        assert QWEN3_6_27B_FP8.weights_gib + found.pools_gib <= static_gib + padding_gib
        assert found.max_running_requests * found.slots_per_request <= found.slots
        assert found.outside_gib == pytest.approx(free_gib - QWEN3_6_27B_FP8.weights_gib - found.pools_gib)


@settings(deadline=None)
@given(free_gib=st.floats(60, 190), flags=FLAG_SETS)
def test_more_slots_per_request_never_run_more(free_gib: float, flags: Mapping[str, FlagValue]) -> None:
    three = sized(free_gib, {**flags, "mamba-scheduler-strategy": "no_buffer"})
    five = sized(free_gib, {**flags, "mamba-scheduler-strategy": "extra_buffer"})
    if three is not None and five is not None:
        assert five.max_running_requests <= three.max_running_requests
