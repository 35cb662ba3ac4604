"""Warnings, the best changes, what-ifs, and the comparison after a start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rackhand.capacity import QWEN3_6_27B, QWEN3_6_27B_FP8, ModelShape
from rackhand.capacity.advice import advise, balanced_ratio
from rackhand.capacity.cautions import warn
from rackhand.capacity.compare import Effective, compare_effective
from rackhand.capacity.forecast import PREDICTED, combinations, foresee
from rackhand.capacity.gpus import kind_of
from rackhand.capacity.outlook import Launch, look_ahead
from rackhand.capacity.rate import Lengths
from tests.capacity import model

JOB = Lengths(prompt=105, output=2068)
MTP = {"speculative-algorithm": "NEXTN", "mamba-scheduler-strategy": "extra_buffer"}
B200 = {**MTP, "max-mamba-cache-size": 200, "mem-fraction-static": 0.93, "max-running-requests": 64}
EXTRA = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.9}


def launch(
    flags: dict[str, Any], gpu: str = "rtx-pro-6000", version: str = "0.5.11", shape: ModelShape = QWEN3_6_27B_FP8
) -> Launch:
    kind = kind_of(gpu)
    assert kind is not None
    return Launch(model=shape, gpu=kind.gpu(), kind=kind, version=version, flags=flags)


@pytest.mark.parametrize(
    ("version", "flags", "says"),
    [
        ("0.5.11", {**EXTRA, "max-running-requests": 128}, "128 running requests asked, 37 will run: 185 slots"),
        ("0.5.14", {"mamba-scheduler-strategy": "extra_buffer"}, "is deprecated in 0.5.14"),
        ("0.5.20", {"mamba-scheduler-strategy": "extra_buffer"}, "is gone in 0.5.20: its name is --mamba-radix-cache"),
        ("0.5.11", {"mamba-radix-cache-strategy": "extra_buffer"}, "is unknown to 0.5.11: its name there is --mam"),
        ("0.5.11", {"enable-unified-memory": True}, "is unknown to 0.5.11, which ends with status 2"),
        ("0.5.23", {"enable-unified-memory": True}, "isn't modelled"),
        ("0.5.11", {"mem-fraction-statc": 0.9}, "is no flag of SGLang 0.5.11 or 0.5.23"),
        ("0.5.11", {"dcp-size": 1}, "--dcp-size is unknown to 0.5.11, which ends with status 2"),
        ("0.5.23", {"torchao-config": "int8wo"}, "--torchao-config is gone in 0.5.23"),
        ("0.5.18", {"torchao-config": "int8wo"}, "went between 0.5.11 and 0.5.23; restart-servers asks the installed"),
        ("0.5.6", {"max-mamba-cache-size": 50}, "is ignored by 0.5.6"),
        ("0.5.11", {}, "an upgrade to 0.5.14 or later"),
        ("0.5.14", {}, "from 0.5.14 that is extra_buffer"),
        ("0.5.11", {**EXTRA, "mem-fraction-static": 0.98}, "only 1.7 GiB stay"),
        ("0.5.3", {**MTP, "mem-fraction-static": 0.9, "max-running-requests": 200}, "pass the GPU's memory by"),
    ],
)  # fmt: skip
def test_a_warning_says_what_is_not_as_the_flags_suggest(version: str, flags: dict[str, Any], says: str) -> None:
    asked = launch(flags, version=version)
    assert any(says in text for text in warn(asked, look_ahead(asked, JOB)))


@pytest.mark.parametrize("version", ["0.5.11", "0.5.18", "0.5.23"])
def test_a_flag_that_both_ends_know_is_no_matter(version: str) -> None:
    asked = launch(
        {"mem-fraction-static": 0.9, "attention-backend": "triton", "reasoning-parser": "qwen3"}, version=version
    )
    assert not any("status 2" in text or "between" in text for text in warn(asked, look_ahead(asked, JOB)))


def test_memory_kept_for_requests_that_never_run_is_told_with_the_way_out() -> None:
    asked = launch({**B200, "mamba-full-memory-ratio": 0.6}, "b200", shape=QWEN3_6_27B)
    found = warn(asked, look_ahead(asked, JOB))
    assert any("13.19 GiB are reserved" in text and "40 gives 1,023,552 KV tokens (+28%)" in text for text in found)


def test_gpus_of_two_sizes_and_an_automatic_fraction_are_told() -> None:
    asked = launch({"mamba-scheduler-strategy": "extra_buffer"})
    outlook = look_ahead(asked, JOB)
    assert any("sizes all for the smallest" in t for t in warn(asked, outlook, gpu_totals_mib=(97_887, 46_068)))
    assert not any("smallest" in t for t in warn(asked, outlook, gpu_totals_mib=(97_887, 97_887)))


def test_flags_that_fit_raise_no_warning() -> None:
    asked = launch(EXTRA)
    assert warn(asked, look_ahead(asked, JOB), gpu_totals_mib=(97_887,)) == ()


def test_kv_tokens_that_fill_first_limit_what_a_job_keeps_running() -> None:
    long = Lengths(prompt=20_000, output=20_000)
    asked = launch(EXTRA)
    found = look_ahead(asked, long)
    assert (found.limit, found.steady_running) == ("kv", int(487_133 * 0.95 // long.resident))
    assert any("expect retractions" in text for text in warn(asked, found))


def test_the_best_changes_are_sorted_gain_and_cost_something() -> None:
    found = advise(launch(EXTRA), JOB)
    assert len(found) == 3
    assert [one.gain for one in found] == sorted((one.gain for one in found), reverse=True)
    assert all(one.gain > 0.01 and one.change.cost for one in found)
    assert "disable-radix-cache" in found[0].change.flags


def test_a_changes_gain_is_that_of_the_launch_with_it() -> None:
    now = launch(EXTRA)
    before = look_ahead(now, JOB).rate
    bf16 = next(one for one in advise(now, JOB, most=9) if "mamba-ssm-dtype" in one.change.flags)
    after = look_ahead(dataclasses.replace(now, flags={**EXTRA, **bf16.change.flags}), JOB).rate
    assert before is not None and after is not None
    assert bf16.gain == pytest.approx(after.tokens_per_s / before.tokens_per_s - 1)
    assert bf16.outlook.capacity.max_running_requests == 72


@pytest.mark.parametrize("version", ["0.5.6", "0.5.9", "0.5.11", "0.5.13", "0.5.14", "0.5.23"])
@pytest.mark.parametrize("flags", [{}, EXTRA, MTP], ids=["plain", "extra", "mtp"])
def test_advice_is_only_what_that_release_would_take(version: str, flags: dict[str, Any]) -> None:
    asked = launch(flags, version=version)
    for one in advise(asked, JOB, most=9):
        merged = {k: v for k, v in {**flags, **one.change.flags}.items() if v is not None}
        assert look_ahead(dataclasses.replace(asked, flags=merged), JOB).steady_running > 0
        new_name = "mamba-radix-cache-strategy" in one.change.flags
        assert not new_name or version >= "0.5.14"


def test_a_plain_model_gets_no_advice_about_states() -> None:
    asked = launch({"max-running-requests": 16}, "h100", shape=model("llama-3.1-8b"))
    names = {name for one in advise(asked, JOB, most=9) for name in one.change.flags}
    assert "max-running-requests" in names
    assert not any("mamba" in name for name in names)


@pytest.mark.parametrize(("tokens", "expected"), [(2048, 5.7), (8192, 1.43), (32_768, 0.36), (131_072, 0.09)])
def test_the_balanced_ratio_is_that_of_the_formula(tokens: int, expected: float) -> None:
    lengths = Lengths(prompt=tokens / 1.1, output=1e-9)
    found = balanced_ratio(QWEN3_6_27B, lengths, per_request=5, drafts=0, state_dtype="float32", kv_dtype="auto")
    assert found == pytest.approx(expected, rel=0.02)


def test_what_ifs_are_every_combination_and_say_what_would_fail() -> None:
    what_if = {"mem-fraction-static": (0.2, 0.9), "mamba-ssm-dtype": ("float32", "bfloat16")}
    found = foresee("x", launch(EXTRA), lengths=JOB, lengths_from="", what_if=what_if)
    assert [trial.outlook is None for trial in found.trials] == [True, True, False, False]
    assert "raise mem-fraction-static" in found.trials[0].problem
    assert found.trials[3].outlook is not None and found.trials[3].outlook.capacity.max_running_requests == 72
    assert combinations({}) == []


def test_a_launch_that_fails_is_a_forecast_with_its_reason() -> None:
    found = foresee("x", launch({"speculative-algorithm": "NEXTN"}), lengths=JOB, lengths_from="")
    assert found.outlook is None
    assert "use extra_buffer" in str(found.as_json()["error"])


def test_effective_values_within_three_percent_are_as_predicted() -> None:
    found = look_ahead(launch(EXTRA), JOB).capacity
    assert compare_effective(found, Effective(max_running_requests=37, kv_tokens=480_000, slots=187)) == ()
    assert compare_effective(found, Effective()) == ()
    (one,) = compare_effective(found, Effective(max_running_requests=30, kv_tokens=487_133))
    assert str(one) == "max_running_requests: 37 predicted, 30 effective (-18.9%)"


def test_the_predicted_keys_stand_in_every_forecast_and_are_null_without_an_outlook() -> None:
    fits = foresee("x", launch(EXTRA), lengths=JOB, lengths_from="").as_json()
    assert all(fits[key] is not None for key in PREDICTED)
    too_big = foresee("x", launch({"mem-fraction-static": 0.1}), lengths=JOB, lengths_from="").as_json()
    assert too_big["error"]
    assert all(too_big[key] is None for key in PREDICTED)
