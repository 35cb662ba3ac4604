"""What a start says of its prediction. No host is reached: the model is known by name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rackhand.contract.servers import Capacity, Load, OwnServer, ServerRecord, ServersState
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Host, servers_of
from rackhand.predictions import history_path, read_compared
from rackhand.workflows.fleet import Task
from rackhand.workflows.prediction import compare_started
from tests.test_capacity_verb import GPU, facts, host


@dataclass
class Row:
    """As much of a Task as a comparison touches."""

    host: Host
    transport: None = None
    facts: dict[str, str] = field(default_factory=dict)


def started(*found: Capacity) -> Facts:
    gpus = [GpuFacts(index, f"GPU-{index}", GPU, 97_887, 80_000) for index in range(len(found))]
    own = [
        OwnServer(ServerRecord(index, 1, 1, 30000 + index, "s", "", "", 0.0), alive=True, load=Load(0, 0, capacity))
        for index, capacity in enumerate(found)
    ]
    return facts(*gpus, servers=ServersState(own=tuple(own)))


def compare(seen: Facts, versions: dict[str, str] | None = None) -> dict[str, str]:
    row = Row(host())
    servers = servers_of(row.host, [gpu.index for gpu in seen.gpus])
    compare_started(cast("Task", row), seen, servers, versions or {})
    return row.facts


def test_servers_that_are_as_predicted_take_one_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert compare(started(Capacity(37, 487_133, 185), Capacity(37, 487_100))) == {"capacity": "as predicted"}
    assert [row.differs for row in read_compared(history_path(os.environ))] == [False, False]


def test_a_server_that_differs_is_named_with_both_values_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    told = compare(started(Capacity(37, 487_133, 185), Capacity(30, 487_133, 150)))
    assert told["capacity"] == "1 of 2 servers differ by more than 3 % from the prediction"
    assert told["GPU 1 differs"] == (
        "max_running_requests: 37 predicted, 30 effective (-18.9%); slots: 185 predicted, 150 effective (-18.9%)"
    )
    kept = read_compared(history_path(os.environ))[1]
    assert (kept.differs, kept.effective["slots"], kept.predicted["slots"]) == (True, 150, 185)
    assert kept.inputs["gpu"]["free_gib"] == pytest.approx(94.14)
    assert kept.inputs["version"] == "0.5.11"


def test_the_installed_version_wins_over_the_inventorys(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    compare(started(Capacity(37, 487_133)), {"python3": "0.5.13"})
    assert read_compared(history_path(os.environ))[0].inputs["version"] == "0.5.13"


def test_a_release_without_a_model_and_a_history_that_can_not_be_kept_fail_no_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    assert "and no other release" in compare(started(Capacity(37)), {"python3": "0.5.99"})["prediction"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    told = compare(started(Capacity(37, 487_133, 185)))
    assert told["capacity"] == "as predicted"
    assert "history can't be kept" in told["history"]


def test_nothing_is_said_where_no_server_says_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert compare(facts(GpuFacts(0, "GPU-0", GPU, 97_887, 4))) == {}
    assert not history_path(os.environ).exists()
