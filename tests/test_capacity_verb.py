"""The verb: what it asks, prints and ends with. No host is reached."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract import from_json
from rackhand.contract.files import CommandState, Environment, Interpreter, Platform, Workspace
from rackhand.contract.job import JobState
from rackhand.contract.servers import OwnServer, ServerRecord, ServersState
from rackhand.errors import UsageError
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Fleet, Host, PlainSsh, ServerSpec, Ssh
from rackhand.launch import DEFAULT_LENGTHS, lengths_of, seen_gpu
from rackhand.model_files import model_files_argv, parse_model_files, shape_of
from rackhand.render.capacity import show
from rackhand.report import Report
from rackhand.workflows.capacity import forecast_file, forecast_fleet, parse_question
from tests.capacity import HERE, config

QWEN = str(HERE / "configs" / "qwen3.6-27b.json")
FILE = {"model_config": QWEN, "gpu_free_gib": 94.14, "weights_gib": 28.47, "version": "0.5.11"}
SETS = ["mem-fraction-static=0.9", "mamba-scheduler-strategy=extra_buffer"]
KEYS = {
    "slots",
    "slots_per_request",
    "max_running_requests",
    "capped_by",
    "kv_tokens",
    "kv_each_gib",
    "ssm_gib",
    "conv_gib",
    "intermediate_ssm_gib",
    "intermediate_conv_gib",
    "reserved_unused_gib",
    "tokens_per_s",
    "roofline_tokens_per_s",
}
GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def host(**spec: Any) -> Host:
    args = {"mamba-scheduler-strategy": "extra_buffer", "mem-fraction-static": 0.9}
    server = ServerSpec("Qwen/Qwen3.6-27B-FP8", version="0.5.11", args=args, **spec)
    return Host("pve1", PlainSsh(Ssh("nobody@nowhere.invalid")), servers=(server,))


def facts(*gpus: GpuFacts, servers: ServersState | None = None, jobs: tuple[JobState, ...] = ()) -> Facts:
    return Facts(
        where="pve1",
        platform=Platform("3.11", "/usr/bin/python3", "x86_64", "glibc"),
        workspace=Workspace(exists=True),
        interpreter=Interpreter("python3", found=True),
        environment=Environment(),
        gpus=gpus,
        servers=servers or ServersState(),
        jobs=jobs,
    )


def test_json_has_every_key_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    found = forecast_file(parse_question(sets=SETS, **FILE))
    assert show([found], None, as_json=True, verbose=False) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.keys() >= KEYS
    assert (said["slots"], said["max_running_requests"], said["kv_tokens"]) == (185, 37, 487_133)
    assert 0 < said["tokens_per_s"] < said["roofline_tokens_per_s"]
    assert len(said["changes"]) == 3


def test_the_text_shows_the_memory_to_scale_the_cap_and_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    question = parse_question(sets=SETS, what_if=["mamba-ssm-dtype=float32,bfloat16"], **FILE)
    show([forecast_file(question)], None, as_json=False, verbose=False)
    text = capsys.readouterr().out
    bar = next(line for line in text.splitlines() if "[W" in line).partition("[")[2].rstrip("]")
    assert len(bar) == 64
    # 28.47 and 26.67 of 94.14 GiB
    assert (bar.count("W"), bar.count("S")) == (19, 18)
    assert "running at most   37, capped by state slots" in text
    assert "costs quality" in text
    assert "mamba-ssm-dtype=bfloat16  364" in text


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"version": "0.5.30"}, 2, "and no other release"),
        ({"gpu_free_gib": 20.0}, 4, "don't fit into the 20.00 GiB"),
        ({"sets": ["speculative-algorithm=NEXTN"]}, 4, "use extra_buffer"),
    ],
)
def test_what_can_not_start_has_an_exit_code_of_its_own(
    given: dict[str, Any], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = forecast_file(parse_question(**{**FILE, **given}))
    assert show([found], None, as_json=False, verbose=False) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sets": ["tp-size"]}, "has no value"),
        ({"sets": ["=3"]}, "no flag name"),
        ({"sets": ["page-size=3", "--page_size=4"]}, "--set page-size is given twice"),
        ({"sets": ["bogus=1"]}, "^--set: SGLang has no flag --bogus"),
        ({"what_if": ["bogus=1"]}, "^--what-if: SGLang has no flag --bogus"),
        ({"what_if": ["mem-fraction-statik=0.9"]}, "did you mean mem-fraction-static"),
        (
            {"sets": ["api-key=hunter2"]},
            "^--set: --api-key has no place here; it changes no size",
        ),
        ({"what_if": ["page-size=1,,2"]}, "has no value"),
        ({"what_if": ["page-size=1,2,3,4,5,6,7,8", "tp-size=1,2,3,4,5,6,7,8,9"]}, "72 combinations; try at most 64"),
        ({"gpu": "h1000"}, "did you mean"),
        ({"gpu_free_gib": -1}, "can't be"),
        ({"weights_gib": float("nan")}, "can't be"),
        ({"lengths": "12"}, "isn't PROMPT,OUTPUT"),
        ({"lengths": "12,0"}, "isn't PROMPT,OUTPUT"),
        ({"model_config": "/nowhere"}, "No such file"),
        ({"model_config": __file__}, "is no JSON"),
    ],
)
def test_a_wrong_word_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_question(**given)


def test_a_config_nested_too_deep_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 20_000)
    with pytest.raises(UsageError, match="is no JSON"):
        parse_question(model_config=str(tmp_path))


@pytest.mark.parametrize("gone", ["gpu_free_gib", "weights_gib", "version", "model_config"])
def test_what_a_file_alone_does_not_say_is_asked_for(gone: str) -> None:
    given = {**FILE, "model_config": str(HERE / "configs" / "llama-3.1-8b.json")}
    del given[gone]
    with pytest.raises(UsageError, match=r"no GPU|no safetensors|no --engine-version|no model"):
        forecast_file(parse_question(**given))


def test_an_unknown_architecture_is_told_with_its_missing_fields() -> None:
    question = parse_question(**{**FILE, "model_config": str(HERE / "configs" / "unknown-mamba.json")})
    with pytest.raises(UsageError, match=r"Zamba9ForCausalLM isn't known.*num_key_value_heads"):
        forecast_file(question)


def test_with_a_gpu_named_no_host_is_asked() -> None:
    fleet = Fleet(Path("x.yaml"), (host(),))
    found, report = forecast_fleet(fleet, fleet.hosts, parse_question(gpu="rtx-pro-6000"), say=lambda *_: None)
    assert (report, report.exit_code) == (Report("capacity", ()), 0)
    (one,) = found
    assert one.outlook is not None and one.outlook.capacity.max_running_requests == 37


@pytest.mark.parametrize(("name", "count"), [("pve1", 1), ("pve1/0", 1), ("sglang-gpu1", 1), ("pve1/gpu7", 1)])
def test_a_server_is_named_by_host_gpu_or_session(name: str, count: int) -> None:
    fleet = Fleet(Path("x.yaml"), (host(),))
    question = parse_question(gpu="b200", server=name)
    assert len(forecast_fleet(fleet, fleet.hosts, question, say=lambda *_: None)[0]) == count
    with pytest.raises(UsageError, match="no server 'other'"):
        forecast_fleet(fleet, fleet.hosts, dataclasses.replace(question, server="other"), say=lambda *_: None)


def test_memory_of_a_server_of_ours_counts_as_free_and_of_others_does_not() -> None:
    idle, busy = (GpuFacts(0, "GPU-a", GPU, 97_887, mib) for mib in (4, 90_000))
    ours = ServerRecord(0, 1, 1, 30000, "sglang-gpu0", "", "", 0.0)
    state = ServersState(own=(OwnServer(ours, alive=True),), baseline_mib={"GPU-a": 4})
    assert seen_gpu(facts(idle), idle).free_gib == pytest.approx(94.14)
    assert seen_gpu(facts(busy, servers=state), busy).free_gib == pytest.approx(94.14)
    assert seen_gpu(facts(busy), busy).free_gib == pytest.approx(94.14 - 90_000 / 1024)


def test_a_small_gpu_beside_a_large_one_sets_the_total() -> None:
    large, small = GpuFacts(0, "a", GPU, 97_887, 4), GpuFacts(1, "b", "NVIDIA L40S", 46_068, 4)
    assert seen_gpu(facts(large, small), large).memory_mib == 46_068


def test_lengths_are_those_of_the_job_that_ran_there() -> None:
    progress = {
        "total": 653_929, "completed": 291, "failed": 0, "rate_per_sec": 1.7, "eta_hours": 106.92,
        "total_input_tokens": 30_080, "total_output_tokens": 574_563, "avg_output_tokens": 1974.0,
        "elapsed_hours": 0.05, "s3_uploaded": 0, "s3_bytes": 0, "status": "running",
    }  # fmt: skip
    found, source = lengths_of(
        facts(jobs=(from_json(JobState, {"output": "/w/out", "exists": True, "progress": progress}),))
    )
    assert (round(found.prompt), found.output) == (103, 1974.0)
    assert source == "291 answers in /w/out"
    assert lengths_of(facts())[0] == DEFAULT_LENGTHS


def test_a_models_files_are_read_from_a_directory_or_the_hubs_cache(tmp_path: Path) -> None:
    import subprocess

    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-32B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config("qwen3-32b")))
    (snapshot / "model-1.safetensors").write_bytes(b"x" * 1000)
    for model in (str(snapshot), "Qwen/Qwen3-32B"):
        argv = model_files_argv(model)
        done = subprocess.run(
            argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path)}
        )
        files = parse_model_files(CommandState(done.returncode, done.stdout, done.stderr))
        assert files is not None and files.config["hidden_size"] == 5120
        assert files.shards_gib == 1000 / 2**30
    done = subprocess.run(model_files_argv("Qwen/other"), capture_output=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 3


def test_a_drafts_size_is_reckoned_where_nobody_measured_it() -> None:
    files = parse_model_files(CommandState(0, json.dumps(config("qwen3.6-27b")) + "\n--shards--\n54815137792\n", ""))
    assert shape_of("/models/mine", files).draft_gib == pytest.approx(5.5, abs=0.1)
    assert shape_of("/models/Qwen3.6-27B", files).weights_gib == 51.05
    assert shape_of("/models/Qwen3.6-27B", files, weights_gib=40).weights_gib == 40


def test_the_picture_in_the_docs_is_that_of_todays_predictions() -> None:
    from dev.capacity_picture import TARGET, picture

    assert TARGET.read_text(encoding="utf-8") == picture(), "run ./inv docs.capacity"


def test_every_check_value_of_the_bench_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(HERE.parents[1] / "bench" / "capacity.py"), run_name="__main__")
    assert " 0 wrong" in capsys.readouterr().out
