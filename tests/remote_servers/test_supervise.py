"""The supervisor as a process of its own, with small stand-in servers."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract.servers import secrets_dir
from remote import processes

ROOT = Path(__file__).resolve().parents[2]

PATIENT = """
    import signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    def stop(*_):
        print("draining", flush=True); child.kill(); child.wait(); sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    print("up", flush=True)
    time.sleep(60)
"""


class Bench:
    def __init__(self, home: Path) -> None:
        self.home, self.log, self.running = home, home / "logs" / "sglang_gpu3.log", list[subprocess.Popen[bytes]]()

    def start(self, code: str, *, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        words = ["--gpu", "3", "--home", str(self.home), "--port", "30003", "--session", "sglang-gpu3"]
        words += ["--digest", "abcd", "--log", str(self.log), "--", sys.executable, "-c", textwrap.dedent(code)]
        process = subprocess.Popen(
            [sys.executable, "-m", "remote", "supervise", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            preexec_fn=before,  # noqa: PLW1509
        )
        self.running.append(process)
        return process

    def record(self) -> dict[str, Any]:
        path = self.home / "run" / "gpu3.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "events.jsonl").read_text().splitlines()]

    def await_true(self, check: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not check():
            assert time.monotonic() < deadline, f"log: {self.text()!r}, record: {self.record()}"
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    main = bench.record().get("pid", 0)
    for process in bench.running:
        process.kill()
        process.wait()
    for child in (processes.identify(main), *processes.descendants(main)) if main else ():
        if child is not None:
            processes.send_signal(child, signal.SIGKILL)


def test_a_server_is_recorded_and_its_exit_status_is_passed_on(bench: Bench) -> None:
    process = bench.start("import sys; print('hello'); sys.exit(7)")
    assert process.wait(20) == 7
    record = bench.record()
    assert (record["gpu"], record["port"], record["exit_status"], record["asked"]) == (3, 30003, 7, False)
    assert (record["supervisor"], record["argv_digest"], record["log"]) == (process.pid, "abcd", str(bench.log))
    assert [(e["event"], e.get("status")) for e in bench.events()] == [("server_start", None), ("server_exit", 7)]
    assert bench.text() == "hello\n"


def test_a_signal_shows_as_negative_status_and_128_more(bench: Bench) -> None:
    process = bench.start("import os; os.kill(os.getpid(), 9)")
    assert process.wait(20) == 137
    assert bench.record()["exit_status"] == -9
    assert bench.record()["cause"].startswith("the server was killed (signal 9)")


def test_a_scheduler_that_was_killed_is_the_cause_and_one_that_was_asked_to_end_has_none(bench: Bench) -> None:
    line = "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    assert bench.start(f"import os; print({line!r}, flush=True); os.kill(os.getpid(), 9)").wait(20) == 137
    assert bench.record()["cause"].startswith("the scheduler was killed (signal 9)")
    process = bench.start(PATIENT)
    bench.await_true(lambda: bench.text().endswith("up\n"))
    process.terminate()
    process.wait(20)
    assert bench.record()["cause"] == ""


def test_sigterm_reaches_the_server_alone_and_children_are_remembered(bench: Bench) -> None:
    process = bench.start(PATIENT)
    bench.await_true(lambda: len(bench.record().get("children", [])) == 1)
    record = bench.record()
    assert processes.start_ticks(record["pid"]) == record["start_ticks"]
    assert os.getsid(record["pid"]) == record["pid"]
    process.terminate()
    assert process.wait(20) == 0
    assert bench.text() == "up\ndraining\n"
    assert bench.record()["asked"] is True


def test_a_closed_terminal_stops_the_server_gracefully(bench: Bench) -> None:
    process = bench.start(PATIENT)
    bench.await_true(lambda: "up" in bench.text())
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 0
    assert "draining" in bench.text()


def test_a_killed_supervisor_takes_its_server_along(bench: Bench) -> None:
    process = bench.start(PATIENT)
    bench.await_true(lambda: "up" in bench.text())
    main = processes.identify(bench.record()["pid"])
    assert main is not None
    process.kill()
    assert processes.await_end(main, 20)


def test_the_api_key_never_reaches_the_log(bench: Bench) -> None:
    secrets = Path(secrets_dir(str(bench.home)))
    secrets.mkdir(mode=0o700)
    try:
        (secrets / "secrets.env").write_text("RACKHAND_API_KEY='hunter2 hunter2'\n")
        assert bench.start("print('server_args=ServerArgs(x, hunter2 hunter2, y)')").wait(20) == 0
        assert bench.text() == "server_args=ServerArgs(x, <secret>, y)\n"
    finally:
        (secrets / "secrets.env").unlink()
        secrets.rmdir()


def test_output_is_read_on_when_the_disk_takes_no_more(bench: Bench) -> None:
    """A file size limit stands for the full disk: writes fail, the server must not block on its pipe."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = bench.start("for i in range(40_000): print('a line of log', i)", before=limit)
    assert process.wait(20) == 0
    assert bench.record()["exit_status"] == 0
    assert 0 < bench.log.stat().st_size <= 20_000


def test_a_program_that_is_missing_ends_with_127(bench: Bench) -> None:
    words = ["--gpu", "3", "--home", str(bench.home), "--port", "1", "--session", "s", "--digest", "d"]
    argv = [sys.executable, "-m", "remote", "supervise", *words, "--log", str(bench.log), "--", "/no/such"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "/no/such" in done.stderr
