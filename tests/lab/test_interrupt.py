"""Ctrl-C of every verb that reaches a host, at the moment when it waits for the container."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks
from lab import trouble
from tests.lab.conftest import CHECKOUT, VMID, Lab

pytestmark = pytest.mark.lab
RUN = "import sys; sys.path.insert(0, sys.argv[1]); from rackhand.program import main; main(sys.argv[2:])"
VERBS = {
    "deploy": (),
    "restart-servers": (),
    "status": (),
    "resume": (),
    "stop": (),
    "tail-metrics": ("--once",),
    "capacity": (),
    "diagnose": (),
    "record": (),
    "verify": (),
    "prompts.check": ("--job", "expansion"),
}
LIKE_ANOTHER = {"status", "capacity", "diagnose", "record", "prompts.check", "tail-metrics"}
"""These wait as another one does: stop, verify, or tail-metrics, whose Ctrl-C test_tail_metrics.py has too."""
ELSEWHERE = {"compare", "history", "report"}
"""These read what this machine recorded."""


@pytest.fixture
def frozen(lab: Lab) -> Iterator[Lab]:
    trouble.freeze_container(lab.place, VMID)
    yield lab
    trouble.thaw_container(lab.place, VMID)


def start(lab: Lab, folder: Path, verb: str, *words: str) -> subprocess.Popen[str]:
    inventory = folder / "mine.yaml"
    lines = (CHECKOUT / "inventory/lab.yaml").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if "upload:" not in line)
    inventory.write_text(text.replace("../.lab", str(lab.place.state)))
    argv = (sys.executable, "-c", RUN, str(CHECKOUT), verb, *words, "--inventory", str(inventory))
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)


def await_call(lab: Lab, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not lab.pct_calls():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow) if verb in LIKE_ANOTHER else verb for verb in VERBS]
)
def test_ctrl_c_ends_a_verb_with_130_and_leaves_nothing_running(frozen: Lab, tmp_path: Path, verb: str) -> None:
    with start(frozen, tmp_path, verb, *VERBS[verb]) as process:
        await_call(frozen, process)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    trouble.thaw_container(frozen.place, VMID)
    deadline = time.monotonic() + 30
    while (left := frozen.in_container("pgrep", "-af", "memfd|/proc/self/fd").out) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == ""


def test_no_verb_is_left_out() -> None:
    named = ((name, tasks.ns[name]) for name in tasks.ns.task_names)
    reaching = {name for name, task in named if "inventory" in {argument.name for argument in task.get_arguments()}}
    assert reaching == set(VERBS) | ELSEWHERE
