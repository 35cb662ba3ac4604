"""The verb `job`: what it refuses to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from rackhand.contract.run import StopRun
from rackhand.contract.servers import Process
from remote import job, processes
from remote.cli import VerbError
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
