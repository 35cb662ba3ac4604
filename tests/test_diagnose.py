"""Every verdict as data: tests/diagnose/*.json, one host of eight GPUs each. `gpu` is all of them, `odd` those that
differ, `to` what figures have become at the end of the window."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract import from_json
from rackhand.contract.watch import GpuSample, HostSample, JobSample, Sample
from rackhand.diagnose import RULES, Diagnosis, diagnose
from rackhand.diagnose.rule import If

CASES = sorted((Path(__file__).parent / "diagnose").glob("*.json"))
RECORDED = sorted((Path(__file__).parent / "diagnose/lab").glob("*.json"))
"""What the runs of tests/lab/test_verdicts.py showed: RACKHAND_KEEP_SAMPLES=tests/diagnose/lab writes them anew."""
HEALTHY = frozenset({"idle", "state-bound"})
GPUS = 8


def samples_of(case: dict[str, Any]) -> list[Sample]:
    seconds, interval_s = case.get("seconds", 30), 2
    count = int(seconds / interval_s) + 1
    jobs = (JobSample("j", "/o", case["progress"], case.get("progress_age_s", 0.5)),) if "progress" in case else ()
    host = from_json(HostSample, case.get("host", {}))
    shares = [n / max(1, count - 1) if "to" in case else 0.0 for n in range(count)]
    gpus = {share: tuple(_gpu(case, gpu, share) for gpu in range(GPUS)) for share in set(shares)}
    return [Sample(100.0 + n * interval_s, n, gpus[share], jobs, host=host) for n, share in enumerate(shares)]


@cache
def case_of(path: Path) -> tuple[dict[str, Any], Diagnosis]:
    case = json.loads(path.read_text())
    return case, diagnose(samples_of(case))


def _gpu(case: dict[str, Any], gpu: int, share: float) -> GpuSample:
    fields = {"state": "running", **case["gpu"], **case.get("odd", {}).get(str(gpu), {}), "gpu": gpu}
    for name, last in case.get("to", {}).items():
        fields[name] = round(fields[name] + (last - fields[name]) * share)
    return from_json(GpuSample, fields)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_these_figures_give_these_verdicts_and_no_other(path: Path) -> None:
    case, found = case_of(path)
    assert found.course == case["course"]
    told = [[v.name, v.stage, v.confidence, list(v.gpus)] for v in found.verdicts]
    everyone = list(range(GPUS))
    assert told == [[*wanted, everyone][:4] if len(wanted) == 3 else wanted for wanted in case["expect"]]
    text = json.dumps([[v.says, v.evidence, [[a.do, a.effect, a.cost] for a in v.advice]] for v in found.verdicts])
    for words in case.get("words", ()):
        assert words in text


def recorded_samples(path: Path) -> tuple[dict[str, Any], list[Sample]]:
    case = json.loads(path.read_text())
    for row in case["samples"]:
        row["gpus"] = [{**always, **gpu} for always, gpu in zip(case["gpus"], row["gpus"], strict=True)]
    return case, [from_json(Sample, row) for row in case["samples"]]


@pytest.mark.parametrize("path", [p for p in RECORDED if p.stem != "healthy"], ids=lambda path: path.stem)
def test_what_the_lab_showed_gives_the_verdict_of_its_cause_and_no_other(path: Path) -> None:
    case, samples = recorded_samples(path)
    found = diagnose(samples, window_s=case["window_s"])
    assert [[v.name, v.stage, list(v.gpus)] for v in found.verdicts] == case["expect"]


def test_a_healthy_run_from_its_first_to_its_last_request_has_no_false_verdict() -> None:
    _, samples = recorded_samples(Path(__file__).parent / "diagnose/lab/healthy.json")
    told = [{v.name for v in diagnose(samples[: end + 1]).now} for end in range(len(samples))]
    assert set().union(*told) == HEALTHY
    assert {"state-bound"} in told


def test_every_rule_has_a_case_of_its_own() -> None:
    told = {wanted[0] for path in CASES for wanted in json.loads(path.read_text())["expect"]}
    assert told == {rule.name for rule in RULES}


def test_every_verdict_says_what_to_try_and_what_it_costs() -> None:
    for path in CASES:
        for verdict in case_of(path)[1].verdicts:
            assert verdict.says
            assert verdict.evidence
            assert verdict.advice
            assert all(advice.do and advice.cost for advice in verdict.advice)
            assert "{" not in " ".join([verdict.says, *verdict.evidence, *(a.do for a in verdict.advice)])


def test_names_that_rules_hide_are_names_of_rules() -> None:
    assert {name for rule in RULES for name in rule.hides} <= {"*", *(rule.name for rule in RULES)}


def test_an_unknown_figure_meets_no_condition() -> None:
    assert not If("queue", "<", 1).holds({})
    assert not If("queue", ">=", "cap").holds({"queue": 1})
    assert If("queue", ">=", "cap").holds({"queue": 2, "cap": 2})


def test_the_lines_of_one_gpu_are_evidence() -> None:
    run = samples_of(json.loads((Path(__file__).parent / "diagnose/state-bound.json").read_text()))
    run[-1] = replace(run[-1], gpus=tuple(replace(gpu, lines=(f"Decode batch {gpu.gpu}",)) for gpu in run[-1].gpus))
    assert diagnose(run).verdicts[0].lines == ("Decode batch 0",)


def test_nothing_seen_is_no_verdict() -> None:
    assert diagnose([]).verdicts == ()
    assert diagnose([Sample(1.0)]).verdicts == ()


def test_a_past_rebuilt_from_logs_does_not_hide_a_hot_gpu() -> None:
    case = json.loads((Path(__file__).parent / "diagnose/thermal-throttling.json").read_text())
    live = samples_of(case)
    unseen = {"util_pct": None, "power_w": None, "temperature_c": None, "throttle": ()}
    past = [
        replace(s, time=s.time - 40, rebuilt=True, gpus=tuple(replace(gpu, **unseen) for gpu in s.gpus)) for s in live
    ]
    found = diagnose([*past, *live[:2]])
    assert ("thermal-throttling", (2,)) in [(v.name, v.gpus) for v in found.now]
