"""record through a night of outages: the container stopped and started, the connection cut, sshd gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab import host as lab_host
from lab import trouble
from rackhand.recording import Recording
from tests.lab.conftest import CHECKOUT, VMID, Lab
from tests.lab.test_interrupt import RUN
from tests.remote_servers.site import await_true

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def recorder(lab: Lab, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    inventory = tmp_path / "mine.yaml"
    text = "".join(
        line
        for line in (CHECKOUT / "inventory/lab.yaml").read_text().splitlines(keepends=True)
        if "upload:" not in line
    )
    inventory.write_text(text.replace("../.lab", str(lab.place.state)))
    words = ("record", "--interval", "1", "--inventory", str(inventory))
    argv = (sys.executable, "-c", RUN, str(CHECKOUT), *words)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said, stdin=subprocess.DEVNULL, text=True, env=environ)
    yield process
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_recording_outlives_a_stopped_container_and_a_cut_connection(
    lab: Lab, recorder: subprocess.Popen[str], tmp_path: Path
) -> None:
    def events() -> list[str]:
        (path,) = list((tmp_path / "state").rglob("expansion.sqlite")) or [None]
        if path is None:
            return []
        with closing(Recording(path)) as kept:
            return [f"{event.kind}: {event.text}" for event in kept.events()]

    def samples() -> int:
        (path,) = list((tmp_path / "state").rglob("expansion.sqlite")) or [None]
        if path is None:
            return 0
        with closing(Recording(path)) as kept:
            return kept.count()

    def has(start: str) -> bool:
        assert recorder.poll() is None, (tmp_path / "said").read_text()
        return any(event.startswith(start) for event in events())

    await_true(lambda: samples() > 2, "samples are kept", 90)
    trouble.stop_container(lab.place, VMID)
    await_true(lambda: has("container: the container is stopped"), "the stop is noted", 90)
    assert lab.pct("start", str(VMID), timeout_s=90).code == 0
    await_true(lambda: has("connection: connection back"), "the way back is noted", 90)
    await_true(lambda: has("container: the container was stopped and started again"), "so is the start", 90)
    assert "the container is stopped, retrying in " in (tmp_path / "said").read_text()

    seen = len([event for event in events() if event.startswith("connection: connection back")])
    trouble.stop_sshd(lab.place)
    trouble.cut_ssh(lab.place)
    await_true(lambda: sum(e.startswith("connection: connection lost") for e in events()) >= 2, "the cut is noted", 90)
    lab_host.up(CHECKOUT, lab.options, state=lab.place.state)
    await_true(
        lambda: sum(e.startswith("connection: connection back") for e in events()) > seen, "and taken up again", 90
    )
    before = samples()
    await_true(lambda: samples() > before, "samples come again", 90)
