"""A generator in a process of its own without the cost of starting Python: a fork of the tests' process."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

for name in ("uvloop", "orjson", "remote.generate", "remote.generator.client"):
    importlib.import_module(name)


class Forked:
    """The part of subprocess.Popen that the tests use. Fork it from a process with one thread only."""

    def __init__(self, argv: list[str], cwd: Path, log: Path) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_run(argv, cwd, log))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        end, pause = time.monotonic() + timeout, 0.001
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("generate", timeout)
            time.sleep(pause)
            pause = min(0.02, pause * 2)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(argv: list[str], cwd: Path, log: Path) -> int:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.closerange(3, 256)
    os.chdir(cwd)
    warnings.resetwarnings()
    warnings.simplefilter("ignore", ResourceWarning)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    try:
        from remote.cli import main

        return int(main(argv) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # noqa: BLE001 (what Python itself does at the end)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
