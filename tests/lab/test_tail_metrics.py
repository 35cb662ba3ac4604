"""tail-metrics on the lab: real numbers, one process, roads that break, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import trouble
from rackhand.contract.watch import Sample
from rackhand.inventory import Fleet, Host, Job, ProxmoxLxc, ServerSpec, Ssh
from rackhand.report import Report
from rackhand.workflows.metrics import tail_metrics
from tests.lab.conftest import VMID, Lab
from tests.lab.load import Load, load_command

pytestmark = pytest.mark.lab
PYTHON = "/opt/sglang/bin/python"
SERVE = """
mkdir -p /workspace/sglang_logs
for gpu in 0 1; do
  CUDA_VISIBLE_DEVICES=$gpu setsid {python} -m sglang.launch_server --model-path Qwen/Qwen3.6-27B \
    --port $((30000 + gpu)) --nccl-port $((40000 + gpu)) --mamba-scheduler-strategy no_buffer \
    --mamba-ssm-dtype bfloat16 --mem-fraction-static 0.90 --enable-metrics --trust-remote-code \
    >/workspace/sglang_logs/sglang_gpu$gpu.log 2>&1 </dev/null &
done
"""


class EnoughError(Exception):
    """A test has seen what it wanted."""


def until(holds: Callable[[], object], limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Iterator[Fleet]:
    """Two servers under load, started by hand."""
    started = lab.in_container("bash", "-c", SERVE.format(python=PYTHON))
    assert started.code == 0, started.err
    loads = (Load(gpu, 8, prompt_tokens=2, tokens=4000) for gpu in (0, 1))
    loader = lab.in_container("bash", "-c", load_command(*loads))
    assert loader.code == 0, loader.err
    host = Host("pve1", ProxmoxLxc(Ssh("pve-lab", lab.ssh_config), VMID), python=PYTHON, servers=(ServerSpec("m"),))
    (lab.workspace / "out").mkdir()
    (lab.workspace / "out/progress.json").write_text('{"completed": 747, "status": "running"}')
    yield Fleet(Path("x.yaml"), (host,), (Job("expansion", "pve1", "/workspace/out", "/workspace/p.jsonl"),))
    lab.in_container("bash", "-c", f"pkill -KILL -f '^{PYTHON} -( |m sglang)'; rm -r /workspace/out")


def tail(fleet: Fleet, *, once: bool = True, show: Callable[[Host, Sample], None], **how: Any) -> Report:
    return tail_metrics(fleet, fleet.hosts, once=once, show=show, say=how.pop("say", lambda *_: None), **how)


def one(fleet: Fleet) -> Sample:
    seen: list[Sample] = []
    report = tail(fleet, show=lambda _, sample: seen.append(sample))
    assert report.exit_code == 0, report.rows
    return seen[0]


def watchers(lab: Lab) -> int:
    return int(lab.in_container("bash", "-c", "pgrep -c -f 'session [0-9a-f]+' || true").out)


def test_one_call_shows_servers_gpus_and_the_job_and_leaves_nothing(lab: Lab, fleet: Fleet) -> None:
    until(lambda: all(gpu.state == "running" and gpu.running for gpu in one(fleet).gpus))
    lab.forget_pct_calls()
    sample = one(fleet)
    assert [call["verb"] for call in lab.pct_calls()] == ["exec"]
    assert [gpu.gpu for gpu in sample.gpus] == [0, 1]
    for gpu in sample.gpus:
        assert (gpu.running, gpu.cap, gpu.queue) == (8, 72, 0)
        assert gpu.mamba_usage is not None
        assert 0 < gpu.mamba_usage < 1
        assert (gpu.util_pct or 0) > 0
        assert (gpu.memory_used_mib or 0) > 50_000
    assert sample.jobs[0].progress == {"completed": 747, "status": "running"}
    until(lambda: watchers(lab) == 0)


def test_a_cut_road_is_said_and_taken_up_again(lab: Lab, fleet: Fleet) -> None:
    said: list[str] = []
    samples: list[Sample] = []

    def show(_: Host, sample: Sample) -> None:
        samples.append(sample)
        if len(samples) == 2:
            trouble.cut_ssh(lab.place)
        if said and sample.seq == 1:
            raise EnoughError

    with pytest.raises(EnoughError):
        tail(fleet, once=False, show=show, say=lambda _, text: said.append(text), interval_s=0.5)
    assert said[0].startswith("connection lost: ")
    assert any(line.startswith("connection back after ") for line in said)
    until(lambda: watchers(lab) == 0)


def test_ctrl_c_ends_with_130_and_leaves_no_process(lab: Lab, fleet: Fleet, tmp_path: Path) -> None:
    inventory = tmp_path / "here.yaml"
    inventory.write_text(
        f"hosts:\n  pve1:\n    type: proxmox-lxc\n    ssh: {{destination: pve-lab, config: {lab.ssh_config}}}\n"
        f"    vmid: {VMID}\n    python: {PYTHON}\n    servers: {{model: m}}\n"
    )
    argv = [sys.executable, "-c", "import sys; from rackhand.program import main; main(sys.argv[1:])"]
    words = ["tail-metrics", "--json", "--interval", "0.5", "--inventory", str(inventory)]
    with subprocess.Popen(
        ["env", "--default-signal=INT", f"XDG_STATE_HOME={tmp_path}", *argv, *words], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(60, process.kill)
        timer.start()
        for line in process.stdout:
            if json.loads(line)["event"] == "sample":
                process.send_signal(signal.SIGINT)
                break
        rest = [json.loads(line)["event"] for line in process.stdout]
        timer.cancel()
    assert process.returncode == 130
    assert "error" not in rest
    assert list(tmp_path.glob("rackhand/here-*/host-pve1.sqlite"))
    until(lambda: watchers(lab) == 0)
