"""What an answer means for the prompt, for the server and for the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remote.generator.committer import Committer, Entry
from remote.generator.endpoint import Client
from remote.generator.feeding import Feeding, HopelessError, failure_line, record_line
from remote.generator.prompt_queue import Item, Queue
from remote.generator.quality import MENDED, Fault, Gate
from remote.generator.reply import Reply, TroubleError
from remote.generator.retry_after import LONGEST_WAIT_S
from remote.generator.server import Flight, Server
from remote.generator.tally import Tally
from remote.log_lines import LogLines

_BAD_STREAK = 20
_HELD_PROMPTS = 200
_PROMPT_STREAK = 10_000
_PROBE_DOUBTS = frozenset({"server_error", "bad_body", "timeout", "aborted"})
_HOPELESS = frozenset({"refused", "not_found", "moved"})
_PATIENT_SENDS = 50
"""So often a prompt is asked before refusals with Retry-After use up its attempts: such a server speaks of itself."""


@dataclass
class Judge:
    """`held` are refused prompts before the first completion: until one server has shown that it completes anything,
    a refusal may be the request's fault, and the prompts would be lost to it."""

    servers: Sequence[Server]
    queue: Queue
    committer: Committer
    client: Client
    tally: Tally
    feeding: Feeding
    log: LogLines
    completed: int = 0
    held: list[Entry] = field(default_factory=list)
    gate: Gate = field(init=False)
    _refused_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.gate = Gate(self.feeding.quality)

    def note_reply(self, server: Server, flight: Flight, reply: Reply, now: float) -> None:
        latency_s = now - flight.sent_at
        item = flight.item
        server.note_answer(now, self.completed)
        if item.settled:
            return
        fault = self.feeding.quality.find_fault(reply)
        line = record_line(server.url, item, reply, latency_s, fault)
        if fault is not None:
            server.faults[fault.reason] += 1
            if fault.rejects:
                self._note_bad(server, flight, fault, line, now)
                return
        if reply.mended:
            self.log.say_seldom("encoding", f"line {item.prompt.index + 1}: {MENDED} in its answer, which is kept")
        self._note_alive(server)
        item.settled = True
        self.completed += 1
        self._refused_in_a_row = 0
        tokens = (reply.input_tokens, reply.output_tokens)
        server.note_completion(latency_s, *tokens, reply.finish_reason)
        self.release_held()
        self.committer.put(Entry("record", item.prompt.index, line, *tokens, reason=fault.reason if fault else ""))
        self._check_gate(fault)

    def note_row_error(self, server: Server, item: Item, error: Exception) -> None:
        """Its request or its record can't be written: it fails for good as if it were refused, and ends no run."""
        self._note_refused(server, item, TroubleError("prompt", f"{type(error).__name__}: {error}"[:500]))

    def release_held(self) -> None:
        """Refusals are the prompts' own fault after all: they go to failures.jsonl."""
        for entry in self.held:
            self.committer.put(entry)
        self.held.clear()

    async def note_trouble(self, server: Server, flight: Flight, trouble: TroubleError, now: float) -> None:
        server.last_error = str(trouble)
        if trouble.kind == "prompt":
            server.note_answer(now, self.completed)
            self._note_alive(server)
            self._note_refused(server, flight.item, trouble)
            return
        server.failures += 1
        server.last_kind = trouble.kind
        if trouble.kind == "busy":
            server.adaptive.note_busy(now)
        counts = not server.breaker.open
        if flight.probe and trouble.kind in _PROBE_DOUBTS:
            # A prompt that fails everywhere must not keep a healthy server's breaker open for ever.
            counts = await self.client.observe_health(server.url)
        if trouble.retry_after_s is not None:
            counts = counts and flight.item.sent >= _PATIENT_SENDS
            self._hold(server, trouble.retry_after_s, now, trouble)
        if trouble.kind == "moved":
            self._note_moved(server, now, trouble)
            counts = False
        elif server.breaker.note_failure(now, probe=flight.probe):
            self.log.say(f"{server.url} is left out until it answers: {trouble}")
            self._check_hope()
        self._try_again(server, flight.item, trouble, now, counts=counts)

    def _hold(self, server: Server, wait_s: float, now: float, trouble: TroubleError) -> None:
        if wait_s > 0 and server.hold(now + wait_s):
            self.log.say_seldom(f"hold {server.url}", f"{server.url} gets nothing for {wait_s:.0f} s: {trouble}")

    def _note_moved(self, server: Server, now: float, trouble: TroubleError) -> None:
        """It takes no request at this address; it is asked again when its wish changes, or after a long while."""
        if server.hold(now + LONGEST_WAIT_S):
            self.log.say(f"{server.url} is left out: {trouble}")
        if not server.breaker.open:
            server.breaker.trip(now)
        self._check_hope()

    def _try_again(self, server: Server, item: Item, trouble: TroubleError, now: float, *, counts: bool) -> None:
        item.attempts += counts
        line = item.prompt.index + 1
        if item.settled or item.copies > 1:
            return
        if item.attempts >= self.feeding.attempts:
            item.settled = True
            self.tally.given_up += 1
            self.log.say_seldom(
                "given up", f"line {line}: given up in this run after {item.attempts} attempts: {trouble}"
            )
            return
        self.tally.retries += 1
        self.queue.retry(item, server.url, now)
        self.log.say_seldom(server.url, f"{server.url}: {trouble}; line {line} is asked again")

    def _note_alive(self, server: Server) -> None:
        if server.breaker.note_success():
            self.log.say(f"{server.url} answers again")
            server.restart_ramp()

    def _note_bad(self, server: Server, flight: Flight, fault: Fault, line: bytes, now: float) -> None:
        server.empty += fault.reason == "empty"
        server.bad += 1
        server.bad_streak += 1
        if self._is_sick(server):
            server.last_error = (
                f"{server.bad_streak} bad completions in a row, the last: {fault.reason}, {fault.detail}"
            )
            if server.breaker.open:
                server.breaker.note_failure(now, probe=flight.probe)
            else:
                server.breaker.trip(now)
                self.log.say(f"{server.url} is left out until it answers: {server.last_error}")
        else:
            self._note_alive(server)
        item = flight.item
        item.bad_answers += 1
        if item.copies > 1:
            return
        if item.bad_answers <= self.feeding.quality.retries:
            self.tally.retries += 1
            self.queue.retry(item, server.url, now)
            return
        item.settled = True
        self.committer.put(Entry("rejected", item.prompt.index, line, reason=fault.reason))
        where = f"line {item.prompt.index + 1}"
        self.log.say_seldom("rejected", f"{where}: rejected, its completion is bad: {fault.reason}, {fault.detail}")
        self._check_gate(fault)

    def _check_gate(self, fault: Fault | None) -> None:
        problem = self.gate.note(fault)
        if problem is not None:
            raise HopelessError(problem)

    def _is_sick(self, server: Server) -> bool:
        """Nothing but bad completions here, hardly any elsewhere."""
        if server.bad_streak < _BAD_STREAK:
            return False
        others = [other for other in self.servers if other is not server]
        good, bad = sum(other.completed for other in others), sum(other.bad for other in others)
        return good >= _BAD_STREAK and bad <= good / 10

    def _note_refused(self, server: Server, item: Item, trouble: TroubleError) -> None:
        if item.settled:
            return
        item.settled = True
        entry = Entry("failure", item.prompt.index, failure_line(server.url, item, trouble))
        self.log.say_seldom("refused", f"line {item.prompt.index + 1}: failed for good: {trouble.message}")
        self._refused_in_a_row += 1
        if self.completed == 0:
            self.held.append(entry)
        else:
            self.committer.put(entry)
        if len(self.held) >= _HELD_PROMPTS or self._refused_in_a_row >= _PROMPT_STREAK:
            raise HopelessError(
                f"{self._refused_in_a_row} prompts in a row were refused, none completed: {trouble.message};"
                " check --sampling, --model and the prompts, then ./inv resume"
            )

    def _check_hope(self) -> None:
        active = [server for server in self.servers if server.wish == "active"]
        if self.completed == 0 and all(s.breaker.open and s.last_kind in _HOPELESS for s in active):
            errors = "; ".join(sorted({f"{server.last_error}" for server in active}))
            raise HopelessError(f"no server takes requests: {errors}; check the API key, --model and the servers' URLs")
