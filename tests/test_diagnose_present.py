"""Rules and advice by what a server has: cases of tests/diagnose with other flags, another model, another device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackhand.capacity.flag_names import IN_BOTH, ONLY_0_5_11, ONLY_0_5_23
from rackhand.diagnose import RULES, Diagnosis, diagnose
from tests.test_diagnose import samples_of

CASES = Path(__file__).parent / "diagnose"
CPU = {"device": "cpu"}
PLAIN = {"slots": None, "mamba_usage": None}


def told(case: str, gpu: dict[str, Any], flags: dict[str, str], host: dict[str, Any]) -> Diagnosis:
    data = json.loads((CASES / f"{case}.json").read_text())
    for fields in (data["gpu"], *data.get("odd", {}).values()):
        fields.update(gpu)
        if flags:
            fields["flags"] = {**data["gpu"].get("flags", {}), **flags}
    data["host"] = {**data.get("host", {}), **host}
    return diagnose(samples_of(data))


def advice_of(found: Diagnosis) -> str:
    return "\n".join(advice.do for verdict in found.verdicts for advice in verdict.advice)


@pytest.mark.parametrize(
    ("case", "gpu", "flags", "silent"),
    [
        ("graph-bound", {}, CPU, "graph-bound"),
        ("graph-bound", {}, {"device": "xpu"}, "graph-bound"),
        ("thermal-throttling", {}, CPU, "thermal-throttling"),
        ("power-throttling", {}, CPU, "power-throttling"),
        ("cpu-bound", {}, CPU, "cpu-bound"),
        ("state-bound", PLAIN, {}, "state-bound"),
        ("state-bound", PLAIN, {"disable-radix-cache": "true"}, "state-bound"),
        ("client-bound-field-report-before", PLAIN, {"disable-radix-cache": "true"}, "state-bound"),
    ],
)
def test_a_rule_is_silent_where_what_it_is_about_is_not_there(
    case: str, gpu: dict[str, Any], flags: dict[str, str], silent: str
) -> None:
    names = {verdict.name for verdict in told(case, gpu, flags, {}).verdicts}
    assert silent not in names


def test_without_speculation_no_draft_is_said_not_to_pay() -> None:
    data = json.loads((CASES / "drafts-do-not-pay.json").read_text())
    del data["gpu"]["flags"]["speculative-algorithm"]
    assert "drafts-do-not-pay" not in {verdict.name for verdict in diagnose(samples_of(data)).verdicts}


def test_a_disk_is_not_blamed_by_the_util_of_a_gpu_that_nothing_runs_on() -> None:
    waits = {"iowait_pct": 30.0}
    busy = {"util_pct": 0, "graph": None}
    assert "disk-bound" in {v.name for v in told("cap-bound", busy, {}, waits).verdicts}
    assert "disk-bound" not in {v.name for v in told("cap-bound", busy, CPU, waits).verdicts}


@pytest.mark.parametrize(
    ("case", "gpu", "flags", "left_out", "told_instead"),
    [
        ("graph-bound", {}, {}, "disable-cuda-graph", "cuda-graph-max-bs=37"),
        ("graph-bound", {}, {"disable-cuda-graph": "true"}, "max-bs", "--set disable-cuda-graph=false"),
        ("graph-bound", {}, {"disable-decode-cuda-graph": "true"}, "max-bs", "--set disable-decode-cuda-graph=false"),
        ("graph-bound", {}, {"cuda-graph-backend-decode": "disabled"}, "max-bs", "--set cuda-graph-backend-decode=fa"),
        ("graph-bound", {}, {"cuda-graph-backend-decode": "full"}, "backend-decode", "cuda-graph-max-bs=37"),
        ("graph-bound", {}, {"cuda-graph-max-bs": "16"}, "start-up log", "cuda-graph-max-bs=37"),
        ("graph-bound", {}, {"cuda-graph-max-bs-decode": "64"}, "max-bs", "start-up log"),
        ("graph-bound", {}, {"cuda-graph-bs": "1 8 40"}, "max-bs", "start-up log"),
        ("kv-bound", {}, CPU, "fp8", "schedule-conservativeness"),
        ("kv-bound", PLAIN, {}, "mamba", "mem-fraction-static"),
        ("kv-bound", {}, {}, "no such words", "mamba-full-memory-ratio"),
        ("retraction-storm", PLAIN, {}, "mamba", "mem-fraction-static"),
        ("prefill-bound", {}, {"chunked-prefill-size": "-1"}, "chunked", "order prompts"),
        ("prefill-bound", {}, {"disable-radix-cache": "true"}, "order prompts", "chunked-prefill-size=8192"),
        ("drafts-do-not-pay", {}, {"speculative-num-draft-tokens": "2"}, "fewer draft", "speculative-algorithm=false"),
        ("drafts-do-not-pay", {}, {"speculative-num-draft-tokens": "4"}, "no_buffer --set disable-o", "fewer draft"),
        ("state-bound", {}, {}, "fewer draft", "no_buffer --set disable-overlap-schedule=true"),
        ("state-bound", {}, {}, "no such words", "e.g. 0.90 and 1.2"),
        ("state-bound", {}, {"mem-fraction-static": "0.92"}, "e.g.", "a larger mamba-full-memory-ratio"),
        ("state-bound", {}, {"mamba-full-memory-ratio": "1.5"}, "e.g.", "a larger mamba-full-memory-ratio"),
        ("state-bound", {"cap": 61, "running": 61}, {"mamba-scheduler-strategy": "no_buffer"}, "no_buffer", "radix"),
        ("state-bound", {"cap": 185, "running": 185}, {"disable-radix-cache": "true"}, "radix", "mamba-full-memory"),
        ("slow-gpu", {}, CPU, "nvidia-smi", "./inv restart-servers --gpus"),
        ("slow-gpu", {}, {}, "no such words", "nvidia-smi"),
    ],
)
def test_advice_is_left_out_where_what_it_names_is_not_there(
    case: str, gpu: dict[str, Any], flags: dict[str, str], left_out: str, told_instead: str
) -> None:
    advice = advice_of(told(case, gpu, flags, {}))
    assert left_out not in advice
    assert told_instead in advice


def test_what_is_not_known_counts_as_there() -> None:
    data = json.loads((CASES / "graph-bound.json").read_text())
    del data["gpu"]["flags"]
    assert "cuda-graph-max-bs=37" in advice_of(diagnose(samples_of(data)))


def test_every_flag_in_advice_is_one_of_sglang() -> None:
    known = IN_BOTH | ONLY_0_5_11 | ONLY_0_5_23 | {"mamba-scheduler-strategy"}
    for rule in RULES:
        for change in rule.changes:
            for part in change.do.split("--set ")[1:]:
                assert part.partition("=")[0] in known, (rule.name, change.do)


def test_no_buffer_is_never_advised_beside_a_radix_cache_and_the_overlap_scheduler() -> None:
    for rule in RULES:
        for change in rule.changes:
            if "=no_buffer" in change.do:
                assert "disable-overlap-schedule=true" in change.do or "disable-radix-cache=true" in change.do
