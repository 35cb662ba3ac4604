from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rackhand import payload
from rackhand.contract import from_json, to_json, wire
from rackhand.contract.watch import GpuSample, Sample, WatchedJob, WatchedServer, WatchRequest
from remote.watching.server import WatchedGpu
from remote.watching.smi import GpuReading
from tests.remote_watch.fake_server import FakeServer, decode_line, ready_line, serving
from tests.remote_watch.test_sources import stub, until
from tests.spoken import NONCE, asked, heard

START_TICKS = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


@contextmanager
def watching(home: Path, request: WatchRequest) -> Iterator[subprocess.Popen[bytes]]:
    app = payload.build().data
    argv = [sys.executable, "-c", wire.BOOT, str(len(app)), NONCE, "python3"]
    env = {**os.environ, "PATH": f"{home}:/usr/bin:/bin"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        process.stdin.write(app + asked("watch", to_json(request), "python3", ended=False))
        process.stdin.flush()
        yield process
        process.kill()


def next_sample(process: subprocess.Popen[bytes]) -> Sample:
    assert process.stdout is not None
    event = None
    while event is None:
        line = process.stdout.readline()
        assert line
        event = heard(line)
    assert event["event"] == "sample", event
    return from_json(Sample, event)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    stub(tmp_path / "nvidia-smi", 'case "$*" in *-l*) ;; *) echo 0; exit;; esac\n'
         'while :; do echo "0, 90112, 97887, 99, 587.3, 66, 0x4"; sleep 1; done')  # fmt: skip
    (tmp_path / "run").mkdir()
    return tmp_path


def test_one_process_gives_a_full_sample_at_once_and_ends_when_its_stdin_does(home: Path) -> None:
    log, fake = home / "gpu0.log", FakeServer()
    now = time.time()
    log.write_text(ready_line(now - 30, 72) + "".join(decode_line(now - 8 + 2 * n) for n in range(5)))
    (home / "progress.json").write_text('{"completed": 747, "status": "running"}')
    with serving(fake) as url:
        servers = (WatchedServer(0, url, str(log)), WatchedServer(1, url, "absent"))
        jobs = (WatchedJob("j", str(home)),)
        request = WatchRequest(str(home), servers, jobs, interval_s=0.2, until_eof=True, seen_only=True)
        with watching(home, request) as process:
            sample = next_sample(process)
            fake.decoded += 300
            assert [next_sample(process).seq for _ in range(3)] == [1, 2, 3]
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(10) == 0
            assert (heard((process.stdout or []).read().splitlines()[-1]) or {})["event"] == "end"
    (gpu,) = sample.gpus
    assert (gpu.state, gpu.running, gpu.cap, gpu.queue, gpu.kv_usage) == ("running", 64, 72, 3, 0.4241)
    assert (gpu.tok_s, gpu.tok_s_source) == (1175.0, "log")
    assert (gpu.util_pct, gpu.power_w, gpu.memory_used_mib, gpu.throttle) == (99.0, 587.3, 90112, ("power_cap",))
    assert sample.jobs[0].progress == {"completed": 747, "status": "running"}
    assert (sample.unread, sample.drops) == (0, 0)


def test_once_gives_one_sample(home: Path) -> None:
    with watching(home, WatchRequest(str(home), once=True)) as process:
        assert next_sample(process).seq == 0
        assert process.stdout is not None
        assert heard(process.stdout.readline()) == {"event": "end", "error": None}


def test_a_watch_ends_when_nobody_reads_it_any_more(home: Path) -> None:
    with watching(home, WatchRequest(str(home), interval_s=60)) as process:
        next_sample(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(10) in (0, 1)


def test_a_road_that_takes_nothing_for_a_while_costs_samples_and_their_count_comes_later(home: Path) -> None:
    request = WatchRequest(str(home), jobs=(WatchedJob("j", str(home)),), interval_s=0.005)
    (home / "progress.json").write_text(json.dumps({"filler": "x" * 60_000}))
    with watching(home, request) as process:
        next_sample(process)
        time.sleep(0.5)
        deadline = time.monotonic() + 20
        while next_sample(process).drops == 0:
            assert time.monotonic() < deadline


def record(home: Path, **fields: object) -> None:
    base = {"pid": os.getpid(), "start_ticks": START_TICKS, "log": str(home / "gpu0.log")}
    (home / "run" / "gpu0.json").write_text(json.dumps({**base, **fields}))


CLOSED = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("fields", "wish", "state"),
    [
        (None, "active", "unknown"),
        ({}, "active", "loading"),
        ({"start_ticks": START_TICKS + 1}, "active", "dead"),
        ({"pid": 999_999_999}, "active", "dead"),
        ({"pid": 999_999_999}, "stopped", "dead"),
        ({"pid": 999_999_999, "asked": True}, "active", "stopped"),
        ({"pid": "x"}, "active", "unknown"),
    ],
)
def test_a_server_with_a_closed_port_is_known_by_its_process(
    home: Path, fields: dict[str, object] | None, wish: str, state: str
) -> None:
    if fields is not None:
        record(home, **fields)
    (home / "gpu0.log").write_text(decode_line(time.time()))
    sample = replace(sample_of(home, CLOSED, wish, "refused"), decode_age_s=None)
    assert sample == GpuSample(0, state=state, memory_used_mib=7)


def test_a_server_that_answers_runs_and_one_that_is_told_to_end_drains(home: Path) -> None:
    fake = FakeServer()
    with serving(fake) as url:
        assert sample_of(home, url, "active", "ok").state == "running"
        assert sample_of(home, url, "draining", "ok").state == "draining"
        assert sample_of(home, url, "starting", "ok").state == "loading"


def test_an_idle_server_decodes_nothing_and_its_usages_are_those_of_now(home: Path) -> None:
    fake = FakeServer()
    fake.metrics, fake.running, fake.queue, fake.kv_usage = False, 0, 0, 0.0
    (home / "gpu0.log").write_text("".join(decode_line(time.time() - 15 + n) for n in range(8)))
    os.utime(home / "gpu0.log", (time.time() - 8, time.time() - 8))
    with serving(fake) as url:
        gpu = sample_of(home, url, "active", "ok")
    assert (gpu.tok_s, gpu.tok_s_source, gpu.running, gpu.kv_usage, gpu.mamba_usage) == (0.0, "idle", 0, 0.0, None)


def test_without_loads_and_log_nothing_is_known_and_nothing_is_zero(home: Path) -> None:
    fake = FakeServer()
    fake.metrics = fake.loads = False
    with serving(fake) as url:
        gpu = sample_of(home, url, "active", "ok")
    assert gpu.state == "running"
    assert (gpu.running, gpu.cap, gpu.queue, gpu.kv_usage, gpu.tok_s) == (None, None, None, None, None)


def test_requests_in_flight_and_nothing_moving_is_a_stall(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.watching.server.STALLED_S", -1)
    (home / "gpu0.log").write_text(decode_line(time.time()))
    with serving(FakeServer()) as url:
        assert sample_of(home, url, "active", "ok").state == "stalled"


def test_after_a_restart_with_another_log_that_one_is_followed(home: Path) -> None:
    (home / "other.log").write_text(ready_line(time.time(), 37))
    record(home, log=str(home / "other.log"))
    fake = FakeServer()
    fake.loads = fake.metrics = False
    with serving(fake) as url:
        assert sample_of(home, url, "active", "ok").cap == 37


def sample_of(home: Path, url: str, wish: str, answer: str) -> GpuSample:
    stop = threading.Event()
    gpu = WatchedGpu(WatchedServer(0, url, str(home / "gpu0.log")), home, interval_s=0.2, key=None, stop=stop)
    gpu.start()
    try:
        until(lambda: gpu.endpoints.asked.is_set() and gpu.endpoints.answer == answer)
        return gpu.sample(GpuReading(memory_used_mib=7), wish)
    finally:
        stop.set()
        gpu.close()
