"""The memory model against values that real servers printed, the formulas' own table, and its own laws."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackhand.capacity import (
    B200,
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    RTX_PRO_6000,
    Capacity,
    CapacityError,
    DoesNotFit,
    Flags,
    FlagsRefused,
    Gpu,
    UnsupportedVersion,
    auto_fraction,
    predict,
)
from rackhand.capacity.regimes import StateBudget, size_state
from tests.capacity import GPUS, Row, model, rows

EXTRA: Flags = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.9}
NO_BUFFER: Flags = {"mem-fraction-static": 0.9}
BF16: Flags = {"mamba-ssm-dtype": "bfloat16"}
MTP: Flags = {"speculative-algorithm": "NEXTN", "mamba-scheduler-strategy": "extra_buffer"}
EXACT = {"max_running_requests", "slots", "slots_per_request", "page_size", "capped_by", "overlap", "kv_buffers"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_a_prediction_meets_the_check_values(row: Row) -> None:
    found = predict(row.model, row.gpu, row.version, row.flags, row.environ)
    for field, expected in row.expected.items():
        if field in EXACT:
            assert getattr(found, field) == expected, field
        else:
            assert getattr(found, field) == pytest.approx(expected, rel=0.005), field


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
def test_the_cap_names_its_cause(flags: Flags, capped_by: str, running: int) -> None:
    found = predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", flags)
    assert (found.capped_by, found.max_running_requests) == (capped_by, running)


def test_slots_that_leave_no_kv_token_do_not_fit() -> None:
    with pytest.raises(DoesNotFit, match="raise mem-fraction-static"):
        predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {**EXTRA, "max-mamba-cache-size": 400})


@pytest.mark.parametrize("version", ["0.5.8", "0.5.9", "0.5.10", "0.5.11", "0.5.11.post1", "0.5.12"])
def test_every_release_of_the_regime_is_known(version: str) -> None:
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, version, EXTRA).max_running_requests == 37


@pytest.mark.parametrize("version", ["0.4.10", "0.5.2", "0.5.24", "0.6.0"])
def test_another_release_is_an_error_that_names_those_known(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"knows 0\.5\.3 to 0\.5\.23"):
        predict(QWEN3_6_27B, B200, version, {})


@pytest.mark.parametrize("version", ["nightly", "0.5", "", "0.5.x", "0.5.²"])
def test_what_is_no_release_is_told_so(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"write it like 0\.5\.11"):
        predict(QWEN3_6_27B, B200, version, {})


@pytest.mark.parametrize(
    ("version", "flags", "text"),
    [
        ("0.5.11", {"speculative-algorithm": "NEXTN"}, "disable-radix-cache"),
        ("0.5.11", {"mamba-scheduler-strategy": "extra_buffer", "disable-radix-cache": True}, "use no_buffer"),
        ("0.5.11", {"dp-size": 2}, "tensor parallelism only"),
        ("0.5.11", {"tp-size": 5}, "can't be divided"),
        ("0.5.11", {"mamba-ssm-dtype": "float8"}, "knows float32, bfloat16, float16"),
        ("0.5.11", {"max-running-requests": "many"}, "not a whole number"),
        ("0.5.11", {"max-running-requests": True}, "not a whole number"),
        ("0.5.11", {"max-running-requests": 64.7}, "not a whole number"),
        ("0.5.11", {"mem-fraction-static": True}, "not a number"),
        ("0.5.11", {"max-running-requests": 0}, "less than 1"),
        ("0.5.11", {"mem-fraction-static": "half"}, "not a number"),
        ("0.5.11", {"mem-fraction-static": 1.5}, "at most 1"),
        ("0.5.11", {"mamba-scheduler-strategy": "extra_buffer_lazy"}, r"from 0\.5\.13 on"),
        ("0.5.14", {**MTP, "mamba-scheduler-strategy": "extra_buffer_lazy"}, r"from 0\.5\.17 on"),
        ("0.5.18", {"mamba-scheduler-strategy": "extra_buffer_lazy", "disable-overlap-schedule": True}, "overlap"),
        ("0.5.14", {"mamba-scheduler-strategy": "no_buffer"}, "disable-overlap-schedule"),
        ("0.5.16", {**MTP, "enable-linear-replayssm-spec": True}, r"from 0\.5\.17 on"),
        ("0.5.23", {**MTP, "enable-linear-replayssm-spec": True, **BF16}, "float32"),
    ],
)
def test_flags_that_sglang_refuses_are_refused_before_launch(version: str, flags: Flags, text: str) -> None:
    with pytest.raises(FlagsRefused, match=text):
        predict(QWEN3_6_27B, B200, version, flags)


def test_window_pools_are_known_from_the_release_they_were_read_in() -> None:
    with pytest.raises(UnsupportedVersion, match=r"from 0\.5\.11 on"):
        predict(model("gpt-oss-20b"), GPUS["h100"], "0.5.10", {})


def test_flag_names_may_be_written_with_dashes_or_underscores() -> None:
    plain = predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", EXTRA)
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {f"--{k}": v for k, v in EXTRA.items()}) == plain
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {k.replace("-", "_"): v for k, v in EXTRA.items()}) == plain


@pytest.mark.parametrize(
    ("version", "memory_mib", "flags", "expected"),
    [
        # 512 + 12,288 + 512 + 128 + 8 x 58 = 13,904; (97,887 - 13,904) / 97,887 = 0.858; x 0.9248
        ("0.5.11", 97_887, {}, 0.858 * 0.9248),
        # without prefill graphs: 13,440 -> 0.863
        ("0.5.11", 97_887, {"disable-piecewise-cuda-graph": True}, 0.863 * 0.9248),
        ("0.5.9", 97_887, {}, 0.863 * 0.9248),
        # + 4,096 -> 0.816; + 2,048 -> 0.842; nothing from 0.5.14; STANDALONE + 6,144 -> 0.795
        ("0.5.11", 97_887, {"speculative-algorithm": "NEXTN"}, 0.816 * 0.9248),
        ("0.5.9", 97_887, {"speculative-algorithm": "NEXTN"}, 0.842 * 0.9248),
        ("0.5.14", 97_887, {"speculative-algorithm": "NEXTN"}, 0.858 * 0.9248),
        ("0.5.11", 97_887, {"speculative-algorithm": "STANDALONE"}, 0.795 * 0.9248),
        # 512 + 24,576 + 1,024 + 128 + 8 x 74 = 26,832 of 183,359 -> 0.854
        ("0.5.11", 183_359, {}, 0.854 * 0.9248),
        # below 60 GB no floor: 512 + 3,072 + 48 + 128 + 8 x 42 = 4,096 of 32,607 -> 0.874
        ("0.5.11", 32_607, {}, 0.874 * 0.9248),
        # later 4,096 tokens and 48: 512 + 6,144 + 96 + 128 + 8 x 50 = 7,280 -> 0.777
        ("0.5.23", 32_607, {}, 0.777 * 0.9248),
    ],
)
def test_the_automatic_fraction_is_that_of_the_source(
    version: str, memory_mib: int, flags: Flags, expected: float
) -> None:
    gpu = dataclasses.replace(RTX_PRO_6000, memory_mib=memory_mib)
    assert auto_fraction(gpu, QWEN3_6_27B, flags, version) == pytest.approx(expected, abs=0.0011)


def test_a_prefill_chunk_beyond_all_sense_leaves_no_fraction() -> None:
    gpu = Gpu(name="x", memory_mib=97887, free_gib=94.14, compute_capability="12.0")
    assert auto_fraction(gpu, QWEN3_6_27B, {"chunked-prefill-size": 10**17}) < 0


def test_an_unset_fraction_is_the_automatic_one() -> None:
    assert predict(QWEN3_6_27B_FP8, RTX_PRO_6000, "0.5.11", {}).mem_fraction_static == pytest.approx(0.793, abs=0.001)


VERSIONS = ["0.5.3", "0.5.6", "0.5.7", "0.5.9", "0.5.11", "0.5.13", "0.5.16", "0.5.23"]
FLAG_SETS = st.fixed_dictionaries(
    {
        "mem-fraction-static": st.floats(0.6, 0.97),
        "mamba-full-memory-ratio": st.floats(0.1, 4.0),
        "mamba-scheduler-strategy": st.sampled_from(["auto", "no_buffer", "extra_buffer"]),
        "speculative-algorithm": st.sampled_from([None, None, "NEXTN", "NGRAM"]),
        "mamba-ssm-dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "kv-cache-dtype": st.sampled_from(["auto", "fp8_e4m3"]),
        "disable-radix-cache": st.booleans(),
        "max-running-requests": st.none() | st.integers(1, 5000),
        "max-mamba-cache-size": st.none() | st.integers(5, 400),
    }
)
DRAFTS_WITHOUT_RADIX: Flags = {
    "mem-fraction-static": 0.7,
    "mamba-full-memory-ratio": 0.1,
    "mamba-scheduler-strategy": "auto",
    "speculative-algorithm": "NEXTN",
    "mamba-ssm-dtype": "bfloat16",
    "kv-cache-dtype": "fp8_e4m3",
    "disable-radix-cache": False,
    "max-running-requests": None,
    "max-mamba-cache-size": None,
}
MODELS = st.sampled_from([QWEN3_6_27B_FP8, model("llama-3.1-8b"), model("gemma-3-27b"), model("gpt-oss-20b")])


def sized(free_gib: float, flags: Flags, version: str = "0.5.11", shape: object = QWEN3_6_27B_FP8) -> Capacity | None:
    gpu = Gpu(name="any", memory_mib=round(free_gib * 1040), free_gib=free_gib, compute_capability="12.0")
    try:
        return predict(shape, gpu, version, flags)  # type: ignore[arg-type]
    except CapacityError:
        return None


@settings(deadline=None)
@given(
    free_gib=st.floats(60, 190),
    more_gib=st.floats(0, 50),
    flags=FLAG_SETS,
    version=st.sampled_from(VERSIONS),
    shape=MODELS,
)
def test_more_free_memory_never_gives_less(
    free_gib: float, more_gib: float, flags: Flags, version: str, shape: object
) -> None:
    small, large = sized(free_gib, flags, version, shape), sized(free_gib + more_gib, flags, version, shape)
    if small is not None:
        assert large is not None
        # A slot more takes its share of the rest, with speculation its request's copies too.
        in_tokens = 0 if not small.slots else 4700 * (5 if flags["speculative-algorithm"] else 1) + 1
        assert large.kv_tokens >= small.kv_tokens - in_tokens
        assert large.slots >= small.slots
        assert large.max_running_requests >= min(small.max_running_requests, large.kv_tokens // 2)


@settings(deadline=None)
@example(free_gib=60.0, flags=DRAFTS_WITHOUT_RADIX, version="0.5.7", shape=QWEN3_6_27B_FP8)
@given(free_gib=st.floats(60, 190), flags=FLAG_SETS, version=st.sampled_from(VERSIONS), shape=MODELS)
def test_the_parts_never_pass_the_static_fraction(free_gib: float, flags: Flags, version: str, shape: object) -> None:
    found = sized(free_gib, flags, version, shape)
    if found is None:
        return
    # One slot a request: the radix cache is off, asked or, up to 0.5.9, since no_buffer and drafts don't go with it.
    given_slots = flags["max-mamba-cache-size"] is not None or found.slots_per_request == 1
    uncharged = found.regime == "0" or (found.regime == "B1" and given_slots)
    if not (uncharged and flags["speculative-algorithm"]):
        padding_gib = 0.15 * (6 if flags["speculative-algorithm"] else 1)
        counted = found.weights_gib + found.pools_gib
        counted += found.draft_gib + found.draft_kv_gib if found.regime in ("D", "E") else 0.0
        assert counted <= free_gib * found.mem_fraction_static + padding_gib
    assert found.max_running_requests * found.slots_per_request <= found.slots
    spent = found.weights_gib + found.draft_gib + found.draft_kv_gib + found.pools_gib
    assert found.outside_gib == pytest.approx(free_gib - spent)


BUDGETS = st.builds(
    StateBudget,
    regime=st.sampled_from(["0", "A", "B1", "B", "C", "D", "E"]),
    rest_gib=st.floats(5, 150),
    slot_gib=st.floats(0.05, 0.3),
    ratio=st.floats(0.1, 4.0),
    running=st.integers(1, 500),
    slots=st.none() | st.integers(5, 400),
    drafts=st.integers(0, 8),
    per_request=st.integers(1, 8),
    radix=st.booleans(),
)


@settings(deadline=None)
@given(budget=BUDGETS)
def test_more_slots_per_request_never_run_more(budget: StateBudget) -> None:
    more = dataclasses.replace(budget, per_request=budget.per_request + 1)
    assert size_state(more).slots // more.per_request <= size_state(budget).slots // budget.per_request
