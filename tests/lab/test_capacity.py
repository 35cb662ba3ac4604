"""capacity over SSH and pct on the lab, and what a start says of its prediction."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import host as lab_host
from lab.place import LabOptions, Place
from rackhand.inventory import Env, Fleet, Host, ProxmoxLxc, ServerSpec, Ssh
from rackhand.predictions import history_path, read_compared
from rackhand.workflows.capacity import forecast_fleet, parse_question
from rackhand.workflows.deploy import deploy
from rackhand.workflows.servers import Restart, restart_servers

pytestmark = pytest.mark.lab
ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/opt/sglang/bin/python"
ARGS = {"mamba-scheduler-strategy": "extra_buffer", "mamba-ssm-dtype": "bfloat16", "mem-fraction-static": 0.85}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    state = tmp_path_factory.mktemp("capacity") / "lab"
    try:
        yield lab_host.up(ROOT, LabOptions(gpus=2, load_seconds=0.5, release_seconds=0.5, speed=10), state=state)
    finally:
        lab_host.down(ROOT, state=state)


@pytest.fixture(scope="module")
def fleet(place: Place) -> Fleet:
    spec = ServerSpec(
        "Qwen/Qwen3.6-27B", version="0.5.11", python=PYTHON, args=ARGS, ready_timeout_s=60, stop_timeout_s=20
    )
    road = ProxmoxLxc(Ssh("pve-lab", place.ssh_config, connect_timeout_s=5), 200)
    host = Host("pve1", road, python=PYTHON, env=Env(source="/root/sglang_env.sh"), servers=(spec,))
    return Fleet(Path("x.yaml"), (host,))


def test_an_idle_host_is_asked_once_and_its_servers_are_told_together(fleet: Fleet) -> None:
    (found,), report = forecast_fleet(fleet, fleet.hosts, parse_question(), say=lambda *_: None)
    assert report.exit_code == 0
    assert found.where == "pve1/ct200 GPU 0-1"
    assert found.launch.gpu.free_gib == pytest.approx(94.14, abs=0.01)
    assert found.outlook is not None and found.outlook.capacity.max_running_requests == 37


def test_a_start_is_compared_with_its_prediction_and_both_are_kept(fleet: Fleet) -> None:
    assert deploy(fleet, fleet.hosts, say=lambda *_: None).exit_code == 0
    (row,) = restart_servers(fleet, fleet.hosts, Restart(), say=lambda *_: None).rows
    assert row.facts["capacity"] == "as predicted"
    kept = read_compared(history_path(os.environ))[-2:]
    assert [(one.gpu, one.differs) for one in kept] == [(0, False), (1, False)]
    assert kept[0].effective["max_running_requests"] == 37
    assert kept[0].effective["kv_tokens"] == pytest.approx(kept[0].predicted["kv_tokens"], rel=0.005)
    assert kept[0].inputs["flags"] == ARGS
    (found,), _ = forecast_fleet(fleet, fleet.hosts, parse_question(), say=lambda *_: None)
    assert found.launch.gpu.free_gib == pytest.approx(94.14, abs=0.01), "a server of ours gives its memory back"


def test_a_host_that_can_not_be_reached_is_a_row_with_its_reason(fleet: Fleet) -> None:
    lost = dataclasses.replace(fleet.hosts[0], road=ProxmoxLxc(Ssh("nobody@nowhere.invalid", connect_timeout_s=1), 200))
    found, report = forecast_fleet(fleet, (lost,), parse_question(), say=lambda *_: None)
    assert (found, report.exit_code) == ([], 1)
