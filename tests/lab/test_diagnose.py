"""What limits two servers is made on the lab, and found: that verdict, and no wrong one beside it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.faults import clear_faults, set_fault
from rackhand import tmux
from rackhand.contract.watch import Sample
from rackhand.diagnose import Diagnosis, diagnose
from rackhand.inventory import Fleet, Host, ProxmoxLxc, ServerSpec, Ssh
from rackhand.recording import recordings_dir
from rackhand.render.verdicts import verdict_line
from rackhand.report import Report
from rackhand.workflows.diagnose import diagnose as watch_and_tell
from rackhand.workflows.history import detach
from rackhand.workflows.metrics import tail_metrics
from tests.lab.conftest import VMID, Lab

pytestmark = pytest.mark.lab
PYTHON = "/opt/sglang/bin/python"
WINDOW_S = 6.0
SLOTS, CAP = 40, 8
SERVE = f"""
mkdir -p /workspace/sglang_logs
for gpu in 0 1; do
  CUDA_VISIBLE_DEVICES=$gpu setsid {PYTHON} -m sglang.launch_server --model-path Qwen/Qwen3.6-27B \\
    --port $((30000 + gpu)) --nccl-port $((40000 + gpu)) --mamba-scheduler-strategy extra_buffer \\
    --max-mamba-cache-size {SLOTS} --mem-fraction-static 0.90 --enable-metrics --trust-remote-code \\
    >/workspace/sglang_logs/sglang_gpu$gpu.log 2>&1 </dev/null &
done
"""
LOAD = """
import json, sys, threading, time, urllib.request
def ask(port):
    body = json.dumps({"model": "m", "max_tokens": 4000, "ignore_eos": True,
                       "messages": [{"role": "user", "content": "go on"}]}).encode()
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body,
                                         {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request).read()
        except OSError:
            time.sleep(0.3)
for number in range(2 * int(sys.argv[1])):
    threading.Thread(target=ask, args=(30000 + number % 2,), daemon=number > 0).start()
"""


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Two servers that hold eight requests each, started by hand."""
    started = lab.in_container("bash", "-c", SERVE)
    assert started.code == 0, started.err
    host = Host("pve1", ProxmoxLxc(Ssh("pve-lab", lab.ssh_config), VMID), python=PYTHON, servers=(ServerSpec("m"),))
    yield Fleet(Path("x.yaml"), (host,))
    clear_faults(lab.place.gpu_dir(VMID))
    lab.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} -( |m sglang)'")


def load(lab: Lab, each: int) -> None:
    started = lab.in_container("bash", "-c", f"setsid {PYTHON} - {each} >/dev/null 2>&1 <<'END' &\n{LOAD}\nEND")
    assert started.code == 0, started.err


@dataclass
class Watch:
    """Follows the lab's servers in the background; `found` is the diagnosis of now."""

    fleet: Fleet
    samples: list[Sample] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    report: Report | None = None

    def run(self) -> None:
        with contextlib.suppress(StopError):
            self.report = tail_metrics(
                self.fleet, self.fleet.hosts, show=self.show, say=lambda *_: None, interval_s=0.5
            )

    def show(self, _: Host, sample: Sample) -> None:
        self.samples.append(sample)
        if self.stop.is_set():
            raise StopError

    def found(self) -> Diagnosis:
        return diagnose(tuple(self.samples[-40:]), window_s=WINDOW_S)


class StopError(Exception):
    """Ends a watch."""


@pytest.fixture
def watch(fleet: Fleet) -> Iterator[Watch]:
    made = Watch(fleet)

    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop.set()
    thread.join(20)
    assert not thread.is_alive()


def told(found: Diagnosis) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(verdict.name, verdict.stage, verdict.gpus) for verdict in found.verdicts]


def await_verdicts(watch: Watch, wanted: list[tuple[str, str, tuple[int, ...]]], limit_s: float = 45.0) -> Diagnosis:
    deadline, found = time.monotonic() + limit_s, watch.found()
    while told(found) != wanted or found.seconds < WINDOW_S - 1:
        assert time.monotonic() < deadline, (told(found), watch.report, watch.samples[-1:])
        time.sleep(0.25)
        found = watch.found()
    return found


def test_five_requests_for_eight_slots_are_client_bound_and_state_bound_comes_next(lab: Lab, fleet: Fleet) -> None:
    load(lab, 5)
    wanted = [("client-bound", "now", (0, 1)), ("state-bound", "next", (0, 1))]
    seen: list[Diagnosis] = []
    deadline = time.monotonic() + 40
    while not seen or told(seen[-1]) != wanted:
        assert time.monotonic() < deadline, seen
        report = watch_and_tell(
            fleet, fleet.hosts, tell=lambda _, found, __: seen.append(found), say=lambda *_: None, seconds=5
        )
        assert report.exit_code == 0, report.rows
    client, state = seen[-1].verdicts
    assert "3 slots per GPU stand empty" in client.says
    assert client.evidence[0] == "5.0 running of 8, queue 0.0"
    assert any(line.startswith("[") and "Decode batch" in line for line in client.lines)
    assert f"cap {CAP} = {SLOTS} state slots // 5" in state.evidence
    assert "3 slots per GPU stand empty" in verdict_line(seen[-1], gpus=2)


def test_a_queue_at_the_cap_is_state_bound(lab: Lab, watch: Watch) -> None:
    load(lab, 7)
    found = await_verdicts(watch, [("state-bound", "now", (0, 1))])
    assert found.verdicts[0].confidence == "high"
    assert "8.0 running of 8, queue 4.0" in found.verdicts[0].evidence


def test_one_slow_gpu_among_equals_is_found(lab: Lab, watch: Watch) -> None:
    set_fault(lab.place.gpu_dir(VMID), 1, "slow", factor=4.0)
    await_verdicts(watch, [("slow-gpu", "now", (1,)), ("state-bound", "now", (0,))])


def test_a_server_that_hangs_is_found(lab: Lab, watch: Watch) -> None:
    clear_faults(lab.place.gpu_dir(VMID))
    set_fault(lab.place.gpu_dir(VMID), 1, "hang")
    await_verdicts(watch, [("hang", "now", (1,)), ("state-bound", "now", (0,))])


def test_a_detached_recording_runs_once_and_again_when_it_has_ended(tmp_path: Path) -> None:
    fleet = Fleet(Path("/x.yaml"), ())
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    home = str(recordings_dir(environ, fleet.path))
    try:
        first = detach(fleet, environ, ("cat",)).rows[0].outcomes[0]
        again = detach(fleet, environ, ("cat",)).rows[0].outcomes[0]
        assert (first.state, again.state) == ("done", "unchanged")
        subprocess.run(tmux.tmux_argv(home, "send-keys", "-t", "record", "C-d"), check=True)
        deadline = time.monotonic() + 20
        while detach(fleet, environ, ("cat",)).rows[0].outcomes[0].state != "done":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        subprocess.run(tmux.tmux_argv(home, "kill-server"), check=False)
