from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis, diagnose
from rackhand.errors import UsageError
from rackhand.inventory import Fleet, Host, PlainSsh, Ssh
from rackhand.render.screen import JsonScreen
from rackhand.render.text import TextScreen
from rackhand.render.verdicts import NOTHING, TOO_EARLY, diagnosis_lines, verdict_line
from rackhand.workflows.diagnose import diagnose as watch_and_diagnose
from rackhand.workflows.diagnose import told
from tests.test_diagnose import GPUS, samples_of

HOST = Host("rtx", PlainSsh(Ssh("rtx")))


def samples(name: str) -> list[Sample]:
    case: dict[str, Any] = json.loads((Path(__file__).parent / f"diagnose/{name}.json").read_text())
    return samples_of(case)


def test_the_live_line_says_what_limits_what_is_next_and_what_to_try() -> None:
    line = verdict_line(diagnose(samples("client-bound-field-report-after")), gpus=GPUS)
    assert line == (
        "verdict: client-bound: the client sends too little: 8 slots per GPU stand empty; next state-bound; "
        "try ./inv resume --concurrency auto, or 72"
    )
    assert verdict_line(diagnose(samples("hang")), gpus=GPUS).startswith("verdict: hang on GPU 3: the server hangs")
    assert verdict_line(diagnose(samples("ramping")), gpus=GPUS) == ""
    assert verdict_line(Diagnosis("steady", 30, 16, ()), gpus=GPUS) == f"verdict: {NOTHING}"


def test_tail_metrics_shows_the_line_below_its_table() -> None:
    out = io.StringIO()
    with TextScreen(out, width=120) as screen:
        for sample in samples("client-bound-field-report-after"):
            screen.show(HOST, sample)
    assert "8 slots per GPU stand empty" in out.getvalue()


def test_a_diagnosis_tells_evidence_advice_and_cost_in_lines() -> None:
    text = "\n".join(diagnosis_lines(diagnose(samples("state-bound")), gpus=GPUS))
    assert "NOW  state-bound (high confidence): the state pool limits the requests at a time: cap 37" in text
    assert "seen: cap 37 = 185 state slots // 5" in text
    assert "try: ./inv restart-servers --set mamba-ssm-dtype=bfloat16 -> nearly twice the slots; costs: changes" in text
    assert (
        "or: ./inv restart-servers --set mamba-scheduler-strategy=no_buffer --set disable-overlap-schedule=true"
        " -> cap 61 instead of 37: x1.65 running" in text
    )
    assert diagnosis_lines(diagnose(samples("ramping")), gpus=GPUS)[-1] == TOO_EARLY
    assert diagnosis_lines(Diagnosis("steady", 30, 16, ()), gpus=GPUS)[-1] == NOTHING


def test_where_no_server_runs_a_diagnosis_says_so() -> None:
    out, seen = io.StringIO(), samples("kv-bound")[-1]
    stopped = replace(seen, gpus=tuple(replace(gpu, state="stopped") for gpu in seen.gpus))
    told(TextScreen(out))(HOST, Diagnosis("idle", 30, 16, ()), stopped)
    assert out.getvalue() == "rtx: no server runs here; ./inv restart-servers --hosts rtx starts them\n"


def test_for_programs_a_diagnosis_is_one_object() -> None:
    out, seen = io.StringIO(), samples("kv-bound")
    told(JsonScreen(out))(HOST, diagnose(seen), seen[-1])
    found = json.loads(out.getvalue())
    assert (found["event"], found["where"], found["gpus"], found["course"]) == ("diagnosis", "rtx", 8, "steady")
    (verdict,) = found["verdicts"]
    assert (verdict["name"], verdict["stage"], verdict["confidence"]) == ("kv-bound", "now", "high")
    assert verdict["advice"][0]["do"] == "./inv restart-servers --hosts rtx --set kv-cache-dtype=fp8_e4m3"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_length_of_a_watch_is_refused_before_any_host_is_asked(seconds: float) -> None:
    fleet = Fleet(Path("/i/mine.yaml"), (HOST,), ())
    with pytest.raises(UsageError, match=r"--seconds .* can't be"):
        watch_and_diagnose(fleet, (HOST,), tell=lambda *_: None, say=lambda *_: None, seconds=seconds)
