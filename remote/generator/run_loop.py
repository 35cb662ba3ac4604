"""One run around the feeder: counts the rows, writes progress.json, obeys control.json and signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackhand.contract import to_json
from rackhand.contract.job import PROGRESS_FILE, Progress, Status
from remote.generator.control_file import ControlFile
from remote.generator.feeder import Feeder
from remote.generator.feeding import HopelessError
from remote.generator.tally import Tally
from remote.output.append_file import put_over, put_whole
from remote.output.job_file import observe_prompts_digest
from remote.output.upload import PATIENCE_S, Uploader
from remote.prompts.files import DAMAGE
from remote.prompts.offsets import KnownPrompts

_PROGRESS_S = 1.0
_CONTROL_S = 0.25
_LINE_EVERY = 10
_BLOCK_BYTES = 4096
_SPARE_BYTES = 512


@dataclass
class RunLoop:
    """`signalled` is the number of the signal that ended the run, None when it ended by itself."""

    feeder: Feeder
    tally: Tally
    output: Path
    known: KnownPrompts
    control: ControlFile | None
    drain_timeout_s: float
    uploader: Uploader | None = None
    signalled: signal.Signals | None = None
    _ticks: int = 0
    _problem: str | None = None

    async def run(self) -> None:
        """Raises HopelessError. The last progress.json is `put_progress`'s, once the ledger is closed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._note_signal, number)
        counting = asyncio.create_task(self._count())
        helpers = [counting, asyncio.create_task(self._report())]
        if self.control is not None:
            self._try("control.json is not followed", self._obey)
            helpers.append(asyncio.create_task(self._follow_control()))
        try:
            await self.feeder.run()
            if self.signalled is None:
                await counting
                await asyncio.to_thread(self._check_prompts)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.wait(helpers)

    def _check_prompts(self) -> None:
        """A file that was removed has been read whole all the same."""
        with contextlib.suppress(FileNotFoundError):
            if observe_prompts_digest(self.known.path) != self.known.digest:
                self.known.forget()
                what_next = "put it back as it was and resume, or name another output"
                raise HopelessError(f"{self.known.path} changed while it was read; {what_next}")

    async def put_progress(self, status: Status, message: str = "") -> None:
        self.tally.status, self.tally.message = status, message
        if self.uploader is not None:
            self._note_uploads(self.uploader)
        progress = self.tally.progress(self.feeder.clock(), self.feeder.servers)
        await asyncio.to_thread(put_progress, self.output, progress)

    def _note_uploads(self, uploader: Uploader) -> None:
        tally = self.tally
        tally.s3_uploaded, tally.s3_bytes = uploader.shards, uploader.size
        tally.uploads_left, tally.upload_trouble = uploader.left, uploader.trouble

    async def finish_uploads(self, uploader: Uploader) -> None:
        """Until all closed shards are in the store, a signal came, or the store took nothing for PATIENCE_S."""
        clock = self.feeder.clock
        before, since = uploader.left, clock()
        while uploader.left and self.signalled is None and clock() - since < PATIENCE_S:
            await asyncio.sleep(_CONTROL_S)
            if uploader.left < before or not uploader.trouble:
                before, since = uploader.left, clock()
            await self.put_progress("running", "the last shards are uploaded")

    def _note_signal(self, number: signal.Signals) -> None:
        log, feeder = self.feeder.log, self.feeder
        if self.signalled is None:
            self.signalled = number
            feeder.drain()
            in_flight = sum(len(server.flights) for server in feeder.servers)
            log.say(
                f"{number.name}: nothing new is sent; waiting up to {self.drain_timeout_s:.0f} s"
                f" for {in_flight} requests in flight (once more: stop now)"
            )
            asyncio.get_running_loop().call_later(self.drain_timeout_s, feeder.stop)
        else:
            feeder.stop()

    async def _count(self) -> None:
        try:
            count = await asyncio.to_thread(self.known.count_rows)
        except (OSError, EOFError, *DAMAGE) as error:
            self.feeder.log.say(f"the rows of {self.known.path} can't be counted: {error}")
            return
        except Exception as error:  # noqa: BLE001 (as in `_try`)
            self._say_trouble("the rows can't be counted", error)
            return
        self.tally.total, self.tally.mine = count.total, count.mine

    async def _report(self) -> None:
        """progress.json once a second, a line for people every ten."""
        while True:
            try:
                await self._report_once()
            except Exception as error:  # noqa: BLE001 (as in `_try`)
                self._say_trouble("progress.json can't be written", error)
            await asyncio.sleep(_PROGRESS_S)

    async def _report_once(self) -> None:
        now = self.feeder.clock()
        self.tally.sample(now, self.feeder.servers)
        status, message = self.feeder.status()
        if message != self.tally.message:
            self.feeder.log.say(f"paused: {message}" if message else f"{status} again")
        await self.put_progress(status, message)
        if self._ticks % _LINE_EVERY == _LINE_EVERY - 1:
            self.feeder.log.say(self._line(now))
        self._ticks += 1

    def _line(self, now: float) -> str:
        progress = self.tally.progress(now, self.feeder.servers)
        done, total = progress.completed_before + progress.completed, progress.total
        eta = "unknown" if progress.eta_hours is None else f"{progress.eta_hours} h"
        failed = f", {progress.failed} failed" if progress.failed else ""
        left_out = [server.url for server in self.feeder.servers if server.state != "active"]
        return (
            f"{progress.status}: {done}{'' if total is None else f' of {total}'} done{failed},"
            f" {progress.rate_per_sec}/s, {progress.tokens_per_s} tok/s, {progress.in_flight} in flight, ETA {eta}"
            + (f"; quality: {faults}" if (faults := _counts(progress.quality)) else "")
            + (f"; uploads stand: {progress.upload_trouble}" if progress.upload_trouble else "")
            + (f"; left out: {', '.join(left_out)}" if left_out else "")
            + (f"; {progress.message}" if progress.message else "")
        )

    async def _follow_control(self) -> None:
        while True:
            await asyncio.sleep(_CONTROL_S)
            self._try("control.json is not followed", self._obey)

    def _try(self, what: str, step: Callable[[], None]) -> None:
        """What only looks at the run must not end it: an error is said, and the next time may go well."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (as the docstring says)
            self._say_trouble(what, error)

    def _say_trouble(self, what: str, error: Exception) -> None:
        self.feeder.log.say_seldom(what, f"{what}: {type(error).__name__}: {error}; the run goes on")

    def _obey(self) -> None:
        if self.control is None:
            return
        wishes = self.control.observe()
        if self.control.problem != self._problem:
            self._problem = self.control.problem
            if self._problem:
                self.feeder.log.say(f"{self._problem}; the wishes before it stand")
        if wishes is not None:
            for server in self.feeder.servers:
                self.feeder.set_wish(server, wishes.servers.get(server.url, "active"))
            output = str(self.output)
            if output in wishes.concurrency:
                self._set_concurrency(wishes.concurrency[output])

    def _set_concurrency(self, concurrency: int | None) -> None:
        """Requests in flight a server from now on, None for what each can run. What is in flight may finish."""
        servers = self.feeder.servers
        if any(server.concurrency != concurrency for server in servers):
            for server in servers:
                server.concurrency = concurrency
            self.feeder.log.say(f"concurrency is {concurrency or 'auto'} now")


def _counts(counts: Mapping[str, int]) -> str:
    """`12 short, 3 length`, the most first."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def put_progress(output: Path, progress: Progress) -> None:
    """Replaces progress.json; an error of the disk is no reason to stop."""
    put_progress_fields(output, to_json(progress))


def put_progress_fields(output: Path, fields: Mapping[str, Any]) -> None:
    """As `put_progress`, of the fields of a progress.json.

    Trailing blanks make its length the same most times, so that a full disk can still say that it is full.
    """
    data = json.dumps(fields, indent=1).encode()
    padded = data.ljust(-(-(len(data) + _SPARE_BYTES) // _BLOCK_BYTES) * _BLOCK_BYTES - 1) + b"\n"
    try:
        put_whole(output / PROGRESS_FILE, padded, sync=False)
    except OSError:
        with contextlib.suppress(OSError):
            put_over(output / PROGRESS_FILE, padded)
