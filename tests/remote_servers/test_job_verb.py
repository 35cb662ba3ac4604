"""The verb `job`: what it refuses to end, and what it says of a generator that ended at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rackhand.agent import Session
from rackhand.apply.job import start_job
from rackhand.contract import to_json
from rackhand.contract.job import JobState, Progress
from rackhand.contract.run import StartRun, StopRun
from rackhand.contract.servers import Process
from rackhand.errors import RemoteError
from rackhand.inventory import Host, Ssh
from rackhand.plan.job import StartJob
from rackhand.report import Report, Row
from remote import job, processes
from remote.cli import VerbError
from remote.generator.run_loop import put_progress
from remote.output.job_file import Lock


@contextmanager
def sleeper(*words: str) -> Iterator[int]:
    """The pid of a process with these words in its command line."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", *words], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.communicate()


def test_a_pid_that_is_no_generator_here_is_not_stopped(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    try:
        with sleeper() as pid:
            (tmp_path / ".lock").write_text(f"{pid}\n")
            with pytest.raises(VerbError, match=f"held by pid {pid}, which is no generator of this container"):
                job.stop(StopRun(str(tmp_path)), lambda event: None)
            with pytest.raises(VerbError, match="no generator of this container"):
                job.stop(StopRun(str(tmp_path), dry_run=True), lambda event: None)
    finally:
        lock.release()
    assert job.stop(StopRun(str(tmp_path)), lambda event: None).outcome == "idle"


def test_a_dry_run_of_stop_leaves_the_generator_alone(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    try:
        with sleeper("generate") as pid:
            (tmp_path / ".lock").write_text(f"{pid}\n")
            assert job.stop(StopRun(str(tmp_path), dry_run=True), lambda event: None).outcome == "planned"
            assert processes.lives(cast("Process", processes.identify(pid)))
    finally:
        lock.release()


def progress_of(status: str, **fields: Any) -> Progress:
    counts = (4, 2, 0, 1.0, 0.0, 0, 0, 0.0, 0.1, 0, 0)
    return Progress(*counts, status, pid=os.getpid(), bad_line_numbers=[2, 3], **fields)


ORDER = StartRun("", "/p", {}, (), (), (), "", "", "")


@pytest.mark.parametrize(
    ("progress", "log", "code", "words"),
    [
        (progress_of("done", bad_lines=2), "", 3, "done, 0 of 4 done, 2 lines could not be read (lines 2, 3)"),
        (progress_of("done"), "", 0, "job j: done, 0 of 4 done"),
        (progress_of("failed", message="no disk"), "[2026] failed: 0 completed", 1, "ended at once: no disk"),
        (None, "[2026] refused: line 3 is odd", 1, "the generator ended at once: refused: line 3 is odd"),
        (None, "", 1, "the generator ended at once"),
    ],
)
def test_resume_tells_how_a_generator_that_ended_at_once_did(
    tmp_path: Path, progress: Progress | None, log: str, code: int, words: str
) -> None:
    path = tmp_path / "generation.log"
    path.write_text(log)
    if progress is not None:
        put_progress(tmp_path, progress)
    order = replace(ORDER, output=str(tmp_path), log=str(path))
    result = job._ended(order, 0, (), is_new=progress is not None)
    session = SimpleNamespace(call=lambda *_, **__: [to_json(result)])
    host = Host("h", Ssh("h"))
    try:
        outcomes = start_job(cast("Session", session), host, StartJob("j", order, ""), {}, lambda _: None)
        row = Row("h", outcomes)
    except RemoteError as error:
        row = Row("h", error=error)
    said = [outcome.what for outcome in row.outcomes] + ([row.error.what] if row.error else [])
    assert any(words in one for one in said), said
    assert Report("resume", (row,)).exit_code == code


@pytest.mark.parametrize(
    ("progress", "known", "at_work"),
    [
        (progress_of("running", left=2), 0, True),
        (progress_of("running", left=2), 2, False),
        (progress_of("running", left=0, bad_lines=2), 2, False),
        (progress_of("running", left=3), 2, True),
        (progress_of("running", left=2, in_flight=1), 2, True),
        (progress_of("running"), 0, False),
        (progress_of("done", left=2), 0, False),
    ],
)
def test_a_generator_that_has_only_lines_left_that_cannot_be_read_is_not_at_work(
    progress: Progress, known: int, *, at_work: bool
) -> None:
    assert job._is_at_work(JobState("/o", pid=os.getpid(), progress=progress), known) == at_work
