"""capacity, restart-servers and status over SSH and pct on the lab. What a server alone does: tests/remote_servers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import faults
from lab import host as lab_host
from lab.place import LabOptions, Place
from rackhand.capacity.forecast import Forecast
from rackhand.inventory import Env, Fleet, Host, ProxmoxLxc, SecretRef, ServerSpec, Ssh, parse_overrides
from rackhand.predictions import history_path, read_compared
from rackhand.report import Report
from rackhand.workflows.capacity import forecast_fleet, parse_question
from rackhand.workflows.deploy import Choice, deploy
from rackhand.workflows.job import Stop, stop
from rackhand.workflows.servers import Restart, restart_servers, status
from tests.remote_servers.site import await_true

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/opt/sglang/bin/python"
ARGS = {"mamba-scheduler-strategy": "extra_buffer", "mamba-ssm-dtype": "bfloat16", "mem-fraction-static": 0.85}
BIG = ["mamba-scheduler-strategy=no_buffer", "mem-fraction-static=0.9", "max-running-requests=128"]
KEY = "hunter2-hunter2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    state = tmp_path_factory.mktemp("servers") / "lab"
    try:
        yield lab_host.up(ROOT, LabOptions(gpus=2, load_seconds=0.5, release_seconds=0.5, speed=10), state=state)
    finally:
        lab_host.down(ROOT, state=state)


@pytest.fixture(scope="module")
def host(place: Place) -> Host:
    spec = ServerSpec(
        "Qwen/Qwen3.6-27B",
        version="0.5.11",
        python=PYTHON,
        args=ARGS,
        api_key=SecretRef(command=("echo", KEY)),
        ready_timeout_s=60,
        stop_timeout_s=20,
    )
    road = ProxmoxLxc(Ssh("pve-lab", place.ssh_config, connect_timeout_s=5), 200)
    host = Host("pve1", road, python=PYTHON, env=Env(source="/root/sglang_env.sh"), servers=(spec,))
    assert run(deploy, host).exit_code == 0
    return host


def run(workflow: Any, host: Host, *args: Any, say: Any = lambda *_: None, **choice: Any) -> Report:
    fleet = Fleet(Path("x.yaml"), (host,))
    if workflow is status:
        return status(fleet, fleet.hosts, say=say)
    report: Report = workflow(fleet, fleet.hosts, *args, say=say, choice=Choice(**choice))
    return report


def restart(host: Host, *words: str, gpus: tuple[int, ...] | None = None, **choice: Any) -> Report:
    return run(restart_servers, host, Restart(gpus, parse_overrides(words)), **choice)


def what(report: Report) -> list[str]:
    assert report.rows[0].error is None, report.rows[0].error
    return [outcome.what for outcome in report.rows[0].outcomes]


def pids(host: Host) -> dict[str, str]:
    facts = run(status, host).rows[0].facts
    return {gpu: value.rpartition("pid ")[2] for gpu, value in facts.items() if " pid " in value}


def forecast(host: Host) -> tuple[list[Forecast], Report]:
    return forecast_fleet(Fleet(Path("x.yaml"), (host,)), (host,), parse_question(), say=lambda *_: None)


def test_an_idle_host_is_asked_once_and_its_servers_are_told_together(host: Host) -> None:
    (found,), report = forecast(host)
    assert report.exit_code == 0
    assert found.where == "pve1/ct200 GPU 0-1"
    assert found.launch.gpu.free_gib == pytest.approx(94.14, abs=0.01)
    assert found.outlook is not None and found.outlook.capacity.max_running_requests == 37


def test_a_host_that_can_not_be_reached_is_a_row_with_its_reason(host: Host) -> None:
    lost = replace(host, road=ProxmoxLxc(Ssh("nobody@nowhere.invalid", connect_timeout_s=1), 200))
    found, report = forecast(lost)
    assert (found, report.exit_code) == ([], 1)


def test_capacity_goes_from_37_to_72_in_one_call_and_is_as_predicted(host: Host, place: Place) -> None:
    first = restart(host)
    assert [w.partition(", ")[2] for w in what(first)] == ["- → 37 running at most"] * 2
    assert first.rows[0].facts["capacity"] == "as predicted"
    _check_kept_predictions()
    (found,), _ = forecast(host)
    assert found.launch.gpu.free_gib == pytest.approx(94.14, abs=0.01), "a server of ours gives its memory back"
    before = pids(host)

    place.pct_calls.unlink(missing_ok=True)
    second = restart(host, *BIG, gpus=(0,))
    assert [w.partition(", ")[2] for w in what(second)] == ["37 → 72 running at most"]
    assert second.exit_code == 0
    assert [json.loads(line)["verb"] for line in place.pct_calls.read_text().splitlines()] == ["exec"]
    after = pids(host)
    assert after["GPU 0"] != before["GPU 0"]
    assert after["GPU 1"] == before["GPU 1"]
    assert second.rows[0].facts["GPU 0"].startswith("running 0/72, ")

    argvs = place.pct_calls.read_text()
    logs = "".join(file.read_text() for file in place.workspace(200).rglob("*") if file.is_file() and _is_text(file))
    assert KEY not in argvs + logs

    wrong = restart(host, "mem-fraction-statik=0.9")
    assert wrong.exit_code == 2
    assert "did you mean --mem-fraction-static" in str(wrong.rows[0].error)
    assert restart(host, dry_run=True).rows[0].outcomes[0].state == "planned"
    assert pids(host) == after


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry", "real"])
def test_what_can_not_start_is_refused_before_anything_is_stopped(host: Host, dry_run: bool) -> None:
    before = pids(host)
    for word, code, said in (
        ("mem-fraction-static=2.0", 2, "takes a number above 0 and at most 1"),
        ("mem-fraction-static=0.3", 4, "SGLang would not start: GPU 0-1: "),
    ):
        refused = restart(host, word, dry_run=dry_run)
        assert (refused.exit_code, refused.rows[0].did_something) == (code, False), word
        assert said in str(refused.rows[0].error)
        assert "nothing was stopped" in str(refused.rows[0].error)
    assert pids(host) == before


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry", "real"])
def test_a_wrong_server_flag_is_refused_by_deploy_already(host: Host, dry_run: bool) -> None:
    wrong = replace(host, servers=(replace(host.servers[0], args={"mem-fraction-statik": 0.9}),))
    refused = run(deploy, wrong, dry_run=dry_run)
    assert (refused.exit_code, refused.rows[0].did_something) == (2, False)
    assert "did you mean --mem-fraction-static; nothing was sent" in str(refused.rows[0].error)


def test_deploy_says_which_key_names_the_servers_interpreter(host: Host) -> None:
    elsewhere = replace(host, servers=(replace(host.servers[0], python="/usr/bin/python3"),))
    told = run(deploy, elsewhere, dry_run=True)
    assert told.exit_code == 0
    assert "set hosts.pve1.servers.python" in told.rows[0].facts["server flags"]


def test_a_server_that_crashes_at_its_start_leaves_the_other_going(host: Host, place: Place) -> None:
    faults.set_fault(place.gpu_dir(200), 0, "crash_at_start", kind="no_memory")
    try:
        report = restart(host)
    finally:
        faults.clear_faults(place.gpu_dir(200))
    assert report.exit_code == 3
    failed = [outcome for outcome in report.rows[0].outcomes if outcome.state == "failed"]
    assert len(failed) == 1
    assert failed[0].what.startswith("GPU 0: failed while loading: ")
    assert "mem-fraction-static" in failed[0].what
    assert failed[0].detail
    assert any(w.startswith("GPU 1: ready") for w in what(report))
    assert run(status, host).rows[0].facts["GPU 0"].startswith("dead (exit ")


def test_an_inventory_that_is_not_deployed_is_refused(host: Host) -> None:
    report = restart(replace(host, env=Env({"NEW": "1"}, source=host.env.source)))
    assert report.exit_code == 4
    assert "./inv deploy --hosts " in str(report.rows[0].error)


def test_ctrl_c_ends_the_wait_and_says_how_far_each_came(host: Host) -> None:
    def say(_where: str, text: str) -> None:
        if "loading" in text and not interrupted:
            interrupted.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    interrupted: list[str] = []
    report = run(restart_servers, host, Restart(), say=say)
    assert report.exit_code == 130
    assert any("goes on inside" in outcome.what for outcome in report.rows[0].outcomes)
    await_true(
        lambda: any(v.startswith("running") for v in run(status, host).rows[0].facts.values()), "what had begun goes on"
    )


def test_a_restart_that_is_cut_while_a_gpu_stands_still_starts_it_and_names_the_other(host: Host) -> None:
    """Over the real road: the process in the container outlives pct."""
    assert restart(host).exit_code == 0
    before, interrupted = pids(host), list[str]()

    def say(_where: str, text: str) -> None:
        if "stopping" in text and not interrupted:
            interrupted.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    report = run(restart_servers, host, Restart(at_once=1), say=say)
    assert report.exit_code == 130
    begun = interrupted[0].partition(":")[0]
    other = "GPU 1" if begun == "GPU 0" else "GPU 0"
    run_it = f"run: ./inv restart-servers --hosts pve1 --gpus {other[-1]} --at-once 1 --no-compare --inventory "
    said = [outcome.what for outcome in report.rows[0].outcomes]
    assert any(line.startswith(f"{begun}: last seen stopping; what had begun goes on inside") for line in said)
    assert any(line.startswith(f"{other}: not begun; {run_it}") for line in said)

    def is_done() -> bool:
        facts = run(status, host).rows[0].facts
        named = facts.get(f"undone on {other}", "")
        return facts[begun].startswith("running") and pids(host)[begun] != before[begun] and run_it in named

    await_true(is_done, "the GPU that stood still serves again, the other is named", 60)
    assert pids(host)[other] == before[other]
    assert restart(host, gpus=(int(other[-1]),)).exit_code == 0
    assert not any(name.startswith("undone") for name in run(status, host).rows[0].facts)


def test_stop_ends_every_server_and_says_so_when_none_is_left(host: Host) -> None:
    assert run(stop, host, Stop(servers=True)).exit_code == 0
    facts = run(status, host).rows[0].facts
    assert not any("pid" in value for value in facts.values())
    assert what(run(stop, host, Stop(servers=True))) == ["no server runs"]


def _check_kept_predictions() -> None:
    kept = read_compared(history_path(os.environ))[-2:]
    assert [(one.gpu, one.differs) for one in kept] == [(0, False), (1, False)]
    assert kept[0].effective["max_running_requests"] == 37
    assert kept[0].effective["kv_tokens"] == pytest.approx(kept[0].predicted["kv_tokens"], rel=0.005)
    assert kept[0].inputs["flags"] == ARGS


def _is_text(file: Path) -> bool:
    return file.suffix in {".log", ".json", ".jsonl", ".sh"}


@pytest.mark.parametrize(("says", "told"), [("reset", "GPU requires reset"), ("handle", "Unable to determine")])
def test_a_gpu_that_cannot_be_read_stops_nothing_and_the_other_one_restarts(
    place: Place, host: Host, says: str, told: str
) -> None:
    fleet = Fleet(Path("x.yaml"), (host,))
    faults.set_fault(place.gpu_dir(200), 1, "smi", says=says)
    try:
        refused = restart_servers(fleet, fleet.hosts, Restart(), say=lambda *_: None)
        seen = status(fleet, fleet.hosts, say=lambda *_: None)
        alone = restart_servers(fleet, fleet.hosts, Restart((0,)), say=lambda *_: None)
    finally:
        faults.clear_faults(place.gpu_dir(200))
    assert refused.exit_code == 4 and told in str(refused.rows[0].error)
    assert "nothing was stopped; restart-servers --hosts pve1 --gpus 0 restarts the others" in str(
        refused.rows[0].error
    )
    assert told in str(seen.rows[0].facts) and "empty" not in str(seen.rows[0].facts.get("GPU 1", ""))
    assert alone.exit_code == 0, alone.rows[0].error
    assert alone.rows[0].outcomes[0].what.startswith("GPU 0: ready")
