"""Whether a job is at work, whatever its progress.json says: by pid, start time and lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rackhand.contract.job import Status
from rackhand.contract.watch import WatchedJob
from rackhand.eta import Eta
from rackhand.render.words import job_words
from remote import processes
from remote.output import state
from remote.output.job_file import Lock
from remote.output.state import observe_progress, observe_state
from remote.watching.jobs import observe_job

HOLD = """
import sys
from pathlib import Path
from remote.output.job_file import Lock
lock = Lock(Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[2]


class Generator:
    """A process that holds the lock of `output` as a generator does, and what it would have written."""

    def __init__(self, output: Path) -> None:
        output.mkdir(exist_ok=True)
        self.output = output
        argv = (sys.executable, "-c", HOLD, "generate", str(output))
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert self.process.stdout is not None and self.process.stdout.readline() == b"held\n"

    def write(self, status: Status = "running", **fields: Any) -> None:
        pid = self.process.pid
        self.put({"status": status, "pid": pid, "start_ticks": processes.start_ticks(pid), **fields})

    def put(self, progress: dict[str, Any]) -> None:
        (self.output / "progress.json").write_text(json.dumps(progress))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.communicate()


@pytest.fixture
def generator(tmp_path: Path) -> Iterator[Generator]:
    found = Generator(tmp_path / "out")
    yield found
    found.close()


def seen(output: Path) -> tuple[str, str]:
    progress = observe_progress(output)
    assert progress is not None
    return progress["status"], str(progress.get("message", ""))


@pytest.mark.parametrize("status", ["running", "draining", "paused"])
def test_a_generator_that_was_killed_is_known_at_once_however_young_its_progress_is(
    generator: Generator, status: Status
) -> None:
    generator.write(status)
    assert seen(generator.output)[0] == status
    generator.kill()
    word, message = seen(generator.output)
    assert word == "killed"
    assert f"pid {generator.process.pid}" in message and "./inv resume" in message
    assert "killed" in job_words(observe_progress(generator.output), 0.1, Eta())


@pytest.mark.parametrize("status", ["done", "stopped", "failed"])
def test_one_that_ended_with_a_word_is_believed(generator: Generator, status: Status) -> None:
    generator.write(status)
    generator.kill()
    assert seen(generator.output) == (status, "")


@pytest.mark.parametrize("age_s", [-3600, 86400])
def test_a_clock_that_is_wrong_changes_nothing(generator: Generator, age_s: float) -> None:
    generator.write()
    os.utime(generator.output / "progress.json", (time.time() - age_s,) * 2)
    assert seen(generator.output)[0] == "running"


def test_a_pid_that_another_process_got_is_not_the_generator(generator: Generator) -> None:
    generator.put({"status": "running", "pid": os.getpid(), "start_ticks": 1})
    assert seen(generator.output)[0] == "running", "another one holds the output"
    generator.kill()
    assert seen(generator.output)[0] == "killed"
    generator.put({"status": "running", "pid": os.getpid()})
    assert seen(generator.output)[0] == "killed", "pytest is no generator"


def test_one_that_was_stopped_by_a_signal_is_suspended_until_it_goes_on(generator: Generator) -> None:
    generator.write()
    generator.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while seen(generator.output)[0] == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    word, message = seen(generator.output)
    assert (word, f"kill -CONT {generator.process.pid}" in message) == ("suspended", True)
    generator.process.send_signal(signal.SIGCONT)
    while seen(generator.output)[0] == "suspended" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen(generator.output)[0] == "running"


def test_one_that_has_written_nothing_yet_is_starting(generator: Generator) -> None:
    assert observe_progress(generator.output) == {"status": "starting", "pid": generator.process.pid}
    assert observe_state(generator.output).progress is None
    assert observe_state(generator.output).pid == generator.process.pid


def test_what_is_not_rackhands_is_left_as_it_says(tmp_path: Path) -> None:
    """No lock file, no pid: another program's progress.json."""
    for progress in ({"status": "running"}, {"status": "running", "pid": 1 << 22}):
        (tmp_path / "progress.json").write_text(json.dumps(progress))
        assert seen(tmp_path)[0] == "running"


@pytest.mark.parametrize(
    ("status", "word", "message"),
    [
        (137, "killed", "the generator was killed (signal 9); ./inv resume"),
        (139, "killed", "the generator was killed (signal 11, SIGSEGV); ./inv resume"),
        (1, "failed", "ended with status 1"),
    ],
)
def test_the_exit_status_that_the_script_noted_says_how_it_ended(
    generator: Generator, status: int, word: str, message: str
) -> None:
    generator.write()
    generator.kill()
    (generator.output / ".exit_status").write_text(f"{status}\n")
    found = seen(generator.output)
    assert found[0] == word
    assert message in found[1]
    os.utime(generator.output / ".exit_status", (time.time() - 3600,) * 2)
    assert "is gone without a word" in seen(generator.output)[1], "the status of an earlier run"


def test_the_oom_killer_is_named_where_the_kernel_counted_a_kill(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator.write(oom_kills=2)
    generator.kill()
    (generator.output / ".exit_status").write_text("137\n")
    for count, named in ((2, False), (3, True), (None, False)):
        monkeypatch.setattr(state.processes, "oom_kills", lambda count=count: count)
        assert ("OOM killer" in seen(generator.output)[1]) == named


def test_a_container_that_was_started_since_is_named(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    generator.write()
    generator.kill()
    monkeypatch.setattr(state.processes, "container_started", lambda: time.time() + 10)
    assert seen(generator.output)[1].startswith("the generator ended with the container, which was started again at ")


def test_of_two_outputs_the_one_that_is_worked_on_is_told_of(tmp_path: Path, generator: Generator) -> None:
    later = tmp_path / "out-2"
    job = WatchedJob("j", str(generator.output), (str(later),))
    generator.write()
    later.mkdir()
    (later / "progress.json").write_text(json.dumps({"status": "done"}))
    os.utime(later / "progress.json", (time.time() + 3600,) * 2)
    assert observe_job(job).output == str(generator.output)
    generator.kill()
    assert observe_job(job).output == str(later)
    second = Generator(later)
    (later / "progress.json").unlink()
    try:
        sample = observe_job(job)
        assert (sample.output, sample.progress) == (str(later), {"status": "starting", "pid": second.process.pid})
    finally:
        second.close()


def test_a_look_at_the_lock_keeps_no_generator_from_starting(tmp_path: Path) -> None:
    import fcntl
    import threading

    descriptor = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.06, lambda: os.close(descriptor)).start()
    Lock(tmp_path).release()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\noom 3\noom_kill 2\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("low 0\n", None),
        (None, None),
    ],
)
def test_the_kernels_count_of_oom_kills_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, count: int | None
) -> None:
    place = tmp_path / "memory.events"
    if text is not None:
        place.write_text(text)
    monkeypatch.setattr(processes, "MEMORY_EVENTS", (place,))
    assert processes.oom_kills() == count


def test_a_container_starts_before_its_processes() -> None:
    started = processes.container_started()
    assert started is not None and started < time.time()
