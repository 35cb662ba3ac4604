from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rackhand.contract.watch import WatchedJob
from rackhand.engines import engine
from rackhand.engines.sglang.exposition import parse_loads, parse_metrics
from remote.watching import server_log
from remote.watching.endpoints import Endpoints, get
from remote.watching.jobs import observe_job
from remote.watching.outlet import WAITING, Outlet
from remote.watching.rate import CountedRate
from remote.watching.server_log import ServerLog
from remote.watching.smi import GpuReading, NvidiaSmi, observe_indices, parse_row
from tests.remote_watch.fake_server import FIXTURES, FakeServer, decode_line, ready_line, serving


def until(holds: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "expected"), [("b1", (32, 0, 64, 0, 0.4338, None)), ("h7", (16, 16, 16, 1312, 0.2285, None))]
)
def test_recorded_loads_give_the_moment(name: str, expected: tuple[float | None, ...]) -> None:
    read = parse_loads((FIXTURES / f"{name}_loads_under_32.json").read_bytes())
    assert read is not None
    assert (read.running, read.queue, read.cap, read.pending_tokens, read.kv_usage, read.mamba_usage) == expected


def test_recorded_metrics_of_a_hybrid_give_the_state_pool_and_the_realtime_counter() -> None:
    read = parse_metrics((FIXTURES / "h7_metrics_under_32.txt").read_bytes())
    assert read is not None
    assert (read.running, read.queue, read.kv_usage) == (16, 16, 0.2109375)
    assert read.mamba_usage == pytest.approx(32 / 19167, rel=1e-3)
    assert read.decoded_tokens == 1541
    assert read.accept_len is None


def test_recorded_metrics_of_a_dense_model_have_no_state_pool_rather_than_an_empty_one() -> None:
    read = parse_metrics((FIXTURES / "b1_metrics_under_32.txt").read_bytes())
    assert read is not None
    assert read.mamba_usage is None
    assert read.kv_usage == 0.414306640625


@pytest.mark.parametrize(
    ("load", "usage"),
    [
        ({"num_used_tokens": 100, "max_total_num_tokens": 1000, "token_usage": 0.8}, 0.1),
        ({"token_usage": 0.8}, 0.8),
        ({"num_used_tokens": 0, "max_total_num_tokens": 0}, None),
    ],
)
def test_kv_usage_is_that_of_the_tokens_where_token_usage_is_the_fullest_pools(
    load: dict[str, float], usage: float | None
) -> None:
    read = parse_loads(json.dumps({"loads": [load]}).encode())
    assert read is not None
    assert read.kv_usage == usage


@pytest.mark.parametrize("body", [b"", b"{}", b'{"loads": 3}', b'{"loads": []}', b"[" * 100_000, b"<html>", b"\xff"])
def test_what_is_no_answer_reads_as_nothing(body: bytes) -> None:
    assert parse_loads(body) is None
    assert parse_metrics(body) is None


def test_older_metrics_without_the_realtime_counter_fall_back_to_finished_requests() -> None:
    read = parse_metrics(b'sglang:generation_tokens_total{m="x"} 5.0\nsglang:token_usage{m="x"} NaN\n')
    assert read is not None
    assert (read.decoded_tokens, read.kv_usage) == (5.0, None)


@pytest.fixture
def sglang_log(tmp_path: Path) -> Path:
    return tmp_path / "sglang_gpu0.log"


def test_a_log_fills_the_table_at_once_from_its_backlog(sglang_log: Path) -> None:
    now = time.time()
    lines = [ready_line(now - 60, 72), *(decode_line(now - 20 + 2 * n, tok_s=1100 + n) for n in range(11))]
    sglang_log.write_text("".join(lines))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert (log.cap, log.total("#running-req"), log.total("#queue-req")) == (72, 64, 3)
    assert log.highest("full token usage", "token usage") == 0.42
    assert log.highest("mamba usage") == 0.59
    assert 1100 < (log.tok_s() or 0) <= 1110
    log.tail.close()


def test_the_cap_is_found_even_where_the_ready_line_is_far_back(sglang_log: Path) -> None:
    now = time.time()
    sglang_log.write_text(ready_line(now - 9000, 37) + "noise\n" * 100_000 + decode_line(now))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert log.cap == 37
    log.tail.close()


def test_a_log_in_another_time_zone_is_as_fresh_as_its_file(sglang_log: Path) -> None:
    ahead = time.time() + 5 * 3600
    sglang_log.write_text("".join(decode_line(ahead - 8 + 2 * n) for n in range(5)))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert log.tok_s() == 1175.0
    assert time.time() - (log.decode_at or 0) < 5
    log.tail.close()


def test_decode_lines_are_old_when_only_other_lines_kept_the_file_young(sglang_log: Path) -> None:
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    lines = [decode_line(now - 608 + 2 * n) for n in range(5)]
    sglang_log.write_text("".join(lines) + f'[{stamp}] INFO:     127.0.0.1:50894 - "GET /v1/loads HTTP/1.1" 200 OK\n')
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert (log.tok_s(), log.total("#running-req")) == (None, None)
    assert time.time() - (log.decode_at or 0) > 595
    log.tail.close()


def test_the_rate_of_the_first_line_after_a_pause_is_dropped(sglang_log: Path) -> None:
    now = time.time()
    lines = [decode_line(now - 70 + 2 * n, tok_s=1100) for n in range(5)]
    lines += [decode_line(now - 4, tok_s=3.0), decode_line(now - 2, tok_s=1200), decode_line(now, tok_s=1200)]
    sglang_log.write_text("".join(lines))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert log.tok_s() == 1200
    log.tail.close()


def test_a_slow_rhythm_is_no_pause(sglang_log: Path) -> None:
    now = time.time()
    sglang_log.write_text("".join(decode_line(now - 96 + 8 * n, tok_s=90) for n in range(13)))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert log.tok_s() == 90
    log.tail.close()


def test_old_lines_say_nothing_about_now(sglang_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_log.write_text("".join(decode_line(time.time() - 8 + 2 * n) for n in range(5)))
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    real = time.time
    monkeypatch.setattr(server_log.time, "time", lambda: real() + 40)
    assert (log.total("#running-req"), log.highest("mamba usage"), log.tok_s()) == (None, None, None)
    log.tail.close()


def test_a_new_start_forgets_the_old_one_and_counts_go_on(sglang_log: Path) -> None:
    now = time.time()
    sglang_log.write_text(
        ready_line(now - 60, 37)
        + decode_line(now - 50)[:60]
        + "\nRuntimeError: CUDA out of memory\n"
        + decode_line(now - 40)
    )
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert (log.cap, log.trouble, log.unread) == (37, "cuda_oom", 1)
    with sglang_log.open("a") as file:
        file.write("[2026-05-09 22:07:00] server_args=ServerArgs(model_path='m')\n")
    log.update()
    assert (log.cap, log.trouble, log.decode_at, log.unread) == (None, "", None, 1)
    log.tail.close()


def test_ranks_of_one_server_are_added_up(sglang_log: Path) -> None:
    now = time.time()
    text = ""
    for rank in ("DP0 TP0", "DP1 TP1"):
        text += ready_line(now - 30, 40).replace("] ", f" {rank}] ", 1)
        for n in range(3):
            text += decode_line(now - 4 + 2 * n, running=30, tok_s=500).replace("] ", f" {rank}] ", 1)
    sglang_log.write_text(text)
    log = ServerLog(sglang_log, engine("sglang"))
    log.update()
    assert (log.cap, log.total("#running-req"), log.tok_s()) == (80, 60, 1000)
    log.tail.close()


def watching(url: str, stop: threading.Event, key: bytes | None = None) -> Endpoints:
    endpoints = Endpoints(url, engine("sglang"), interval_s=0.1, key=key, stop=stop)
    endpoints.start()
    return endpoints


def test_endpoints_give_counts_and_usages() -> None:
    fake, stop = FakeServer(), threading.Event()
    with serving(fake) as url:
        endpoints = watching(url, stop)
        until(lambda: endpoints.reading().decoded_tokens == 1000)
        fake.decoded = 3000
        until(lambda: endpoints.reading().decoded_tokens == 3000)
        read = endpoints.reading()
        stop.set()
    assert (read.running, read.queue, read.cap, read.kv_usage, read.mamba_usage) == (64, 3, 72, 0.4241, 0.59)


def counted(points: list[tuple[float, float]]) -> float | None:
    rate = CountedRate(2.0)
    for at, tokens in points:
        rate.take(at, tokens, 64)
    return rate.tok_s()


@pytest.mark.parametrize("renewed_each_s", [0.1, 1.7, 2.3])
def test_a_counter_that_is_renewed_more_rarely_than_it_is_asked_gives_its_true_rate(renewed_each_s: float) -> None:
    points = [(2.0 * n, 1000.0 * (2.0 * n // renewed_each_s) * renewed_each_s) for n in range(24)]
    assert counted(points) == pytest.approx(1000, rel=0.05)


def test_the_rate_waits_until_there_is_enough_of_it_and_ends_at_zero() -> None:
    climbing = [(2.0 * n, 2000.0 * n) for n in range(11)]
    assert counted(climbing[:-1]) is None
    assert counted(climbing) == pytest.approx(1000)
    assert counted([*climbing, *((22.0 + 2 * n, 20000.0) for n in range(17))]) == 0


def test_a_counter_that_begins_anew_is_counted_anew() -> None:
    fake, stop = FakeServer(), threading.Event()
    with serving(fake) as url:
        endpoints = watching(url, stop)
        until(lambda: endpoints.reading().decoded_tokens == 1000)
        fake.decoded = 5
        until(lambda: endpoints._rate._counts and endpoints._rate._counts[-1][1] == 5)
        stop.set()
    assert [tokens for _, tokens in endpoints._rate._counts] == [5] * len(endpoints._rate._counts)


def test_without_metrics_the_loads_are_read_and_with_a_key_they_are_asked_with_it() -> None:
    fake, stop = FakeServer(), threading.Event()
    fake.metrics, fake.key = False, "s3cret"
    with serving(fake) as url:
        endpoints = watching(url, stop, key=b"s3cret")
        until(lambda: endpoints.reading().running == 64)
        stop.set()
        assert endpoints.tok_s() is None
        assert fake.asked.count("/metrics") == 1


def test_a_server_that_hangs_is_silent_and_a_closed_port_is_refused() -> None:
    fake, stop = FakeServer(), threading.Event()
    fake.frozen.set()
    with serving(fake) as url:
        hanging = Endpoints(url, engine("sglang"), interval_s=0.1, key=None, stop=stop)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("remote.watching.endpoints.TIMEOUT_S", 0.2)
            hanging.start()
            until(lambda: hanging.answer == "silent")
            stop.set()
    stop = threading.Event()
    closed = watching(url, stop)
    until(lambda: closed.answer == "refused")
    stop.set()


def test_a_chunked_answer_is_put_together() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        assert get(listener.getsockname(), "/x", None) == (200, b"abcde")
        thread.join()


@pytest.mark.parametrize(
    ("row", "reading"),
    [
        (
            "3, 90112, 97887, 99, 587.31, 66, 0x0000000000000024",
            GpuReading(90112, 97887, 99.0, 587.31, 66.0, ("power_cap", "thermal")),
        ),
        ("3, 90112, 97887, [N/A], [Not Supported], 66", GpuReading(90112, 97887, None, None, 66.0)),
        ("3, [N/A], [N/A], N/A, N/A, N/A, [N/A]", GpuReading()),
        (
            "3, 90112 MiB, 97887 MiB, 99 %, 587.31 W, 66, 0x4, more",
            GpuReading(90112, 97887, 99.0, 587.31, 66.0, ("power_cap",)),
        ),
        ("3, [Insufficient Permissions], 97887, [N/A], 80, 66", GpuReading(None, 97887, None, 80.0, 66.0)),
        ("3, 0, 97887, 0, 13, [GPU requires reset], 0x0", GpuReading(fault="GPU requires reset")),
        ("3, [GPU is lost], [GPU is lost], [GPU is lost], ERR!, [GPU is lost]", GpuReading(fault="GPU is lost")),
        ("3, 100, 200, [Unknown Error], 13, 30, 0x0", GpuReading(fault="Unknown Error")),
    ],
)
def test_a_row_of_nvidia_smi_is_read_and_what_is_not_there_is_unknown(row: str, reading: GpuReading) -> None:
    assert parse_row(row) == (3, reading)


@pytest.mark.parametrize("row", ["", "No devices were found", "index, memory.used", "1, 2, 3"])
def test_other_lines_of_nvidia_smi_are_no_rows(row: str) -> None:
    assert parse_row(row) is None


def stub(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_an_nvidia_smi_that_does_not_know_a_field_is_asked_without_it(tmp_path: Path) -> None:
    program = stub(
        tmp_path / "nvidia-smi",
        'case "$1" in *throttle*) echo "Field is not a valid field to query."; exit 2;; esac\n'
        'echo "0, 100, 200, 50, 99.5, 40"; exec sleep 30',
    )
    stop = threading.Event()
    smi = NvidiaSmi(interval_s=1, stop=stop, program=program)
    smi.start()
    until(lambda: smi.reading(0).memory_used_mib == 100)
    stop.set()
    smi.close()


def test_an_nvidia_smi_that_falls_silent_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remote.watching.smi.SILENT_S", -9.9)
    monkeypatch.setattr("remote.watching.smi.RETRY_S", 0.1)
    mark = tmp_path / "hung"
    program = stub(
        tmp_path / "nvidia-smi",
        f'if [ -e "{mark}" ]; then echo "0, 100, 200, 50, 99.5, 40, 0x0"; fi; touch "{mark}"; exec sleep 30',
    )
    stop = threading.Event()
    smi = NvidiaSmi(interval_s=1, stop=stop, program=program)
    smi.start()
    until(lambda: smi.reading(0).memory_used_mib == 100)
    stop.set()
    smi.close()


def test_one_that_ends_after_good_rows_is_asked_again_soon_and_its_words_are_told(tmp_path: Path) -> None:
    says = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"
    program = stub(tmp_path / "nvidia-smi", f'echo "0, 100, 200, 50, 99.5, 40, 0x0"; echo "{says}"; exit 15')
    stop = threading.Event()
    smi = NvidiaSmi(interval_s=1, stop=stop, program=program)
    smi.start()
    until(lambda: smi.reading(0).memory_used_mib == 100 and smi.says() == says)
    first = smi.heard_at(0)
    until(lambda: smi.heard_at(0) > first)
    assert smi.reading(1) == GpuReading()
    stop.set()
    smi.close()


def test_indices_are_whole_lines_also_of_one_that_fails(tmp_path: Path) -> None:
    program = stub(tmp_path / "nvidia-smi", "printf '0\\n2\\nGPU 7 is lost\\n[Unknown Error]\\n'; exit 15")
    assert observe_indices(program) == {0, 2}


def test_without_nvidia_smi_everything_is_unknown() -> None:
    stop = threading.Event()
    smi = NvidiaSmi(interval_s=1, stop=stop, program="/nonexistent/nvidia-smi")
    smi.start()
    assert smi.heard.wait(10)
    assert smi.reading(0) == GpuReading()
    assert smi.says() == "/nonexistent/nvidia-smi: No such file or directory"
    assert observe_indices("/nonexistent/nvidia-smi") == frozenset()
    stop.set()
    smi.close()


def test_a_reader_that_takes_nothing_costs_samples_not_memory() -> None:
    taken: list[dict[str, object]] = []
    gate = threading.Event()

    def emit(event: dict[str, object]) -> None:
        gate.wait(10)
        taken.append(event)

    outlet = Outlet(emit)
    outlet.put({"n": -1})
    until(lambda: outlet.blocked_s() > 0)
    for number in range(100):
        outlet.put({"n": number})
    assert outlet.drops == 100 - WAITING
    gate.set()
    assert outlet.finish(10)
    assert [event["n"] for event in taken] == [-1, *range(100 - WAITING, 100)]


def test_an_outlet_whose_other_side_is_gone_says_so() -> None:
    def emit(_: dict[str, object]) -> None:
        raise BrokenPipeError

    outlet = Outlet(emit)
    outlet.put({})
    assert outlet.closed.wait(10)


@pytest.mark.parametrize(
    ("text", "progress"), [('{"completed": 3}', {"completed": 3}), ("[]", None), ("{torn", None), (None, None)]
)
def test_a_jobs_progress_is_what_the_file_says_or_unknown(
    tmp_path: Path, text: str | None, progress: dict[str, int] | None
) -> None:
    if text is not None:
        (tmp_path / "progress.json").write_text(text)
    sample = observe_job(WatchedJob("j", str(tmp_path)))
    assert sample.progress == progress
    assert (sample.age_s is None) == (text is None)
    assert json.dumps(sample.progress)


def test_the_run_that_wrote_last_is_the_jobs_whichever_output_it_has(tmp_path: Path) -> None:
    own, second, third = (tmp_path / name for name in ("out", "out-2", "out-3"))
    job = WatchedJob("j", str(own), (str(second), str(third)))
    assert observe_job(job).output == str(own)
    for place, status, age_s in ((own, "done", 60), (second, "running", 5)):
        place.mkdir()
        path = place / "progress.json"
        path.write_text(json.dumps({"status": status}))
        os.utime(path, (time.time() - age_s,) * 2)
    assert (observe_job(job).output, observe_job(job).progress) == (str(second), {"status": "running"})
    os.utime(own / "progress.json")
    assert observe_job(job).progress == {"status": "done"}


def test_a_counters_rate_begins_with_the_load_and_not_in_the_idle_time_before() -> None:
    rate, tokens, rates = CountedRate(2.0), 5000.0, list[float | None]()
    for second in range(0, 120, 2):
        is_loaded = 40 <= second < 80
        moved = rate.take(second, tokens, 64 if is_loaded else 0)
        assert moved == (40 < second <= 80)
        rates.append(rate.tok_s())
        tokens += 2 * 1100 if is_loaded else 0
    assert rates[:30] == [None] * 30, "idle, and the first 20 s of the load"
    assert rates[30:41] == pytest.approx([1100.0] * 11)
    assert rates[41:] == [None] * 19


def test_a_counters_rate_outlives_a_look_between_two_requests_and_ends_with_the_server() -> None:
    rate = CountedRate(2.0)
    for second in range(0, 30, 2):
        rate.take(second, 100.0 * second, 0 if second == 14 else 1)
    assert rate.tok_s() == pytest.approx(100.0)
    assert not rate.take(30, 5.0, 1), "another server counts from 0"
    assert rate.tok_s() is None
    rate.take(32, 100.0, 1)
    rate.forget()
    assert not rate.take(34, 200.0, 1)


def test_a_rate_can_be_asked_while_another_thread_counts() -> None:
    rate, stop, usual_s = CountedRate(0.05), threading.Event(), sys.getswitchinterval()
    for look in range(200):
        rate.take(0.2 * look, 20.0 * look, 64)

    def count() -> None:
        at = 40.0
        while not stop.is_set():
            at += 0.2
            rate.take(at, 100 * at, 64)

    thread = threading.Thread(target=count)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(200):
            rate.tok_s()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(usual_s)
    assert rate.tok_s() == pytest.approx(100)
