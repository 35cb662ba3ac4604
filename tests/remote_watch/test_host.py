from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rackhand.engines.sglang import SGLANG
from remote.watching.host import HostWatch, shares
from remote.watching.server_log import ServerLog
from tests.remote_watch.fake_server import decode_line, ready_line


def test_cpu_shares_are_of_the_time_between_two_looks() -> None:
    before, after = (100, 0, 50, 800, 50, 0, 0, 0), (160, 0, 70, 810, 60, 0, 0, 0)
    assert shares(before, after) == (80.0, 10.0)
    assert shares((), after) == (None, None)
    assert shares(after, after) == (None, None)


def test_the_containers_own_pressure_goes_before_the_machines(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/pressure/cpu").write_text("some avg10=90.00 avg60=0.00 avg300=0.00 total=1\n")
    (tmp_path / "sys/fs/cgroup/cpu.pressure").write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=1\n")
    (tmp_path / "proc/pressure/io").write_text("some avg10=9.00 total=1\nfull avg10=7.25 avg60=0.00 total=1\n")
    sample = HostWatch((str(tmp_path), str(tmp_path / "absent")), tmp_path).sample()
    assert (sample.cpu_pressure_pct, sample.io_pressure_pct, sample.xids) == (12.5, 7.25, ())
    disk = os.statvfs(tmp_path)
    assert sample.disk_free_gib == pytest.approx(disk.f_bavail * disk.f_frsize / 2**30, rel=0.05)


def test_a_machine_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    sample = HostWatch((), tmp_path).sample()
    assert (sample.cpu_pct, sample.io_pressure_pct, sample.disk_free_gib) == (None, None, None)


def test_a_gpu_fault_in_the_kernel_log_is_seen_once_and_old_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1, an old one\n")
    watch = HostWatch((), tmp_path)
    with log.open("a") as file:
        file.write("4,2,2,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n")
    assert watch.sample().xids == ("79 PCI:0000:41:00",)
    assert watch.sample().xids == ("79 PCI:0000:41:00",)
    watch.close()


def test_the_state_pool_and_graphs_are_those_of_the_last_start(tmp_path: Path) -> None:
    pool = "[2026-11-29 10:00:00] Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: 0.51GB, \n"
    now, path = time.time(), tmp_path / "gpu0.log"
    eager = decode_line(now - 1).replace("cuda graph: True", "cuda graph: False")
    path.write_text(pool.format(185) + ready_line(now - 30, 37) + decode_line(now - 3) + eager)
    log = ServerLog(path, SGLANG)
    log.update()
    assert (log.slots, log.graph) == (185, False)
    assert log.batch_lines() == (eager.rstrip("\n"),)
    with path.open("a") as file:
        file.write("[2026-11-29 10:05:00] server_args=ServerArgs(api_key='k')\n" + pool.format(217))
    log.update()
    assert (log.slots, log.batch_lines()) == (217, ())


def test_the_state_pool_is_found_even_where_its_line_is_far_back(tmp_path: Path) -> None:
    path = tmp_path / "gpu0.log"
    pool = "[2026-11-29 10:00:00] Mamba Cache is allocated. max_mamba_cache_size: 185, conv_state size: 0.51GB, \n"
    path.write_text(pool + "x" * 99 + "\n" + ("y" * 99 + "\n") * 4000 + decode_line(time.time()))
    log = ServerLog(path, SGLANG)
    log.update()
    assert log.slots == 185


def test_tuning_flags_are_read_from_a_command_line_and_secrets_are_not() -> None:
    words = (
        "python -m sglang.launch_server --model-path m --api-key KEY --max-running-requests 128 --disable-radix-cache"
    )
    words += " --cuda-graph-bs 1 2 4 --mem-fraction-static=0.9 --port 30000"
    assert SGLANG.parse_tuning(words.split()) == {
        "model-path": "m",
        "max-running-requests": "128",
        "disable-radix-cache": "true",
        "cuda-graph-bs": "1 2 4",
        "mem-fraction-static": "0.9",
    }
