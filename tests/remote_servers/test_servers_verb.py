"""The verb `servers` on two simulated GPUs, as plain processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab import faults
from rackhand.contract import from_json
from rackhand.contract.files import Environment, Interpreter, Platform, Workspace
from rackhand.contract.servers import FlagFacts, ProbeRequest, ServersRequest, secrets_dir
from rackhand.errors import PreconditionError
from rackhand.facts import Facts, GpuFacts
from rackhand.inventory import Server
from rackhand.plan.servers import ServeGpus, plan_restart, plan_stop_servers
from remote import processes
from remote.serving.ask import ask
from tests.remote_servers.site import ROOT, Site, await_true
from tests.spoken import heard

pytestmark = pytest.mark.lab

KNOWN = {"mamba-ssm-dtype", "mem-fraction-static", "mamba-scheduler-strategy", "max-running-requests"}
FLAGS = {sys.executable: FlagFacts(sys.executable, "0.5.11", dict.fromkeys(KNOWN, ()))}
BIG = {"mamba-scheduler-strategy": "no_buffer", "mem-fraction-static": 0.9, "max-running-requests": 128}


def facts(site: Site) -> Facts:
    return Facts(
        "site",
        Platform("3.11.2", sys.executable, "x86_64", "glibc 2.36"),
        Workspace(exists=True),
        Interpreter(sys.executable, found=True),
        Environment(),
        gpus=tuple(GpuFacts(i, uuid, "x", 97887, 4) for i, uuid in enumerate(site.uuids)),
        servers=site.observe(),
    )


def run(site: Site, plan: ServeGpus) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    events = site.events("servers", ServersRequest(str(site.home), plan.orders, site.secrets))
    assert events[-1] == {"event": "end", "error": None}
    return {event["gpu"]: event for event in events if event["event"] == "result"}, events


def restart(site: Site, servers: Sequence[Server], *, adopt: bool = False) -> dict[int, dict[str, Any]]:
    return run(site, plan_restart(site.host, facts(site), servers, FLAGS, adopt=adopt))[0]


def wishes(site: Site) -> dict[str, str]:
    found: dict[str, str] = json.loads((site.home / "control.json").read_text())["servers"]
    return found


def log(site: Site, gpu: int) -> str:
    return (Path(site.host.log_dir) / f"sglang_gpu{gpu}.log").read_text()


def test_both_start_then_one_restarts_with_other_flags_and_holds_more(site: Site) -> None:
    first = restart(site, [site.server(0), site.server(1)])
    assert {gpu: (r["ok"], r["capacity"]["max_running"]) for gpu, r in first.items()} == {0: (True, 37), 1: (True, 37)}
    before = site.observe()
    assert [own.load.capacity.max_running for own in before.own if own.load and own.load.capacity] == [37, 37]

    plan = plan_restart(site.host, facts(site), [site.server(0, **BIG)], FLAGS)
    second, events = run(site, plan)
    assert second[0]["capacity"]["max_running"] == 72
    steps = [e["step"] for e in events if e.get("step") and e["step"] != "memory"]
    assert steps[:3] == ["stopping", "starting", "loading"]
    after = site.observe()
    assert after.own[0].record.argv_digest != before.own[0].record.argv_digest
    assert after.own[1].record.pid == before.own[1].record.pid
    assert after.strays == ()
    assert set(wishes(site).values()) == {"active"}
    assert after.baseline_mib == dict.fromkeys(site.uuids, 4)

    secrets = Path(secrets_dir(str(site.home)))
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets.iterdir()} == {0o600}
    assert "hunter2" not in log(site, 0)
    pid = after.own[0].record.pid
    assert "hunter2" not in " ".join(processes.cmdline(pid))
    assert processes.environment(pid, "CUDA_VISIBLE_DEVICES") == site.uuids[0]

    stopped = run(site, plan_stop_servers(site.host, facts(site), gpus=[1]))[0]
    blind = run(site, plan_stop_servers(site.host, replace(facts(site), gpus=())))[0]
    assert {gpu: r["step"] for gpu, r in {**stopped, **blind}.items()} == {1: "stopped", 0: "stopped"}
    assert set(wishes(site).values()) == {"stopped"}
    assert not any(own.living for own in site.observe().own)
    assert plan_stop_servers(site.host, facts(site)).orders == ()


def test_one_that_crashes_at_start_shows_its_first_cause_and_the_other_goes_on(site: Site) -> None:
    faults.set_fault(site.lab, 0, "crash_at_start", kind="cuda_oom")
    results = restart(site, [site.server(0), site.server(1)])
    assert results[1]["ok"]
    assert not results[0]["ok"]
    assert "OutOfMemory" in results[0]["cause"]
    assert "lower mem-fraction-static" in results[0]["cause"]
    assert results[0]["lines"]
    assert sorted(wishes(site).values()) == ["active", "stopped"]
    (state,) = [own for own in site.observe().own if own.record.gpu == 0]
    assert state.record.exit_status not in (None, 0)
    assert not state.living


def test_memory_that_does_not_come_back_is_a_clear_failure_and_nothing_is_started(site: Site) -> None:
    assert restart(site, [site.server(0)])[0]["ok"]
    faults.set_fault(site.lab, 0, "memory_kept")
    plan = plan_restart(site.host, facts(site), [site.server(0)], FLAGS)
    orders = tuple(type(o)(**{**vars(o), "memory_timeout_s": 1.5}) for o in plan.orders)
    result = run(site, ServeGpus(orders, plan.lines))[0][0]
    assert (result["ok"], result["step"]) == (False, "memory")
    assert "memory did not come back" in result["cause"]
    assert "; held by " in result["cause"]
    assert wishes(site) == {site.server(0).url: "stopped"}


def test_a_server_started_by_hand_is_listed_refused_and_adopted(site: Site) -> None:
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/Qwen3.6-27B", "--port", "1"]
    argv[-1] = str(site.server(1).port)
    environment = {**site.environment, "CUDA_VISIBLE_DEVICES": "0"}
    with subprocess.Popen(
        [*argv, "--api-key", "hunter2"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as by_hand:
        await_true(lambda: processes.descendants(by_hand.pid), "it starts its scheduler")
        (stray,) = site.observe().strays
        assert (stray.process.pid, stray.gpu_uuid, stray.port) == (by_hand.pid, site.uuids[0], site.server(1).port)
        assert "hunter2" not in stray.command
        with pytest.raises(PreconditionError, match=rf"pid {by_hand.pid} \(started by hand"):
            plan_restart(site.host, facts(site), [site.server(0)], FLAGS)
        result = restart(site, [site.server(0)], adopt=True)[0]
        assert result["ok"], result["cause"]
        assert by_hand.wait(20) != 0
    assert site.observe().strays == ()


def test_a_taken_port_is_found_before_the_start(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", site.server(0).port))
        taken.listen()
        result = restart(site, [site.server(0)])[0]
    assert f"port {site.server(0).port} is taken: pid {os.getpid()}" in result["cause"]


def test_a_port_that_a_connection_has_is_waited_for(site: Site) -> None:
    port = site.server(0).nccl_port
    plan = plan_restart(site.host, facts(site), [site.server(0)], FLAGS)
    request = ServersRequest(str(site.home), plan.orders, site.secrets)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as borrower:
        borrower.bind(("127.0.0.1", port))
        borrower.connect(listener.getsockname())
        with site.call("servers", request) as call:
            assert call.stdout is not None
            events = (event for event in map(heard, call.stdout) if event is not None)
            text = next(event["text"] for event in events if event.get("step") == "port")
            assert f"{port} is the local port of a connection" in text
            listener.accept()[0].close()  # who closes first keeps TIME_WAIT: not the borrower
            borrower.close()
            (result,) = [event for event in events if event["event"] == "result"]
    assert result["ok"], result["cause"]


def test_a_server_that_hangs_with_health_200_is_not_healthy_and_its_orphans_are_ended(site: Site) -> None:
    faults.set_fault(site.lab, 0, "orphan")
    assert restart(site, [site.server(0)])[0]["ok"]
    url = site.server(0).url
    (probe, _) = site.events("probe", ProbeRequest(str(site.home), urls=(url,)))
    assert (probe["healthy"], probe["load"]["capacity"]["max_running"]) == (True, 37)
    faults.set_fault(site.lab, 0, "hang")
    await_true(
        lambda: not site.events("probe", ProbeRequest(str(site.home), urls=(url,), timeout_s=1.5))[-2]["healthy"],
        "the probe asks for a generation",
    )
    with site.inside():
        assert ask(url, "/health", timeout_s=25).status == 200
    _check_orphans_are_ended(site)


def _check_orphans_are_ended(site: Site) -> None:
    (own,) = site.observe().own
    os.kill(own.record.pid, signal.SIGKILL)
    await_true(lambda: not site.observe().own[0].alive, "the record sees it end")
    assert site.observe().own[0].living, "an orphan is left"
    faults.clear_faults(site.lab)
    assert restart(site, [site.server(0)])[0]["ok"]
    assert not [p for p in own.living if processes.lives(p)]


def test_two_restarts_at_once_are_refused_and_a_lost_caller_ends_the_wait_only(tmp_path: Path) -> None:
    site = Site(tmp_path, load_seconds=4.0)
    try:
        plan = plan_restart(site.host, facts(site), [site.server(0), site.server(1)], FLAGS)
        request = ServersRequest(str(site.home), plan.orders, site.secrets)
        first = site.call("servers", request)
        assert first.stdout is not None
        loading: set[int] = set()
        while loading != {0, 1}:
            event = heard(first.stdout.readline()) or {}
            loading |= {event["gpu"]} if event.get("step") == "loading" else set()
        (refused,) = site.events("servers", request)
        assert refused["error"]["kind"] == "busy"
        first.stdout.close()
        first.wait(20)
        active = {site.server(0).url: "active", site.server(1).url: "active"}
        await_true(lambda: wishes(site) == active, "they are wanted, though nobody waits")
        await_true(lambda: all(own.load for own in site.observe().own), "the servers go on and get ready")
    finally:
        site.close()


def test_flags_are_asked_once_for_a_version_and_health_means_a_generation(site: Site) -> None:
    request = ProbeRequest(str(site.home), pythons=(sys.executable,), urls=("http://127.0.0.1:9",), env_script="")
    for _ in range(2):
        events = {event["event"]: event for event in site.events("probe", request)}
        found = from_json(FlagFacts, events["flags"])
        assert (found.version, found.error) == ("0.5.11", "")
        assert "no_buffer" in found.options["mamba-scheduler-strategy"]
        assert "mamba-radix-cache-strategy" not in found.options
        assert (events["probe"]["healthy"], events["probe"]["text"]) == (False, "connection refused")
    assert list((site.home / "run").glob("flags-*.json"))


def test_an_interpreter_without_the_engine_is_said(site: Site) -> None:
    site.environment["PYTHONPATH"] = str(ROOT)
    (event, _) = site.events("probe", ProbeRequest(str(site.home), pythons=(sys.executable,)))
    assert "sglang" in event["error"]
