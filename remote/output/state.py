"""What stands at an output: who works on it, and whether what its progress.json says is still so."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from rackhand.contract import from_json
from rackhand.contract.job import AT_WORK, EXIT_FILE, LOCK_FILE, PROGRESS_FILE, JobState, Progress, whole_of
from rackhand.contract.servers import Process
from remote import processes
from remote.output.done_bits import count_done
from remote.output.job_file import RefusedError, observe_job, observe_lock

LARGEST = 256 * 1024
RESTART_SLACK_S = 0.5


def observe_state(output: Path) -> JobState:
    """Without changing it; for the control side."""
    if not output.is_dir():
        return JobState(str(output))
    job, progress, problem = None, None, ""
    try:
        job = observe_job(output)
    except RefusedError as error:
        problem = str(error)
    try:
        data = observe_progress(output)
        progress = None if data is None or data.get("status") == "starting" else from_json(Progress, data)
    except (ValueError, OSError) as error:
        problem = problem or f"{output / PROGRESS_FILE}: {error}"
    return JobState(
        output=str(output),
        exists=True,
        pid=observe_lock(output),
        finished=count_done(output),
        job=job,
        progress=progress,
        problem=problem,
    )


def observe_progress(output: Path) -> dict[str, Any] | None:
    """progress.json, with the status that is true now: `killed` where its generator is gone, `suspended` where it was
    stopped by a signal, and `starting` where one holds the output that has written nothing yet. None: there is none.

    A generator is known by pid and start time, and by the lock; the file's age says nothing. Raises OSError and
    ValueError for a file that can't be read.
    """
    path = output / PROGRESS_FILE
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(LARGEST))
            written = path.stat().st_mtime
    except FileNotFoundError:
        holder = observe_lock(output)
        return None if holder is None else {"status": "starting", "pid": holder}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return _as_it_is(output, data, written)


def _as_it_is(output: Path, progress: dict[str, Any], written: float) -> dict[str, Any]:
    pid = whole_of(progress, "pid")
    if progress.get("status") not in AT_WORK or not pid:
        return progress
    process = _find(pid, whole_of(progress, "start_ticks"))
    if process is not None:
        if not processes.is_suspended(process):
            return progress
        message = f"its process was stopped by a signal; kill -CONT {pid} lets it go on"
        return {**progress, "status": "suspended", "message": message}
    # A lock that is held means another generator: one that has just started, or one in a container with the same disk.
    # Without a lock file it isn't a generator of rackhand's, and its pid may be of another container.
    if observe_lock(output) is not None or not (output / LOCK_FILE).exists():
        return progress
    return {**progress, **_end_of(output, progress, pid, written)}


def _find(pid: int, start_ticks: int | None) -> Process | None:
    process = processes.identify(pid)
    if process is None or (start_ticks and process.start_ticks != start_ticks):
        return None
    # An older generator didn't write its start time: then its command line has to do.
    return process if start_ticks or "generate" in processes.cmdline(pid) else None


def _end_of(output: Path, progress: dict[str, Any], pid: int, written: float) -> dict[str, Any]:
    """The status and the message of a generator that ended without a word."""
    status = _exit_status(output, written)
    go_on = "./inv resume goes on"
    if status is None:
        started = processes.container_started()
        if started is not None and started > written + RESTART_SLACK_S:
            when = time.strftime("%H:%M:%S", time.localtime(started))
            what = f"the generator ended with the container, which was started again at {when}"
            return {"status": "killed", "message": f"{what}; {go_on}"}
        return {"status": "killed", "message": f"the generator (pid {pid}) is gone without a word; {go_on}"}
    if status <= 128:
        what = f"the generator ended with status {status} and didn't say why: see generation.log"
        return {"status": "failed", "message": what}
    number = status - 128
    name = "" if number == signal.SIGKILL else f", {_name(number)}"
    what = f"the generator was killed (signal {number}{name})"
    before, now = whole_of(progress, "oom_kills"), processes.oom_kills()
    if number == signal.SIGKILL and before is not None and now is not None and now > before:
        what += " by the OOM killer: the container's memory was used up"
    return {"status": "killed", "message": f"{what}; {go_on}"}


def _exit_status(output: Path, written: float) -> int | None:
    """What the script that ran it noted, unless that is of an earlier run."""
    path = output / EXIT_FILE
    try:
        if path.stat().st_mtime >= written:
            return int(path.read_text())
    except (OSError, ValueError):
        pass
    return None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
