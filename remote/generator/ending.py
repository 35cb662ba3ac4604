"""How a run of the generator ends: the verdict, the words for it, and a progress.json that never stays at running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from rackhand.contract.job import AT_WORK, PROGRESS_FILE, Status, bad_lines_words
from remote.generator.run_loop import RunLoop, put_progress_fields
from remote.generator.tally import Tally
from remote.log_lines import LogLines
from remote.output.ledger import utc_now
from remote.prompts.oddities import words_of


def unexpected(error: BaseException) -> str:
    """One line, with the place in the code."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = "" if at is None else f" ({Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno})"
    said = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{said}{place}; what is finished is safe, resume goes on"


def closed(close: Callable[[], None]) -> str:
    """What went wrong, empty when nothing did; the next start finds what is missing."""
    try:
        close()
    except OSError as error:
        return f"the output can't be written: {error.strerror or error}; resume goes on"
    except Exception as error:  # noqa: BLE001 (progress.json says what it was)
        return unexpected(error)
    return ""


def put_end(output: Path, status: Status, message: str) -> None:
    """For a run that could not say itself how it ended: its last counts stay. Of a progress.json that isn't of this
    process, or already says how it ended, nothing is changed."""
    path = output / PROGRESS_FILE
    with contextlib.suppress(OSError, ValueError):
        fields = json.loads(path.read_bytes())
        if fields.get("pid") == os.getpid() and fields.get("status") in AT_WORK:
            put_progress_fields(output, {**fields, "status": status, "message": message, "updated": utc_now()})


def verdict(loop: RunLoop, problem: str) -> tuple[Status, int]:
    """The status and the exit status of a run in which nothing is at work any more."""
    if loop.signalled is not None:
        return "stopped", 130 if loop.signalled == signal.SIGINT else 143
    if problem:
        return "failed", 1
    unsent = loop.uploader is not None and loop.uploader.left > 0
    tally = loop.tally
    return "done", 3 if tally.failed or tally.failed_before or tally.bad_lines or unsent else 0


def say_end(tally: Tally, status: Status, problem: str, log: LogLines) -> None:
    if tally.uploads_left:
        what = f"{tally.uploads_left} closed shards aren't uploaded; the next run sends them"
        log.say(f"{what}: {tally.upload_trouble}" if tally.upload_trouble else what)
    elif tally.s3_uploaded:
        log.say(f"{tally.s3_uploaded} shards, {tally.s3_bytes} bytes, stand verified in the object store")
    if tally.bad_lines:
        log.say(f"the prompts: {bad_lines_words(tally.bad_lines, tally.bad_line_numbers)}")
    if tally.oddities:
        log.say(f"the prompts that were read: {'; '.join(words_of(tally.oddities))}")
    failed = f"{tally.failed} failed ({tally.rejected} rejected, {tally.given_up} to be asked again)"
    log.say(
        f"{status}: {tally.completed} completed in this run, {tally.completed_before} before, {failed}"
        + (f"; {problem}" if problem else "")
    )
