"""bench/occupancy.py on a lab of its own: every slot full, no token lost, capacity and wishes followed at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = [sys.executable, str(ROOT / "bench/occupancy.py")]

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.mark.timeout(1200)
def test_eight_servers_are_kept_full_whatever_one_of_them_does(root_only: None, tmp_path: Path) -> None:
    told = tmp_path / "figures.json"
    done = subprocess.run(
        [*BENCH, "--window", "60", "--json", told], capture_output=True, text=True, timeout=1100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert [server["cap"] for server in found["servers"]] == [72] * 8
    assert all(1.0 <= server["queue"] <= 2.0 for server in found["servers"])
    assert found["mean_tokens"] == pytest.approx(2660, rel=0.1)
    assert found["restart"].keys() == {"full_at_37_s", "full_at_72_s"}


@pytest.mark.timeout(120)
def test_a_measurement_that_is_ended_takes_its_lab_down(root_only: None, tmp_path: Path) -> None:
    with subprocess.Popen(BENCH, env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}) as measuring:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/lab/lab.json")):
            assert measuring.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        measuring.send_signal(signal.SIGTERM)
        assert measuring.wait(50) == 143
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
