"""./inv demo in a copy of the checkout, so that the operator's own lab stays as it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", ".lab", ".*_cache", "__pycache__", ".hypothesis")

pytestmark = pytest.mark.lab


@pytest.fixture(name="checkout")
def make_checkout(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "a checkout"
    shutil.copytree(ROOT, top, ignore=LEFT_OUT)
    (top / ".venv").symlink_to((ROOT / ".venv").resolve())
    yield top
    subprocess.run([top / "inv", "lab.down"], check=True, capture_output=True)


def traces(checkout: Path) -> list[str]:
    """Processes, mounts and files that belong to the checkout's lab."""
    found = [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(checkout) in line.replace("\\040", " ")
    ]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(checkout) in words:
            found.append(words)
    return found + [str(path) for path in checkout.glob(".lab")]


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_demo_meets_its_bars_and_leaves_nothing(checkout: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    played = subprocess.run(
        [checkout / "inv", "demo", "--json", figures], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert played.returncode == 0, played.stdout + played.stderr
    found = json.loads(figures.read_text())
    assert [phase["cap_per_gpu"] for phase in found["phases"]] == [37, 72, 72]
    assert (found["nothing_lost"], found["nothing_twice"]) == (True, True)
    assert sum(phase["completed"] for phase in found["phases"]) == 2800
    assert "imulated" in played.stdout
    assert traces(checkout) == []


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("restart-servers", signal.SIGINT, id="while servers start"),
        pytest.param(" running, ", signal.SIGTERM, id="while it watches", marks=pytest.mark.slow),
    ],
)
def test_a_demo_that_is_interrupted_takes_its_lab_down(checkout: Path, moment: str, number: signal.Signals) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    playing = subprocess.Popen(
        [checkout / "inv", "demo"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert playing.stdout
    told = ""
    end = time.monotonic() + 240
    while moment not in told:
        line = playing.stdout.readline()
        told += line
        assert line, told
        assert time.monotonic() < end, told
    playing.send_signal(number)
    rest, _ = playing.communicate(timeout=120)
    assert playing.returncode == 128 + number, told + rest
    assert "Traceback" not in rest
    assert traces(checkout) == []
