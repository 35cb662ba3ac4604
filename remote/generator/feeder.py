"""Keeps every slot of every server full until the prompts are done.

A slot pulls from one queue, and is free while a prompt waits for its next try; breakers take out servers that fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from rackhand.contract.job import Status, Wish
from remote.generator.committer import Committer
from remote.generator.endpoint import Client
from remote.generator.feeding import Feeding, HopelessError
from remote.generator.hedge import find_late
from remote.generator.judge import Judge
from remote.generator.poll import POLL_S, poll
from remote.generator.prompt_queue import Item, Queue
from remote.generator.reply import TroubleError, names_no_model
from remote.generator.server import HANG_FACTOR, Flight, Server, least_silence_s
from remote.generator.tally import Tally
from remote.log_lines import LogLines
from remote.prompts.rows import BadRow, Row

_TICK_S = 0.05
_ROWS = 256
_ROWS_BYTES = 4 << 20


@dataclass
class Feeder:
    """`read(rows, bytes)` gives the next rows, blocking, called in a thread; an empty list is the end."""

    servers: list[Server]
    queue: Queue
    client: Client
    committer: Committer
    judge: Judge
    tally: Tally
    feeding: Feeding
    read: Callable[[int, int], list[Row]]
    log: LogLines
    clock: Callable[[], float] = time.monotonic
    drained: bool = False
    stopped: bool = False
    _usable: list[str] = field(default_factory=list)
    _rows: int = _ROWS
    _s_per_token: float = 0.0
    _ended: bool = False
    _reading: asyncio.Task[None] | None = None
    _failure: BaseException | None = None

    async def run(self) -> None:
        """Until everything is answered; until `drained` is set and nothing is in flight; or `stopped`.

        What is in flight at the end is given back: the next run asks it again. HopelessError: the run can't succeed.
        """
        pollers = [
            asyncio.create_task(poll(server, self.client, self.feeding, self.log, self.clock))
            for server in self.servers
        ]
        asyncio.get_running_loop().call_later(POLL_S, self._start_unpolled)
        try:
            while not self._finished():
                self._tick()
                await asyncio.sleep(_TICK_S)
                if self._failure is not None:
                    raise self._failure
        finally:
            cut_short, self.stopped = self.drained or self.stopped, True
            tasks = [*pollers, *(task for server in self.servers for task in server.flights)]
            for task in tasks:
                task.cancel()
            await asyncio.wait([*tasks, *([self._reading] if self._reading else [])])
        if not cut_short:
            self.judge.release_held()

    def drain(self) -> None:
        """Nothing new is sent; what is in flight may finish."""
        self.drained = True

    def stop(self) -> None:
        """What is in flight is given back now."""
        self.stopped = True

    def set_wish(self, server: Server, wish: Wish) -> None:
        """Draining lets requests finish, stopped takes them back at once."""
        if wish == server.wish:
            return
        server.wish, server.model_known = wish, False
        self.log.say(f"{server.url} is {wish} now")
        if wish == "stopped":
            self._take_back(server)
        if wish == "active":
            server.note_restarted()

    def status(self) -> tuple[Status, str]:
        """The status of a run that goes on, and why when it is paused."""
        if self.drained:
            return "draining", ""
        if self.committer.trouble:
            return "paused", f"the output can't be written: {self.committer.trouble}; it goes on when it can"
        if not any(server.usable or server.flights or not server.polled for server in self.servers):
            now = self.clock()
            states = ", ".join(server.words(now) for server in self.servers)
            return "paused", f"no server takes prompts: {states}"
        return "running", ""

    def _start_unpolled(self) -> None:
        """A server that doesn't say what it can run gets its share all the same."""
        for server in self.servers:
            server.polled = True

    def _finished(self) -> bool:
        if self.stopped:
            return True
        if any(server.flights for server in self.servers) or not self.committer.idle:
            return False
        return self.drained or (self._ended and self._reading is None and not len(self.queue))

    def _tick(self) -> None:
        now = self.clock()
        for server in self.servers:
            server.end_hold(now)
        usable = [server for server in self.servers if server.usable]
        self._usable = [server.url for server in usable]
        self._rows = max(_ROWS, 2 * sum(server.limit for server in self.servers))
        self._s_per_token = max(server.s_per_token for server in self.servers)
        least_s = least_silence_s(self.servers, self.feeding.timeout_floor_s)
        for server in self.servers:
            server.tick_ramp()
            others = [other for other in usable if other is not server]
            if server.is_hung(now, others, self.judge.completed, least_s):
                self._note_hang(server, now)
            self._pump(server)
        if self._ended and not len(self.queue) and not self._held_back:
            self._hedge(now, least_s)
        if self.committer.failure:
            raise HopelessError(self.committer.failure)

    def _note_hang(self, server: Server, now: float) -> None:
        server.note_hang(now)
        self.log.say(f"{server.url} is left out until it answers: {server.last_error}")
        self._take_back(server)

    def _take_back(self, server: Server) -> None:
        for task, flight in server.flights.items():
            if not flight.answered:
                flight.taken_back = True
                task.cancel()

    @property
    def _held_back(self) -> bool:
        return bool(self.drained or self.stopped or self._failure or self.committer.full or self.committer.trouble)

    def _pump(self, server: Server) -> None:
        """Fills the free slots of one server."""
        while (flight := self._next_flight(server, self.clock())) is not None:
            self._start(server, flight)

    def _next_flight(self, server: Server, now: float) -> Flight | None:
        if self._held_back:
            return None
        self._refill()
        if not server.may_send(now) or not len(self.queue):
            return None
        if server.breaker.open and self._usable and len(self.queue) <= len(self.servers):
            # The last prompts aren't for probes: nobody would be left to show that such a server hangs.
            return None
        item = self.queue.take(server.url, self._usable, now)
        return None if item is None else self._board(server, item, now)

    def _board(self, server: Server, item: Item, now: float) -> Flight:
        item.sent += 1
        item.copies += 1
        return Flight(item, server.note_sent(now, self.judge.completed), now)

    def _start(self, server: Server, flight: Flight) -> None:
        task = asyncio.create_task(self._ask(server, flight))
        server.flights[task] = flight
        task.add_done_callback(partial(self._note_unsent, server))

    def _hedge(self, now: float, least_s: float) -> None:
        """What is late is asked once more elsewhere, and the first answer wins."""
        for flight, server in find_late(self.servers, now, least_s):
            flight.hedged = True
            self._start(server, self._board(server, flight.item, now))

    def _cancel_copies(self, item: Item) -> None:
        for server in self.servers:
            for task, flight in server.flights.items():
                if flight.item is item and not flight.answered:
                    task.cancel()

    def _refill(self) -> None:
        if self._ended or self._reading is not None:
            return
        if self.queue.fresh < self._rows // 2 and self.queue.retries <= self._rows:
            self._reading = asyncio.create_task(self._read(self._rows))

    async def _read(self, rows: int) -> None:
        try:
            found = await asyncio.to_thread(self.read, rows, _ROWS_BYTES)
        except (OSError, EOFError) as error:
            self._failure = HopelessError(f"the prompts can't be read any further: {error}; put the file right")
            return
        except Exception as error:  # noqa: BLE001 (as in `_fly`: rows that weren't read must not look like the end)
            self._failure = error
            return
        finally:
            self._reading = None
        self._ended = not found
        for row in found:
            if isinstance(row, BadRow):
                self.tally.note_bad_line(row.index)
                self.log.say_seldom("bad line", f"line {row.index + 1} of the prompts is left out: {row.reason}")
            else:
                self.queue.add(row)
        for server in self.servers:
            self._pump(server)

    async def _ask(self, server: Server, flight: Flight) -> None:
        """One slot's requests, one after another, until there is no next one."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        following: Flight | None = flight
        while following is not None:
            goes_on = await self._fly(server, following)
            following.item.copies -= 1
            del server.flights[task]
            following = self._next_flight(server, self.clock()) if goes_on else None
            if following is not None:
                server.flights[task] = following
        self._pump(server)

    async def _fly(self, server: Server, flight: Flight) -> bool:
        """False when it was cancelled."""
        try:
            flight.model = server.model
            body = self.feeding.body(flight.item, server.model)
            reply = await self.client.complete(server.url, body, self._timeout_s(server, flight))
            flight.answered = True
            self.judge.note_reply(server, flight, reply, self.clock())
            if flight.item.settled and flight.item.copies > 1:
                self._cancel_copies(flight.item)
            if self.committer.full:
                await self.committer.wait_for_room()
        except TroubleError as trouble:
            return await self._note_trouble(server, flight, trouble)
        except asyncio.CancelledError:
            self._note_gone(server, flight)
            return False
        except HopelessError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 (of this row: its request or its record can't be written)
            self._note_row_error(server, flight, error)
        return True

    def _note_row_error(self, server: Server, flight: Flight, error: Exception) -> None:
        try:
            if flight.item.settled:
                raise error
            self.judge.note_row_error(server, flight.item, error)
        except Exception as failure:  # noqa: BLE001 (this ends the run: `run` raises it)
            self._failure = failure

    def _timeout_s(self, server: Server, flight: Flight) -> float:
        """A probe waits no longer than a silent server may: its prompt has better places to be."""
        floor_s = self.feeding.timeout_floor_s
        timeout_s = server.timeout_s(self.feeding.max_tokens, floor_s, self._s_per_token)
        if not flight.probe:
            return timeout_s
        return min(timeout_s, max(floor_s, HANG_FACTOR * max(other.latency_s for other in self.servers)))

    async def _note_trouble(self, server: Server, flight: Flight, trouble: TroubleError) -> bool:
        if names_no_model(trouble, self.feeding.model or flight.model):
            server.model_known = False
            trouble = TroubleError("not_found", trouble.message)
        try:
            await self.judge.note_trouble(server, flight, trouble, self.clock())
        except asyncio.CancelledError:
            self._note_gone(server, flight)
            return False
        except HopelessError as error:
            self._failure = error
        return True

    def _note_gone(self, server: Server, flight: Flight) -> None:
        server.breaker.note_gone(probe=flight.probe)
        if flight.taken_back and not flight.item.settled and flight.item.copies == 1:
            self.queue.give_back(flight.item, server.url)

    def _note_unsent(self, server: Server, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never comes to its own end."""
        flight = server.flights.pop(task, None)
        if flight is not None:
            self._note_gone(server, flight)
            flight.item.copies -= 1
