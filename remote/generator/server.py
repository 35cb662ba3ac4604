"""One server as the feeder sees it: how many requests it may hold, how it does, when it has gone silent. Pure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rackhand.contract.job import Wish, length_class
from remote.generator.adaptive_limit import AdaptiveLimit
from remote.generator.breaker import Breaker
from remote.generator.endpoint import Load
from remote.generator.prompt_queue import Item

QUEUE_AIM = 2
"""Requests that wait behind a full server, so that a slot that gets free is filled at once."""

_FIRST_SLOTS = 8
_RAMP_TICKS = 32
_LONG_QUEUE_POLLS = 3
_UNKNOWN_S_PER_TOKEN = 0.25
_TIMEOUT_FACTOR = 3.0
_MAX_TIMEOUT_S = 6 * 3600.0
HANG_FACTOR = 5.0
"""Times the usual latency without a sign of life."""

_HANG_OTHERS = 20
_HANG_DOUBLINGS = 5
_SILENT_S = 5.0
"""Two readings of a server's load: tokens that move would have shown."""
_KNOWN = 20
"""Completions a server, after which the usual latency is known."""
_MEMORY = 0.1


@dataclass(slots=True)
class Flight:
    """A request in flight. `probe`: it was let through an open breaker. `taken_back`: cancelled, to be asked again."""

    item: Item
    probe: bool
    sent_at: float
    answered: bool = False
    taken_back: bool = False
    hedged: bool = False
    model: str | None = None


@dataclass(eq=False)
class Server:
    """`concurrency` None: as many as the server can run (auto). `is_back`: silent before, it tells its load again."""

    url: str
    concurrency: int | None
    wish: Wish = "active"
    model: str | None = None
    model_known: bool = False
    is_back: bool = False
    polled: bool = False
    load: Load | None = None
    breaker: Breaker = field(default_factory=Breaker)
    adaptive: AdaptiveLimit = field(default_factory=AdaptiveLimit)
    flights: dict[asyncio.Task[None], Flight] = field(default_factory=dict)
    completed: int = 0
    failures: int = 0
    empty: int = 0
    bad: int = 0
    bad_streak: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_sum_s: float = 0.0
    latency_s: float = 0.0
    s_per_token: float = 0.0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    output_lengths: Counter[int] = field(default_factory=Counter)
    last_error: str | None = None
    last_kind: str = ""
    silent_since: float = 0.0
    others_mark: int = 0
    hangs: int = 0
    held_until: float = 0.0
    _ramp: float = _FIRST_SLOTS
    _trim: int = 0
    _long_polls: int = 0

    @property
    def limit(self) -> int:
        """Requests it may hold once the ramp is over."""
        if self.concurrency is not None:
            return self.concurrency
        if self.load is None:
            return 1
        if self.load.capacity is None:
            return self.adaptive.value
        return max(1, self.load.capacity + QUEUE_AIM - self._trim)

    @property
    def usable(self) -> bool:
        return self.wish == "active" and self.polled and not self.breaker.open and not self.held_until

    @property
    def state(self) -> str:
        return "open" if self.wish == "active" and (self.breaker.open or self.held_until) else self.wish

    def words(self, now: float) -> str:
        """Its URL and state, for people."""
        if self.wish == "active" and self.held_until > now and self.last_kind != "moved":
            return f"{self.url} asked for a pause"
        return f"{self.url} {self.state}"

    def may_send(self, now: float) -> bool:
        if self.wish != "active" or not self.polled or now < self.held_until or not self.breaker.may_send(now):
            return False
        return self.breaker.open or len(self.flights) < min(self.limit, int(self._ramp))

    def tick_ramp(self) -> None:
        """Called at a steady pace: a cold server gets its slots one by one, not in a burst."""
        if self._ramp < self.limit:
            self._ramp += max(1.0, self.limit / _RAMP_TICKS)

    def restart_ramp(self) -> None:
        """What it holds it need not be given again one by one."""
        self._ramp = max(_FIRST_SLOTS, len(self.flights))

    def hold(self, until: float) -> bool:
        """Nothing is sent before, no probe either: it asked for that. True when it wasn't held yet."""
        begins = not self.held_until
        self.held_until = max(self.held_until, until)
        return begins

    def end_hold(self, now: float) -> None:
        """Called at a steady pace. What waited meanwhile comes one by one."""
        if self.held_until and now >= self.held_until:
            self.held_until = 0.0
            self.restart_ramp()

    def note_model(self, model: str | None) -> None:
        """What it calls its model now; None: it didn't say."""
        if model is None:
            return
        if model != self.model:
            self.note_restarted()
        self.model, self.model_known = model, True

    def note_restarted(self) -> None:
        """Its failures were those of the process before. A probe would take as long as a whole completion."""
        self.is_back = False
        self.held_until = 0.0
        self.breaker.forget()
        self.restart_ramp()

    def note_load(self, load: Load | None, now: float) -> None:
        before, self.polled = self.load, True
        if load is None:
            self.model_known = self.is_back = False
        elif before is None:
            self.is_back = self.breaker.open
        if before is not None and not self.breaker.open:
            # A busy server may miss a question; what it can run changes only with a restart.
            load = load or Load(None)
            load = load if load.capacity is not None else replace(load, capacity=before.capacity)
        self.load = load
        if load is None:
            self.adaptive = AdaptiveLimit()
            return
        if load.capacity is None and load.queue is not None:
            self.adaptive.note_queue(now, load.queue, aim=QUEUE_AIM)
        if before is not None and load.used_tokens is not None and load.used_tokens != before.used_tokens:
            self.silent_since = now
        if load.capacity is None or load.queue is None or load.running is None:
            return
        if load.queue > 2 * QUEUE_AIM and load.running < load.capacity:
            self._long_polls += 1
            if self._long_polls >= _LONG_QUEUE_POLLS:
                self._trim = max(0, load.capacity - load.running)
        else:
            self._long_polls = 0
            if load.queue < QUEUE_AIM and self._trim:
                self._trim = max(0, self._trim - QUEUE_AIM)

    def note_sent(self, now: float, fleet_completed: int) -> bool:
        """True when the request is a probe."""
        if not self.flights:
            self.note_answer(now, fleet_completed)
        return self.breaker.note_sent()

    def note_answer(self, now: float, fleet_completed: int) -> None:
        """The server gave a sign of life; `fleet_completed` counts the completions of all servers."""
        self.silent_since = now
        self.others_mark = fleet_completed - self.completed

    def note_completion(self, latency_s: float, input_tokens: int, output_tokens: int, finish: str | None) -> None:
        self.completed += 1
        self.bad_streak = 0
        self.adaptive.note_completion(self.silent_since, latency_s, output_tokens, len(self.flights))
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.latency_sum_s += latency_s
        self.latency_s = _blend(self.latency_s, latency_s)
        if output_tokens > 0:
            self.s_per_token = _blend(self.s_per_token, latency_s / output_tokens)
        self.finish_reasons[finish or "none"] += 1
        self.output_lengths[length_class(output_tokens)] += 1
        if self._ramp < self.limit:
            self._ramp += 1.0

    def is_hung(self, now: float, others: Sequence[Server], fleet_completed: int, floor_s: float) -> bool:
        """Requests in flight and no sign of life for five times the usual latency, while `others`, the servers
        that answer, finished twenty each.

        `floor_s` doubles with each time that it was: a prompt that keeps any server busy for so long must not go from
        one to the next for ever.
        """
        if not self.flights or self.breaker.open or not others:
            return False
        usual = max([self.latency_s, *(other.latency_s for other in others)])
        finished = fleet_completed - self.completed - self.others_mark
        floor_s *= 2.0 ** min(self.hangs, _HANG_DOUBLINGS)
        return now - self.silent_since > max(floor_s, HANG_FACTOR * usual) and finished >= _HANG_OTHERS * len(others)

    def note_hang(self, now: float) -> None:
        """Leaves it out until a probe is answered."""
        self.failures += 1
        self.hangs += 1
        self.last_kind = "timeout"
        self.last_error = f"silent for {now - self.silent_since:.0f} s with {len(self.flights)} in flight"
        self.breaker.trip(now)

    def timeout_s(self, max_tokens: int, floor_s: float, fleet_s_per_token: float) -> float:
        """Three times what `max_tokens` take at this server's rate (the fleet's, a slow guess before any)."""
        rate = self.s_per_token or fleet_s_per_token or _UNKNOWN_S_PER_TOKEN
        return min(_MAX_TIMEOUT_S, max(floor_s, _TIMEOUT_FACTOR * max_tokens * rate))


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + _MEMORY * (new - old)


def least_silence_s(servers: Sequence[Server], timeout_floor_s: float) -> float:
    """Shorter ones say nothing, however short the usual latency is: a quarter of the floor, less when it is known."""
    known = sum(server.completed for server in servers) >= _KNOWN * len(servers)
    return min(timeout_floor_s / 4, _SILENT_S) if known else timeout_floor_s / 4
