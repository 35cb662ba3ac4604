"""Call verb `job`: start the generator in its tmux session and see its first progress, or stop it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.job import OVER, PROGRESS_FILE, JobState, plan_refusals
from rackhand.contract.run import ChangeRun, RunNote, RunRequest, RunResult, StartRun, StopRun
from rackhand.contract.servers import ACTIVE, Heartbeat, Probe, Process, secrets_dir
from rackhand.engines import engine
from remote import processes
from remote.cli import Emit, VerbError
from remote.heartbeat import Beat
from remote.output.job_file import RefusedError, observe_lock, observe_prompts_digest
from remote.output.state import observe_state
from remote.packages import MissingPackageError
from remote.prompts.look import UnreadableError, check_file, check_readable
from remote.prompts.shapes import reading_of
from remote.servers import exclusive
from remote.serving.ask import read_api_key
from remote.serving.journal import read_json
from remote.serving.order import put_script
from remote.serving.probe import observe_server
from remote.serving.secret_files import put_secrets
from remote.serving.wishes import Wishes

POLL_S = 0.2
HEARTBEAT_S = 5.0
LAST_LINES = 15
_STAMP = re.compile(r"^\[[^\]]*\] ")


@dataclass(frozen=True)
class Session:
    """A session that was just made: its pane's process, when (Unix time), where its lines begin in the log, and how
    many lines of the prompts the run before could not read."""

    pane: Process | None
    began: float
    offset: int
    bad_lines: int


def call(data: Any, emit: Emit, _body: BinaryIO) -> None:
    request = from_json(RunRequest, data)
    home = Path(request.home)
    (home / "run").mkdir(parents=True, exist_ok=True)
    with exclusive(home / "run" / "job.lock", "another resume or stop works on this host's generator"):
        if request.start is None or not request.start.dry_run:
            put_secrets(Path(secrets_dir(request.home)), request.secrets)
        if request.start is not None:
            emit(to_json(start(home, request.start, emit)))
        elif request.stop is not None:
            emit(to_json(stop(request.stop, emit)))
        elif request.change is not None:
            emit(to_json(change(home, request.change)))


def start(home: Path, order: StartRun, emit: Emit) -> RunResult:
    """VerbError when a precondition isn't met; then nothing was started."""
    state = observe_state(Path(order.output))
    if state.pid is not None:
        return RunResult("running", state)
    _check(order, state, emit)
    if state.finished:
        emit(to_json(RunNote(f"{state.finished} already done")))
    probes = _probe(home, order, emit)
    healthy = [probe.url for probe in probes if probe.healthy]
    if not healthy:
        said = "; ".join(dict.fromkeys(probe.text for probe in probes))
        raise VerbError("missing", f"no server generates: {said}", "./inv restart-servers first, see ./inv status")
    if order.dry_run:
        return RunResult("planned", state, probes)
    _wish_active(home, healthy)
    Wishes(home).put_concurrency(order.output, None)
    subprocess.run(order.end_session, capture_output=True, timeout=30, check=False)
    put_script(Path(order.script_path), order.script)
    log = Path(order.log)
    offset = log.stat().st_size if log.exists() else 0
    began = time.time()
    done = subprocess.run(order.tmux, capture_output=True, text=True, timeout=30, check=False)
    pane = processes.identify(int(done.stdout)) if done.stdout.strip().isdigit() else None
    if done.returncode != 0:
        raise VerbError("failed", f"tmux: {(done.stderr or done.stdout).strip()}")
    bad_lines = state.progress.bad_lines if state.progress else 0
    return _await_progress(order, Session(pane, began, offset, bad_lines), probes, emit)


def _check(order: StartRun, state: JobState, emit: Emit) -> None:
    prompts = Path(order.prompts)
    if state.problem:
        raise VerbError("missing", state.problem)
    if order.prompts_come:
        return
    try:
        check_file(prompts)
        if not os.access(prompts, os.R_OK):
            raise VerbError("missing", f"{prompts} can't be read by this user", "mend its owner or mode")
        _check_same(order, state, prompts)
        reading = reading_of(order.columns, order.last_assistant)
        check_readable(prompts, reading, Beat(emit, "a prompt that can be asked"))
    except UnreadableError as error:
        raise VerbError("missing", error.what, error.hint) from None
    except MissingPackageError as error:
        raise VerbError("missing", str(error)) from None


def _check_same(order: StartRun, state: JobState, prompts: Path) -> None:
    if state.job is None:
        return
    try:
        problems = plan_refusals(state.job, observe_prompts_digest(prompts), order.sampling, order.shards)
    except RefusedError as error:
        raise VerbError("missing", str(error)) from None
    if problems:
        raise VerbError("usage", f"{order.output}: {'; '.join(problems)}", "--new starts another output directory")


def _probe(home: Path, order: StartRun, emit: Emit) -> tuple[Probe, ...]:
    kind, key = engine(order.engine), read_api_key(Path(secrets_dir(str(home))))
    with ThreadPoolExecutor(max(1, len(order.servers))) as pool:
        jobs = [pool.submit(observe_server, kind, url, key, order.probe_timeout_s) for url in order.servers]
        beat = time.monotonic() + HEARTBEAT_S
        while not all(job.done() for job in jobs):
            time.sleep(POLL_S)
            if time.monotonic() >= beat:
                emit(to_json(Heartbeat(f"{sum(not job.done() for job in jobs)} servers")))
                beat = time.monotonic() + HEARTBEAT_S
        probes = tuple(job.result() for job in jobs)
    for probe in probes:
        if not probe.healthy:
            emit(to_json(RunNote(f"{probe.url} does not generate: {probe.text}")))
    return probes


def _wish_active(home: Path, urls: list[str]) -> None:
    """Unless a restart is at work: it says itself when its servers may be used."""
    with contextlib.suppress(VerbError), exclusive(home / "run" / "servers.lock", "busy"):
        Wishes(home).put_all(dict.fromkeys(urls, ACTIVE))


def _await_progress(order: StartRun, session: Session, probes: tuple[Probe, ...], emit: Emit) -> RunResult:
    deadline, beat = time.monotonic() + order.start_timeout_s, time.monotonic() + HEARTBEAT_S
    output, progress = Path(order.output), Path(order.output) / PROGRESS_FILE
    while time.monotonic() < deadline:
        ended = session.pane is None or not processes.lives(session.pane)
        written = progress.exists() and progress.stat().st_mtime >= session.began
        if written and not ended:
            state = observe_state(output)
            if _is_at_work(state, session.bad_lines):
                return RunResult("started", state, probes)
        if ended:
            return _ended(order, session.offset, probes, is_new=written)
        if time.monotonic() >= beat:
            emit(to_json(Heartbeat("the first progress")))
            beat = time.monotonic() + HEARTBEAT_S
        time.sleep(POLL_S)
    lines = _last_lines(Path(order.log), session.offset)
    what = f"no progress in {order.start_timeout_s:.0f} s; the generator goes on"
    raise VerbError("failed", f"{what}: {lines[-1] if lines else 'no line in its log'}", f"read {order.log}")


def _is_at_work(state: JobState, bad_lines: int) -> bool:
    """The process that holds the output wrote this progress and has something left to do; one that finds everything
    done says `running` for a moment as well. So does one that has only lines left that can't be read."""
    progress = state.progress
    if state.pid is None or progress is None or progress.pid != state.pid:
        return False
    if progress.status not in ("running", "draining", "paused"):
        return False
    unread = max(0, bad_lines - progress.bad_lines)
    left = progress.left is not None and progress.left > unread
    return left or progress.in_flight > 0 or progress.uploads_left > 0


def _ended(order: StartRun, offset: int, probes: tuple[Probe, ...], *, is_new: bool) -> RunResult:
    """Ended before it was seen at work: everything was done already, or it failed."""
    state = observe_state(Path(order.output))
    lines = _last_lines(Path(order.log), offset)
    progress = state.progress if is_new else None
    if progress is not None and progress.status == "done":
        return RunResult("ended", state, probes, 0, lines)
    said = _STAMP.sub("", lines[-1]) if lines else ""
    why = progress.message if progress is not None and progress.status in OVER and progress.message else said
    return RunResult("ended", state, probes, 1, lines, why)


def change(home: Path, order: ChangeRun) -> RunResult:
    """VerbError when the generator doesn't take it in time; control.json is then as it was."""
    output, path = Path(order.output), Path(order.output) / PROGRESS_FILE
    state = observe_state(output)
    if state.pid is None:
        return RunResult("idle", state)
    if state.progress is not None and state.progress.concurrency == order.concurrency:
        return RunResult("running", state)
    wishes = Wishes(home)
    wishes.put_concurrency(order.output, order.concurrency)
    deadline = time.monotonic() + order.timeout_s
    while time.monotonic() < deadline:
        if read_json(path).get("concurrency") == order.concurrency:
            return RunResult("changed", observe_state(output))
        if observe_lock(output) is None:
            return RunResult("idle", observe_state(output))
        time.sleep(POLL_S)
    wishes.put_concurrency(order.output, None)
    what = f"the generator (pid {state.pid}) did not take it in {order.timeout_s:.0f} s"
    raise VerbError("failed", what, "is it an older one? ./inv stop, then ./inv resume with it")


def stop(order: StopRun, emit: Emit) -> RunResult:
    """Ends when the generator did; it gives back or finishes what is in flight first."""
    output = Path(order.output)
    state = observe_state(output)
    target = _generator(output, state)
    if target is None:
        return RunResult("idle", state)
    if order.dry_run:
        return RunResult("planned", state)
    for limit_s in (order.drain_timeout_s, order.hurry_timeout_s):
        processes.send_signal(target, signal.SIGTERM)
        processes.send_signal(target, signal.SIGCONT)  # one that was stopped by a signal takes none until it goes on
        if _await_end(output, target, limit_s, emit):
            return RunResult("stopped", observe_state(output))
    processes.send_signal(target, signal.SIGKILL)
    _await_end(output, target, order.hurry_timeout_s, emit)
    return RunResult("killed", observe_state(output))


def _generator(output: Path, state: JobState) -> Process | None:
    """The process that holds the output. A lock can be held from another container that shares the disk: the pid in
    it is then another process here."""
    if state.pid is None:
        return None
    process = processes.identify(state.pid)
    if process is not None and "generate" in processes.cmdline(process.pid):
        return process
    if observe_lock(output) is None:
        return None
    what = f"{output} is held by pid {state.pid}, which is no generator of this container"
    raise VerbError("failed", what, "stop it where it was started")


def _await_end(output: Path, target: Process, limit_s: float, emit: Emit) -> bool:
    deadline = time.monotonic() + limit_s
    while not processes.await_end(target, min(HEARTBEAT_S, max(0.1, deadline - time.monotonic()))):
        in_flight = read_json(output / PROGRESS_FILE).get("in_flight")
        emit(to_json(Heartbeat("the generator" if in_flight is None else f"{in_flight} requests in flight")))
        if time.monotonic() >= deadline:
            return False
    return True


def _last_lines(log: Path, offset: int) -> tuple[str, ...]:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-LAST_LINES:])
