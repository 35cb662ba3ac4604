"""The parent of one server: starts it, keeps its log free of secrets, records it, sees it end.

`python remote.pyz supervise --gpu N --home DIR --port P --session NAME --digest HEX --log FILE -- ARGV`

Run by serve-gpuN.sh as the process of a tmux pane. The server is a session of its own, so that Ctrl-C and a closed
terminal reach this process only. SIGTERM and SIGINT are passed on as SIGTERM and waited for without limit (whoever
sent it has the deadline); SIGHUP (tmux kill-session) likewise, then SIGKILL after HANGUP_GRACE_S.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from rackhand.contract.servers import ACTIVE, ServerRecord, secrets_dir
from rackhand.engines import engine
from remote import processes
from remote.serving.journal import append_event, replace_json
from remote.serving.redact import Redactor, read_secrets
from remote.serving.state import read_record
from remote.serving.wishes import read_wishes

HANGUP_GRACE_S = 60.0
CHILDREN_POLL_S = 1.0
DRAIN_OUTPUT_S = 5.0
LOOKS_BACK = 6
"""Of the kernel's count of OOM kills: a server may take some seconds to end after its scheduler was killed."""
ENGINE = "sglang"
LARGEST_LOG = 16 << 20
_PR_SET_PDEATHSIG = 1


class LogFile:
    """Appends; what a full disk refuses is dropped, and counted in the log once there is room again."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.offset = os.fstat(self._descriptor).st_size
        self._dropped = 0

    def write(self, data: bytes) -> None:
        if self._dropped and self._put(b"[rackhand] %d bytes of log lost: disk full\n" % self._dropped):
            self._dropped = 0
        if data and not self._put(data):
            self._dropped += len(data)

    def _put(self, data: bytes) -> bool:
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view:
                view = view[os.write(self._descriptor, view) :]
        return not view


class Supervisor:
    """One run of one server. `command` is its argv; the record is rewritten whenever its children change."""

    def __init__(self, home: Path, record: ServerRecord, command: list[str]) -> None:
        self._home, self._record, self._command = home, record, command
        self._path = home / "run" / f"gpu{record.gpu}.json"
        self._log = LogFile(Path(record.log))
        self._redactor = Redactor(read_secrets(Path(secrets_dir(str(home)))))
        self._ended = threading.Event()
        self._hung_up_at: float | None = None
        self._was_wanted = self._asked = False
        self._oom_kills: deque[int | None] = deque([processes.oom_kills()], maxlen=LOOKS_BACK)

    def run(self) -> int:
        """The server's exit status as a shell would report it."""
        child = self._start()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda n, _frame: self._stop(child, n))
        reader = threading.Thread(target=self._copy, args=(child.stdout,), daemon=True)
        reader.start()
        while (status := child.poll()) is None:
            self._note_children(child.pid)
            self._end_after_hangup(child)
            self._oom_kills.append(processes.oom_kills())
            self._was_wanted = self._was_wanted or self._is_wanted()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=CHILDREN_POLL_S)
        reader.join(DRAIN_OUTPUT_S)
        self._log.write(self._redactor.flush())
        asked = self._asked or status == -signal.SIGTERM or (self._was_wanted and not self._is_wanted())
        self._record = replace(self._record, exit_status=status, ended=round(time.time(), 3), asked=asked)
        if not asked:
            self._record = replace(self._record, cause=self._cause(status))
        self._save()
        self._say("server_exit", status=status, asked=self._record.asked)
        return status if status >= 0 else 128 - status

    def _is_wanted(self) -> bool:
        """A stop is asked of the server's own process: what tells it from a crash is that it was active before."""
        return read_wishes(self._home).get(f"http://127.0.0.1:{self._record.port}") == ACTIVE

    def _cause(self, status: int) -> str:
        """In words: the first sign in the log of this start, else the status; and the kernel's own word on a kill."""
        cause = engine(ENGINE).find_cause(read_lines(Path(self._record.log), self._record.log_offset), status)
        before, now = self._oom_kills[0], processes.oom_kills()
        if cause.is_kill and before is not None and now is not None and now > before:
            return f"{cause.text} by the OOM killer: the container's memory was used up"
        return f"{cause.text}; {cause.hint}" if cause.hint else cause.text

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # no thread has started yet
        )
        ticks = processes.start_ticks(child.pid) or 0
        self._record = replace(
            self._record,
            pid=child.pid,
            start_ticks=ticks,
            supervisor=os.getpid(),
            started=round(time.time(), 3),
            log_offset=self._log.offset,
        )
        self._save()
        self._say("server_start", argv_digest=self._record.argv_digest)
        return child

    def _copy(self, output: BinaryIO) -> None:
        while chunk := os.read(output.fileno(), 1 << 16):
            self._log.write(self._redactor.feed(chunk))

    def _stop(self, child: subprocess.Popen[bytes], number: int) -> None:
        self._asked = True
        if number == signal.SIGHUP and self._hung_up_at is None:
            self._hung_up_at = time.monotonic()
        child.terminate()

    def _end_after_hangup(self, child: subprocess.Popen[bytes]) -> None:
        if self._hung_up_at is not None and time.monotonic() > self._hung_up_at + HANGUP_GRACE_S:
            child.kill()
            for process in self._record.children:
                processes.send_signal(process, signal.SIGKILL)

    def _note_children(self, pid: int) -> None:
        living = processes.descendants(pid)
        known = {p for p in self._record.children if processes.lives(p)}
        if known | set(living) != set(self._record.children):
            self._record = replace(self._record, children=tuple(sorted(known | set(living), key=lambda p: p.pid)))
            self._save()

    def _save(self) -> None:
        """A start writes it; later only while no other supervisor has taken over this GPU."""
        there = read_record(self._path)
        if there is not None and there.supervisor != os.getpid() and there.started > self._record.started:
            return
        try:
            replace_json(self._path, self._record)
        except OSError as error:
            sys.stderr.write(f"rackhand: {self._path}: {error.strerror}\n")

    def _say(self, event: str, **fields: object) -> None:
        append_event(self._home, event, gpu=self._record.gpu, pid=self._record.pid, port=self._record.port, **fields)


def read_lines(log: Path, offset: int) -> list[str]:
    """The lines of a start, the last LARGEST_LOG bytes of them; none where the log can't be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, log.stat().st_size - LARGEST_LOG))
            return file.read(LARGEST_LOG).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def main(argv: list[str]) -> int:
    words, command = _split(argv)
    parser = argparse.ArgumentParser(prog="supervise")
    parser.add_argument("--gpu", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--digest", required=True)
    parser.add_argument("--log", required=True)
    options = parser.parse_args(words)
    if not command:
        parser.error("no command after --")
    record = ServerRecord(options.gpu, 0, 0, options.port, options.session, options.digest, options.log, 0.0)
    try:
        return Supervisor(options.home, record, command).run()
    except OSError as error:
        sys.stderr.write(f"rackhand: {error.filename or command[0]}: {error.strerror}\n")
        return 127


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    cut = argv.index("--") if "--" in argv else len(argv)
    return argv[:cut], argv[cut + 1 :]


def _die_with_parent() -> None:
    """A supervisor that was killed takes its server along gracefully: nobody would read its output any more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
