"""The simulated GPUs: what nvidia-smi answers, and whose memory counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import faults
from lab.gpu import nvidia_smi, state

HOLD = """
import sys, time
from lab.gpu import state
gpu = state.read_gpus(state.state_dir())[int(sys.argv[1])]
state.put_claim(state.state_dir(), gpu.uuid, int(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state.write(tmp_path, 2, "rtx-pro-6000", release_seconds=0.3)
    monkeypatch.setenv("RACKHAND_LAB_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(gpus: Path) -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, "1", "50000"], cwd=root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def smi(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    status = nvidia_smi.main(list(argv))
    return status, capsys.readouterr().out.splitlines()


def used_mib(directory: Path) -> list[int]:
    return [state.observe_used_mib(directory, gpu) for gpu in state.read_gpus(directory)]


def await_used(directory: Path, wanted: list[int]) -> None:
    deadline = time.monotonic() + 10
    while used_mib(directory) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    assert used_mib(directory) == wanted


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("argv", "status", "lines"),
    [
        (
            ["--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader,nounits"],
            0,
            [f"{i}, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 4" for i in (0, 1)],
        ),
        (
            ["--query-gpu=index,power.draw,fan.speed", "--format=csv", "-i", "1"],
            0,
            ["index, power.draw [W], fan.speed [%]", "1, 31.40 W, [N/A]"],
        ),
        (["--query-compute-apps=pid,used_memory", "--format=csv,noheader"], 0, []),
        (
            ["--query-gpu=index,memory.usd", "--format=csv"],
            2,
            ['Field "memory.usd" is not a valid field to query.', ""],
        ),
        (["--query-gpu=index", "--format=csv", "-i", "7"], 6, ["No devices were found"]),
    ],
)
def test_nvidia_smi_answers_as_the_real_one(
    capsys: pytest.CaptureFixture[str], argv: list[str], status: int, lines: list[str]
) -> None:
    assert smi(capsys, *argv) == (status, lines)


def test_memory_counts_while_its_process_lives_and_a_little_longer(gpus: Path, holder: subprocess.Popen[str]) -> None:
    assert used_mib(gpus) == [4, 50004]
    holder.kill()
    holder.wait()
    assert used_mib(gpus) == [4, 50004]
    await_used(gpus, [4, 4])
    assert list((gpus / "claims").iterdir()) == []


def test_memory_kept_stays_until_the_fault_is_cleared(gpus: Path, holder: subprocess.Popen[str]) -> None:
    faults.set_fault(gpus, 1, "memory_kept")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    time.sleep(0.5)
    assert used_mib(gpus) == [4, 50004]
    faults.clear_faults(gpus, 1)
    await_used(gpus, [4, 4])


def test_a_claim_of_an_earlier_process_with_the_same_pid_does_not_count(gpus: Path) -> None:
    gpu = state.read_gpus(gpus)[0]
    started = state.start_ticks(os.getpid())
    assert started is not None
    stale = {"pid": os.getpid(), "start_ticks": started - 1, "uuid": gpu.uuid, "mib": 777}
    (gpus / "claims" / f"{os.getpid()}-{started - 1}.json").write_text(json.dumps(stale))
    await_used(gpus, [4, 4])


@pytest.mark.parametrize(
    ("fault", "params", "figures"),
    [
        ("throttle", {"reason": "hw_thermal"}, "0x0000000000000048, 91, 100"),
        ("throttle", {"reason": "power_brake"}, "0x0000000000000088, 52, 100"),
        ("starved", {"util": 60}, "0x0000000000000004, 52, 60"),
    ],
)
def test_a_fault_shows_in_nvidia_smi_while_the_gpu_works(
    gpus: Path, capsys: pytest.CaptureFixture[str], fault: str, params: dict[str, object], figures: str
) -> None:
    fields = "clocks_throttle_reasons.active,temperature.gpu,utilization.gpu"
    query = (f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "1")
    faults.set_fault(gpus, 1, fault, **params)
    assert smi(capsys, *query) == (0, ["0x0000000000000001, 33, 0"])
    state.put_activity(gpus, state.read_gpus(gpus)[1].uuid, 8, 8)
    assert smi(capsys, *query) == (0, [figures])


BUS = "0000:11:00.0"


@pytest.mark.parametrize(
    ("says", "status", "second"),
    [
        ("na", 0, "1, UUID, [N/A], 33"),
        ("unsupported", 0, "1, UUID, [Not Supported], 33"),
        ("permission", 0, "1, UUID, [Insufficient Permissions], 33"),
        ("unknown", 0, "1, [Unknown Error], [Unknown Error], [Unknown Error]"),
        ("reset", 0, "1, UUID, 0, [GPU requires reset]"),
        ("err", 0, "1, UUID, ERR!, ERR!"),
        ("lost", 15, "1, [GPU is lost], [GPU is lost], [GPU is lost]"),
        ("handle", 15, f"Unable to determine the device handle for GPU{BUS}: Unknown Error"),
        ("inforom", 14, f"1, UUID, 4, 33\nWARNING: infoROM is corrupted at gpu {BUS}"),
        ("mig", 0, "1, UUID, [Insufficient Permissions], 33"),
    ],
)
def test_a_gpu_that_nvidia_smi_cannot_read_is_shown_as_a_real_one_would(
    gpus: Path, capsys: pytest.CaptureFixture[str], says: str, status: int, second: str
) -> None:
    faults.set_fault(gpus, 1, "smi", says=says)
    uuids = [gpu.uuid for gpu in state.read_gpus(gpus)]
    query = ("--query-gpu=index,uuid,memory.used,temperature.gpu", "--format=csv,noheader,nounits")
    lines = [f"0, {uuids[0]}, 4, 33", *second.replace("UUID", uuids[1]).split("\n")]
    assert smi(capsys, *query) == (status, lines)


@pytest.mark.parametrize(("says", "status", "text"), [("mismatch", 18, "version mismatch"), ("no_driver", 9, "driver")])
def test_an_nvidia_smi_without_its_driver_shows_no_gpu(
    gpus: Path, capsys: pytest.CaptureFixture[str], says: str, status: int, text: str
) -> None:
    faults.set_fault(gpus, None, "smi", says=says)
    code, lines = smi(capsys, "--query-gpu=index", "--format=csv")
    assert (code, len(lines)) == (status, 1) and text in lines[0]


def test_a_fault_of_one_gpu_goes_before_that_of_all(tmp_path: Path) -> None:
    faults.set_fault(tmp_path, None, "slow", factor=2)
    faults.set_fault(tmp_path, 1, "slow", factor=5)
    assert faults.faults_of(tmp_path, 0) == {"slow": {"factor": 2}}
    assert faults.faults_of(tmp_path, 1) == {"slow": {"factor": 5}}
    with pytest.raises(ValueError, match="unknown fault slwo"):
        faults.set_fault(tmp_path, 0, "slwo")
