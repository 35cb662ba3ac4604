"""diagnose on the lab finds what limits two servers, and no more. Every verdict's cause is made in test_verdicts.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackhand import tmux
from rackhand.diagnose import Diagnosis
from rackhand.inventory import Fleet, Host, ProxmoxLxc, ServerSpec, Ssh
from rackhand.recording import recordings_dir
from rackhand.render.verdicts import verdict_line
from rackhand.workflows.diagnose import diagnose as watch_and_tell
from rackhand.workflows.history import detach
from tests.lab.conftest import VMID, Lab
from tests.lab.load import Load, load_command

pytestmark = pytest.mark.lab
PYTHON = "/opt/sglang/bin/python"
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


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Two servers that hold eight requests each, started by hand."""
    started = lab.in_container("bash", "-c", SERVE)
    assert started.code == 0, started.err
    host = Host("pve1", ProxmoxLxc(Ssh("pve-lab", lab.ssh_config), VMID), python=PYTHON, servers=(ServerSpec("m"),))
    yield Fleet(Path("x.yaml"), (host,))
    lab.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} -( |m sglang)'")


def load(lab: Lab, each: int) -> None:
    loads = (Load(gpu, each, prompt_tokens=2, tokens=4000) for gpu in (0, 1))
    started = lab.in_container("bash", "-c", load_command(*loads))
    assert started.code == 0, started.err


def told(found: Diagnosis) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(verdict.name, verdict.stage, verdict.gpus) for verdict in found.verdicts]


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
