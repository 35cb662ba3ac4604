"""job.json and the lock: what an output was made from, and who works on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from rackhand.contract import from_json, to_json
from rackhand.contract.job import (
    DONE_FILE,
    FORMAT,
    JOB_FILE,
    LOCK_FILE,
    VERSION,
    JobFile,
    PromptsDigest,
    digest_prompts,
    sampling_sha256,
)
from remote.output.append_file import put_whole
from remote.output.done_file import import_foreign
from remote.output.ledger import utc_now
from remote.output.shards import observe_shards


class RefusedError(Exception):
    """A precondition isn't met and nothing was changed: one line that says what and what next."""


class Lock:
    """Held by one generator an output; the kernel lets go of it when the process ends."""

    def __init__(self, output: Path) -> None:
        path = output / LOCK_FILE
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._is_taken():
            pid = _locked_pid(self._fd)
            os.close(self._fd)
            raise RefusedError(f"{output}: another generator works on it (pid {pid or 'unknown'}); stop it first")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def _is_taken(self) -> bool:
        """Those who only look (observe_lock) hold it for some microseconds: that is waited out."""
        for pause_s in (0.0, 0.05, 0.1, 0.2, 0.4):
            time.sleep(pause_s)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        return False

    def release(self) -> None:
        os.close(self._fd)


def _locked_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def observe_lock(output: Path) -> int | None:
    """The pid of the generator that works on `output`, None when none does."""
    try:
        fd = os.open(output / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _locked_pid(fd) or 0
    finally:
        os.close(fd)
    return None


def observe_prompts_digest(path: Path) -> PromptsDigest:
    """What the file is known by, see `digest_prompts`."""
    with path.open("rb") as file:
        return digest_prompts(file, path.stat().st_size)


def observe_job(output: Path) -> JobFile | None:
    """None when there is no job.json. RefusedError when it can't be read."""
    path = output / JOB_FILE
    try:
        return from_json(JobFile, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise RefusedError(f"{path}: can't be read ({error}); put it right, or use another output") from None


def start_job(
    output: Path,
    prompts: Path,
    digest: PromptsDigest,
    sampling: dict[str, Any],
    *,
    shard: tuple[int, int],
    model: str | None,
    reading: dict[str, Any] | None = None,
) -> tuple[JobFile, list[str]]:
    """Writes job.json into a new output and says what it took over from somebody else's."""
    notes = []
    listed = import_foreign(output)
    if listed is not None:
        notes.append(f"{len(listed.indices)} finished indices imported from a {DONE_FILE} that was there")
        if listed.duplicates or listed.bad_lines or listed.torn:
            torn = ", a torn last line left out" if listed.torn else ""
            notes.append(f"{DONE_FILE}: {listed.duplicates} duplicates, {listed.bad_lines} unreadable lines{torn}")
    shards = observe_shards(output)
    job = JobFile(
        format=FORMAT,
        generator=VERSION,
        created=utc_now(),
        prompts=str(prompts.resolve()),
        prompts_digest=digest,
        sampling=sampling,
        sampling_sha256=sampling_sha256(sampling),
        shard=shard[0],
        shards=shard[1],
        first_shard=max(shards) + 1 if shards else 0,
        imported=0 if listed is None else len(listed.indices),
        model=model,
        reading=reading or {},
    )
    put_whole(output / JOB_FILE, json.dumps(to_json(job), indent=1).encode() + b"\n", sync=True)
    return job, notes
