"""A restart whose caller, or whose own process, ends in the middle: what was begun is ended, what isn't is named."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from rackhand.again import open_turns
from rackhand.contract.servers import OpenTurn, ServersRequest
from rackhand.plan.servers import plan_restart
from remote import processes
from remote.serving.turns import observe_turns
from tests.remote_servers.site import Site, await_true
from tests.remote_servers.test_servers_verb import FLAGS, facts, restart
from tests.spoken import heard

pytestmark = pytest.mark.lab
REDO = "./inv restart-servers --hosts site --gpus {gpus}"


def begin(site: Site, *, at_once: int = 1) -> subprocess.Popen[bytes]:
    plan = plan_restart(site.host, facts(site), [site.server(0), site.server(1)], FLAGS)
    return site.call("servers", ServersRequest(str(site.home), plan.orders, site.secrets, at_once, redo=REDO))


def events_until(process: subprocess.Popen[bytes], true: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    seen = []
    for event in map(heard, process.stdout):
        if event is not None:
            seen.append(event)
            if true(event):
                return seen
    raise AssertionError(seen)


def worker_of(site: Site) -> int:
    (worker,) = {turn.worker for turn in observe_turns(site.home)}
    assert worker is not None
    return worker.pid


def test_one_at_a_time_means_that_one_at_most_is_out_of_service_whoever_is_killed(site: Site) -> None:
    assert all(result["ok"] for result in restart(site, [site.server(0), site.server(1)]).values())
    assert observe_turns(site.home) == (), "what ended well is forgotten"
    with begin(site) as process:
        events = events_until(process, lambda event: event["event"] == "end")
    first = [event["gpu"] for event in events if event["event"] in ("step", "result")]
    turns = [gpu for at, gpu in enumerate(first) if at == 0 or first[at - 1] != gpu]
    assert sorted(turns) == [0, 1], f"no step of the second before the first is ready: {events}"
    assert events[-1]["error"] is None

    # The caller is killed while the first GPU has no server: that one is started again, the other isn't touched.
    before = {own.record.gpu: own.record.pid for own in site.observe().own}
    with begin(site) as process:
        events = events_until(process, lambda event: event.get("step") == "stopping")
        begun, other = events[-1]["gpu"], 1 - events[-1]["gpu"]
        process.send_signal(signal.SIGKILL)
    await_true(lambda: not any(turn.working for turn in observe_turns(site.home)), "the worker ends", 60)
    (left,) = observe_turns(site.home)
    assert (left.gpu, left.step) == (other, "waiting")
    await_true(lambda: all(own.load for own in site.observe().own), "both serve", 60)
    after = {own.record.gpu: own.record.pid for own in site.observe().own}
    assert (after[begun] != before[begun], after[other] == before[other]) == (True, True)
    said = open_turns(site.observe().turns)
    assert said == {
        f"undone on GPU {other}": "a restart or stop was interrupted before it began; run: "
        f"./inv restart-servers --hosts site --gpus {other}"
    }

    # The worker is killed: the caller hears it, and the GPU is named with the command.
    with begin(site) as process:
        events = events_until(process, lambda event: event.get("step") == "stopping")
        os.kill(worker_of(site), signal.SIGKILL)
        end = events_until(process, lambda event: event["event"] == "end")[-1]
    assert end["error"]["kind"] == "killed"
    named = open_turns(site.observe().turns)
    assert f"--gpus {events[-1]['gpu']}" in " ".join(named.values())
    assert any("broke off while stopping: its process was killed" in line for line in named.values())
    assert all(result["ok"] for result in restart(site, [site.server(0), site.server(1)]).values())
    assert site.observe().turns == ()


def test_a_worker_that_was_told_to_end_ends_what_it_has_begun(site: Site) -> None:
    restart(site, [site.server(0), site.server(1)])
    with begin(site) as process:
        events_until(process, lambda event: event.get("step") == "stopping")
        os.kill(worker_of(site), signal.SIGTERM)
        process.wait(60)
    await_true(lambda: not any(turn.working for turn in observe_turns(site.home)), "the worker ends", 60)
    await_true(lambda: all(own.load for own in site.observe().own), "both serve", 60)


def test_a_turn_is_at_work_only_while_the_very_process_lives() -> None:
    me = processes.identify(os.getpid())
    assert me is not None
    assert open_turns([OpenTurn(3, "loading", 0.0, REDO, working=True)]) == {
        "undone on GPU 3": "a restart or stop is at work: loading"
    }
    failed = [OpenTurn(gpu, "memory", 0.0, REDO, cause="memory did not come back") for gpu in (4, 5, 7)]
    assert open_turns(failed) == {
        "undone on GPU 4-5,7": "a restart or stop broke off while memory: memory did not come back; run: "
        "./inv restart-servers --hosts site --gpus 4-5,7"
    }
