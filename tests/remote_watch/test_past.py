from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract import from_json, to_json
from rackhand.contract.watch import NOTE, GpuSample, Sample, WatchedServer, WatchRequest
from rackhand.engines import engine
from remote import watch
from remote.watching import past, stamps
from remote.watching.outlet import WAITING, Outlet
from remote.watching.server_log import ServerLog
from remote.watching.stamps import Stamps, find_moment, read_stamps
from tests.remote_watch.fake_server import decode_line, ready_line
from tests.remote_watch.test_watch import CLOSED

NOON = 1_778_328_000.0
"""2026-05-09 12:00:00 UTC."""
RETRACTED = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 9\n"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Sets this machine's zone: `zone.setenv("TZ", ...)`, then `time.tzset()`."""
    monkeypatch.setenv("TZ", "UTC0")
    time.tzset()
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("last", "modified", "stamp", "seconds"),
    [
        ("2026-05-09 12:00:10", NOON + 10.6, "2026-05-09 12:00:00", NOON),
        ("2026-05-09 12:00:10", NOON + 10.6, "2026-05-09 11:59:58.250", NOON - 1.75),
        ("2026-05-09 17:30:10", NOON + 10.6, "2026-05-09 17:30:00", NOON),
        ("2026-05-09 07:00:10", NOON + 10.6, "2026-05-08 23:59:00", NOON - 7 * 3600 - 60),
        ("2026-05-09 12:00:10", NOON + 3000, "2026-05-09 12:00:00", NOON),
    ],
    ids=["own zone", "milliseconds", "ahead by 5.5 h", "behind by 5 h, the day before", "a traceback came later"],
)
def test_a_logs_times_are_dated_by_when_the_file_changed(
    zone: pytest.MonkeyPatch, last: str, modified: float, stamp: str, seconds: float
) -> None:
    assert Stamps(last, modified).seconds(stamp) == pytest.approx(seconds)


def test_summer_time_is_kept_to_in_the_machines_own_zone(zone: pytest.MonkeyPatch) -> None:
    zone.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    found = Stamps("2026-10-25 04:00:00", 1_792_897_200.0)
    assert found.seconds("2026-10-25 04:00:00") == 1_792_897_200.0
    assert found.seconds("2026-10-25 01:00:00") == 1_792_897_200.0 - 4 * 3600
    assert found.seconds("yesterday") is None


def test_a_moment_is_found_in_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_BLOCK", 1024)
    log = tmp_path / "server.log"
    begin = float(int(time.time())) - 4000
    log.write_text("".join(decode_line(begin + 2 * n) + "  File x, line 3\n" * (n % 7) for n in range(2000)))
    os.utime(log, (begin + 4000, begin + 4000))
    fd = os.open(log, os.O_RDONLY)
    try:
        size = log.stat().st_size
        times = read_stamps(fd, size, begin + 4000)
        assert times is not None
        for wanted in (begin - 10, begin + 1, begin + 2000, begin + 3999, begin + 9000):
            place = find_moment(fd, size, wanted, times)
            before = os.pread(fd, place, 0).decode().count("Decode")
            assert begin + 2 * before <= max(begin, wanted)
            assert before >= min(2000, (wanted - begin) / 2) - 8, "at most a block too early"
    finally:
        os.close(fd)


def played(path: Path, since: float) -> ServerLog:
    log = ServerLog(path, engine("sglang"))
    log.begin_past(since)
    return log


def test_a_log_says_what_it_said_then_and_goes_on_with_what_comes(tmp_path: Path) -> None:
    path, now = tmp_path / "server.log", float(int(time.time()))
    stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(now - 200))
    path.write_text(
        ready_line(now - 5000, 37)
        + "".join(decode_line(now - 400 + 2 * n, running=32, tok_s=670) for n in range(100))
        + stamp + RETRACTED + stamp + "server_args=ServerArgs(model_path='m')\n"
        + ready_line(now - 100, 72)
        + "".join(decode_line(now - 99 + 2 * n, running=64, tok_s=1175) for n in range(50))
    )  # fmt: skip
    log = played(path, now - 300)
    seen = []
    for moment in (now - 300, now - 201, now - 150, now - 50):
        log.play_to(moment)
        seen.append((log.cap, log.total("#running-req"), log.tok_s(), log.retractions, log.starting))
    assert seen == [
        (37, 32, 670, 0, False),
        (37, 32, 670, 0, False),
        (None, None, None, 1, True),
        (72, 64, 1175, 1, True),
    ]
    log.end_past()
    with path.open("a") as file:
        file.write(decode_line(now, running=65) + RETRACTED)
    log.update()
    log.update()
    assert (log.cap, log.total("#running-req"), log.retractions, log.unread) == (72, 65, 2, 0)
    log.tail.close()


def test_ranks_are_added_up_in_the_past_too(tmp_path: Path) -> None:
    path, now = tmp_path / "server.log", float(int(time.time()))
    lines = (decode_line(now - 120 + n, running=30, tok_s=500, queue=2) for n in range(120))
    path.write_text("".join(line.replace("] ", f" DP{n % 2} TP{n % 2}] ", 1) for n, line in enumerate(lines)))
    log = played(path, now - 60)
    log.play_to(now - 30)
    assert (log.total("#running-req"), log.total("#queue-req"), log.tok_s()) == (60, 4, 1000)
    log.end_past()
    log.tail.close()


@pytest.mark.parametrize("text", [None, "no time in here\n" * 1000])
def test_without_a_log_or_a_time_in_it_nothing_is_known_of_the_past(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "server.log"
    if text is not None:
        path.write_text(text)
    log = played(path, time.time() - 60)
    log.play_to(time.time() - 30)
    assert (log.total("#running-req"), log.cut_at) == (None, None)
    log.end_past()
    with path.open("a") as file:
        file.write(decode_line(time.time(), running=7))
    log.update()
    assert log.total("#running-req") == 7
    log.tail.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


class Patient:
    """A caller that stays."""

    def is_gone(self, wait_s: float) -> bool:
        return False


def told(request: WatchRequest) -> tuple[list[dict[str, Any]], list[Sample]]:
    """Notes and rebuilt samples, and the sample of the present behind them."""
    events: list[dict[str, Any]] = []
    stop, outlet = threading.Event(), Outlet(events.append)
    watcher = watch.Watcher(request, stop, nvidia_smi="absent")
    watcher.start()
    assert watch._tell_past(watcher, request, outlet, Patient())  # type: ignore[arg-type]
    outlet.put(to_json(watcher.sample(0)))
    assert outlet.finish(10)
    stop.set()
    watcher.close()
    notes = [event for event in events if event["event"] == NOTE]
    return notes, [from_json(Sample, event) for event in events if event["event"] == "sample"]


def test_the_past_comes_first_and_a_second_watch_goes_on_where_the_first_ended(home: Path) -> None:
    log, now = home / "gpu0.log", float(int(time.time()))
    log.write_text(ready_line(now - 900, 72) + "".join(decode_line(now - 60 + n, running=50) for n in range(61)))
    servers = (WatchedServer(0, CLOSED, str(log)), WatchedServer(1, CLOSED, "absent"))
    request = WatchRequest(str(home), servers, interval_s=0.2, past_s=20.0)
    _, first = told(request)
    time.sleep(0.5)
    _, again = told(replace(request, past_s=0.0, since=first[-1].time))
    assert [sample.rebuilt for sample in first] == [True] * (len(first) - 1) + [False]
    assert len(first) >= 100
    assert len(again) >= 3
    times = [sample.time for sample in (*first, *again)]
    assert times == sorted(set(times))
    steps = [b - a for a, b in pairwise(times)]
    assert steps[:98] == pytest.approx([0.2] * 98, abs=0.002)
    assert steps[len(first)] == pytest.approx(0.2, abs=0.002)
    assert (first[5].seq, first[5].jobs, first[5].host.cpu_pct, first[5].gpus[1]) == (-1, (), None, GpuSample(1))
    age_s = first[5].gpus[0].decode_age_s
    assert age_s is not None
    assert 0 <= age_s <= 1
    assert first[5].gpus[0] == GpuSample(
        0, state="running", running=50, cap=72, queue=3, kv_usage=0.42, mamba_usage=0.59, tok_s=1175.0,
        tok_s_source="log", graph=True, decode_age_s=age_s, still_s=age_s,
        kv_tokens=181_000,
    )  # fmt: skip


def test_of_a_log_that_is_too_long_only_the_end_is_read_back_and_that_is_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "PAST_BYTES", 40_000)
    monkeypatch.setattr(past, "BACKLOG_BYTES", 1000)
    monkeypatch.setattr(stamps, "_BLOCK", 1024)
    log, now = home / "gpu0.log", float(int(time.time()))
    log.write_text("".join(decode_line(now - 2000 + 2 * n) for n in range(1000)))
    notes, samples = told(WatchRequest(str(home), (WatchedServer(0, CLOSED, str(log)),), past_s=1500))
    assert [note["text"].partition(", from ")[0] for note in notes] == [
        "GPU 0: the last 32 MiB of its log are read back"
    ]
    assert now - samples[0].time == pytest.approx(2 * 40_000 / len(decode_line(now)), abs=10)
    assert samples[-2].time >= now - 4


def test_a_long_past_is_widely_spaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_PAST", 20)
    (home / "gpu0.log").write_text("".join(decode_line(time.time() - 200 + n) for n in range(200)))
    request = WatchRequest(str(home), (WatchedServer(0, CLOSED, str(home / "gpu0.log")),), past_s=200)
    _, samples = told(request)
    assert 18 <= len(samples) - 1 <= 20
    assert samples[1].time - samples[0].time == pytest.approx(10, abs=0.1)


def test_what_waits_for_a_slow_road_takes_nothings_place() -> None:
    gate, taken = threading.Event(), list[object]()

    def emit(event: dict[str, object]) -> None:
        gate.wait(10)
        taken.append(event["n"])

    outlet = Outlet(emit)
    put = [outlet.put_when_taken({"n": number}, 0.2) for number in range(WAITING + 2)]
    assert put[-1] is False
    assert outlet.drops == 0
    gate.set()
    assert outlet.put_when_taken({"n": 99}, 10)
    assert outlet.finish(10)
    assert taken == [*(number for number, is_put in enumerate(put) if is_put), 99]
