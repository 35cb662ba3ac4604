"""`generate`: turns a prompts file into completions, and resumes exactly where it stopped.

Exit status: 0 all done, 3 done with failed prompts, 1 stopped by an error that is named, 2 usage, 4 a precondition
isn't met, 130 or 143 stopped by a signal with everything safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from rackhand.contract.job import DONE_FILE, JOB_FILE, JobFile, PromptsDigest, plan_refusals
from rackhand.contract.servers import API_KEY
from remote.generator.committer import Committer
from remote.generator.control_file import ControlFile
from remote.generator.ending import closed, put_end, say_end, unexpected, verdict
from remote.generator.feeder import Feeder
from remote.generator.feeding import Feeding, HopelessError
from remote.generator.judge import Judge
from remote.generator.options import GenerateOptions, parse_options
from remote.generator.prompt_queue import Queue
from remote.generator.run_loop import RunLoop, put_progress
from remote.generator.server import Server
from remote.generator.tally import Tally
from remote.log_lines import LogLines
from remote.output.dataset_card import put_card
from remote.output.job_file import Lock, RefusedError, observe_job, observe_prompts_digest, start_job
from remote.output.ledger import Ledger
from remote.output.object_store import Store, StoreError
from remote.output.recovery import open_ledger
from remote.output.upload import Uploader, owner_of
from remote.output.zstd_frames import Frames
from remote.packages import MissingPackageError
from remote.prompts.look import UnreadableError, check_file, check_readable
from remote.prompts.offsets import KnownPrompts, RowSkipper, observe_known
from remote.prompts.rows import Prompt, PromptReader, Row

_GC_OBJECTS = 50_000
"""New objects between two collections: the default 700 comes every few requests and finds nothing."""

_LAST_WRITE_S = 5.0
"""After a signal and its drain, for a disk that still takes nothing."""


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    log = LogLines()
    try:
        return _main(options, log)
    except (RefusedError, MissingPackageError, UnreadableError) as error:
        log.say(f"refused: {error}")
    except OSError as error:
        log.say(f"refused: {error.filename or options.output}: {error.strerror or error}; nothing was asked")
    except KeyboardInterrupt:
        log.say("SIGINT: nothing was asked")
        return 130
    except Exception as error:  # noqa: BLE001 (one line for people; progress.json has it too)
        log.say(f"failed: {unexpected(error)}")
        return 1
    return 4


def _main(options: GenerateOptions, log: LogLines) -> int:
    try:
        aiohttp = importlib.import_module("aiohttp")
    except ImportError:
        raise RefusedError(f"{sys.executable} can't import aiohttp; use the servers' interpreter") from None
    log.say(f"generate: python {sys.version.split()[0]}, aiohttp {aiohttp.__version__}, pid {os.getpid()}")
    lock, digest = _lock(options)
    try:
        ledger, known = _open(options, digest, log)
        skip = RowSkipper(_next_wanted(ledger, options.shard), known.offsets)
        wanted = _wanted(ledger, options.shard)
        with contextlib.closing(
            PromptReader(options.prompts, wanted=wanted, reading=options.reading, skip=skip)
        ) as rows:
            return _run_loop(_run(options, ledger, rows, known, log))
    except (RefusedError, MissingPackageError, UnreadableError) as error:
        put_end(options.output, "failed", str(error))
        raise
    except KeyboardInterrupt:
        put_end(options.output, "stopped", "")
        raise
    except BaseException as error:
        put_end(options.output, "failed", unexpected(error))
        raise
    finally:
        lock.release()


def _lock(options: GenerateOptions) -> tuple[Lock, PromptsDigest]:
    """The output, held, once it is sure that it and the prompts are the job's."""
    check_file(options.prompts)
    if not os.environ.get(API_KEY, "").isprintable():
        raise RefusedError(f"{API_KEY} holds a line break or another character that no header can have; set it without")
    if options.compress:
        Frames()
    if options.object_store:
        open_store(options.object_store)
    before = observe_job(options.output)
    digest = observe_prompts_digest(options.prompts)
    if before is not None and not options.new:
        _check_same(before, options, digest)
    check_readable(options.prompts, options.reading)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.new and any((options.output / name).exists() for name in (JOB_FILE, DONE_FILE)):
        raise RefusedError(f"{options.output} holds a job already; name another output, or leave out --new")
    return Lock(options.output), digest


def _open(options: GenerateOptions, digest: PromptsDigest, log: LogLines) -> tuple[Ledger, KnownPrompts]:
    """Everything that must stand before the first request."""
    job = _observe_or_start(options, digest, log)
    opening = Tally(started=time.monotonic(), message="reading what is done already")
    put_progress(options.output, opening.progress(opening.started, []))
    put_card(options.output, options.reading.keep)
    ledger = open_ledger(
        options.output,
        log.say,
        first_shard=job.first_shard,
        shard_bytes=options.shard_bytes,
        retry_failed=options.retry_failed,
        retry_rejected=options.retry_rejected,
        compress=options.compress,
        shard_s=options.shard_s,
    )
    return ledger, observe_known(options.prompts, options.output, digest, options.shard)


def _observe_or_start(options: GenerateOptions, digest: PromptsDigest, log: LogLines) -> JobFile:
    """The job of the output, a new one in an empty output. RefusedError when it is another job."""
    job = observe_job(options.output)
    if job is None:
        where = (options.output, options.prompts, digest, options.sampling)
        job, notes = start_job(*where, shard=options.shard, model=options.model, reading=options.reading.as_json())
        for note in notes:
            log.say(note)
    _check_same(job, options, digest)
    return job


def _check_same(job: JobFile, options: GenerateOptions, digest: PromptsDigest) -> None:
    """RefusedError when the output is another job's."""
    problems = plan_refusals(job, digest, options.sampling, options.shard[1])
    if job.reading != options.reading.as_json():
        problems.append("columns, keep or last-assistant changed")
    if problems:
        raise RefusedError(f"{options.output}: {'; '.join(problems)}; name another output (--new), or undo it")


def _wanted(ledger: Ledger, shard: tuple[int, int]) -> Callable[[int], bool]:
    done, failed = ledger.done, ledger.failed
    mine, shards = shard
    return lambda index: index % shards == mine and index not in done and index not in failed


def _next_wanted(ledger: Ledger, shard: tuple[int, int]) -> Callable[[int], int]:
    done, wanted = ledger.done, _wanted(ledger, shard)
    mine, shards = shard

    def find(index: int) -> int:
        while True:
            index = done.next_missing(index)
            index += (mine - index) % shards
            if wanted(index):
                return index
            index += 1

    return find


def _limited(reader: PromptReader, limit: int | None) -> Callable[[int, int], list[Row]]:
    left = limit

    def read(rows: int, size: int) -> list[Row]:
        nonlocal left
        if left is None:
            return reader.read(rows=rows, size=size)
        found = reader.read(rows=min(rows, left), size=size) if left else []
        left -= sum(isinstance(row, Prompt) for row in found)
        return found

    return read


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(main)
    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(main))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _run(
    options: GenerateOptions, ledger: Ledger, reader: PromptReader, known: KnownPrompts, log: LogLines
) -> int:
    from remote.generator.client import HttpClient

    tally = Tally(
        started=time.monotonic(),
        completed_before=len(ledger.done) - ledger.rejected_before,
        failed_before=len(ledger.failed) + ledger.rejected_before,
        oddities=reader.oddities,
    )
    feeding = Feeding(options.sampling, options.model, options.attempts, options.timeout_floor_s, options.quality)
    feeding = replace(feeding, quality=options.quality.within(feeding.max_tokens))
    if feeding.quality != options.quality:
        log.say(f"max_tokens is {feeding.max_tokens}: no answer counts as short")
    client = HttpClient(api_key=os.environ.get(API_KEY, ""), max_answer_bytes=feeding.max_answer_bytes)
    servers = [Server(url, options.concurrency) for url in options.servers]
    queue = Queue()
    committer = Committer(ledger, tally.note_safe)
    judge = Judge(servers, queue, committer, client, tally, feeding, log)
    feeder = Feeder(servers, queue, client, committer, judge, tally, feeding, _limited(reader, options.limit), log)
    control = ControlFile(options.control) if options.control else None
    loop = RunLoop(feeder, tally, options.output, known, control, options.drain_timeout_s, _uploader(options, log))
    try:
        return await _run_to_the_end(loop, ledger, log)
    finally:
        if loop.uploader is not None:
            await asyncio.to_thread(loop.uploader.stop, _LAST_WRITE_S)
        await client.close()


def _uploader(options: GenerateOptions, log: LogLines) -> Uploader | None:
    if not options.object_store:
        return None
    job = observe_job(options.output)
    first, owner = (job.first_shard, owner_of(job)) if job else (0, "")
    store, delete = open_store(options.object_store), options.delete_local
    uploader = Uploader(options.output, store, log.say, owner=owner, first_shard=first, delete_local=delete)
    uploader.start()
    return uploader


@functools.cache
def open_store(url: str) -> Store:
    try:
        return Store(url)
    except StoreError as error:
        raise RefusedError(str(error)) from None


async def _run_to_the_end(loop: RunLoop, ledger: Ledger, log: LogLines) -> int:
    tally, feeder = loop.tally, loop.feeder
    done = f"{tally.completed_before} already done, resuming" if tally.completed_before else "a new job"
    log.say(f"{done}; {len(feeder.servers)} servers")
    if tally.failed_before:
        log.say(f"{tally.failed_before} failed for good before; --retry-failed and --retry-rejected ask them again")
    problem = ""
    try:
        await loop.run()
    except HopelessError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 (what is answered is still committed, and progress.json says why)
        problem = unexpected(error)
    patience_s = _LAST_WRITE_S if loop.signalled is not None else max(_LAST_WRITE_S, loop.drain_timeout_s)
    if not await feeder.committer.stop(patience_s):
        why = feeder.committer.failure or "the last completions couldn't be written; they are asked again"
        problem = problem or why
    elif not problem and loop.signalled is None and tally.left == 0:
        problem = closed(ledger.close_shard)
    problem = problem or closed(ledger.close)
    if loop.uploader is not None:
        await loop.finish_uploads(loop.uploader)
    status, code = verdict(loop, problem)
    await loop.put_progress(status, problem)
    say_end(tally, status, problem, log)
    return code
