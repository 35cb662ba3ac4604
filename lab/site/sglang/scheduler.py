"""The scheduler: slots, queue, decode steps in real time. Event-driven: it wakes for arrivals, ends and log lines only.

Between two events the number of running requests is constant, so the steps done follow from the clock. A request that
was admitted at step s with n tokens ends at step s + ceil((n - 1) / accept length): the first token is the prefill's.
The clock of the steps, `_at`, is ahead of now while a slow prefill lasts.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable

from .batch import Limits, QueueFullError, Request, Totals, Usage, decode_line, prefill_line, retraction_line
from .lines import Log

MAX_NEW_TOKENS_CLIP = 4096
NEW_TOKEN_RATIO = 0.7


class Scheduler:
    """Runs requests at the pace `step_s(running)`, seconds per token of each. Not thread-safe."""

    def __init__(
        self,
        limits: Limits,
        step_s: Callable[[int], float],
        lines: Log,
        on_activity: Callable[[int], None],
    ) -> None:
        self.limits = limits
        self.totals = Totals()
        self.queue: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.gen_throughput = 0.0
        self.cache_hit_rate = 0.0
        self.last_progress = time.time()
        self.frozen = False
        self.slowness = 1.0
        self.prefill_tok_s: float | None = None
        self._step_s = step_s
        self._lines = lines
        self._on_activity = on_activity
        self._loop = asyncio.get_running_loop()
        self._ends: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._step = 0.0
        self._at = self._loop.time()
        self._timer: asyncio.Handle | None = None
        self._prompt_sum = 0
        self._admit_sum = 0.0
        self._since_line = 0.0
        self._line_at = self._prefill_line_at = self._at

    @property
    def used_tokens(self) -> int:
        """KV tokens that running requests hold now."""
        produced = (len(self.running) * self._step - self._admit_sum) * self.limits.accept_length
        return self._prompt_sum + len(self.running) + max(0, int(produced))

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that wait for their prefill."""
        return sum(r.prompt_tokens for r in self.queue)

    @property
    def slots_held(self) -> int:
        return min(self.limits.slots, len(self.running) * self.limits.held_per_request)

    def produced_tokens(self, request: Request) -> int:
        """Tokens of a running request so far."""
        if request not in self.running:
            return 0
        self._advance()
        return min(request.tokens, 1 + int((self._step - request.step) * self.limits.accept_length))

    def submit(self, request: Request) -> None:
        """Queues a request; its future is true when all tokens are made, false when aborted. QueueFullError."""
        if self.limits.queued is not None and len(self.queue) + 1 > self.limits.queued:
            raise QueueFullError
        self._advance()
        request.arrived = self._loop.time()
        self.queue.append(request)
        self._arm()

    def abort(self, request: Request) -> None:
        """Takes a request out, wherever it is."""
        self._advance()
        if request in self.running:
            self._leave(request)
            self._ends = [end for end in self._ends if end[2] is not request]
            heapq.heapify(self._ends)
            self._on_activity(len(self.running))
        elif request in self.queue:
            self.queue.remove(request)
        if not request.done.done():
            self.totals.aborted += 1
            request.done.set_result(False)
        self._arm()

    def set_pace(self, *, frozen: bool, slowness: float, prefill_tok_s: float | None = None) -> None:
        """Stops the steps (a hang) or makes each `slowness` times as long; prompts are read at `prefill_tok_s`
        tokens/s, in no time without it."""
        if (frozen, slowness, prefill_tok_s) != (self.frozen, self.slowness, self.prefill_tok_s):
            self._advance()
            self.frozen, self.slowness, self.prefill_tok_s = frozen, slowness, prefill_tok_s
            self._arm()

    def _pace_s(self) -> float:
        return self._step_s(len(self.running)) * self.limits.accept_length * self.slowness

    def _advance(self) -> None:
        """Lets everything happen that is due, and moves the step counter to now."""
        now = self._loop.time()
        while self.running and not self.frozen:
            target = self._next_step()
            due_at = self._at + (target - self._step) * self._pace_s()
            if due_at > now:
                self._count(max(0.0, now - self._at) / self._pace_s())
                break
            self._count(target - self._step)
            self._step, self._at = target, due_at
            self._happen()
        self._at = max(self._at, now)

    def _count(self, steps: float) -> None:
        tokens = steps * len(self.running) * self.limits.accept_length
        self._step += steps
        self._since_line += tokens
        self.totals.generated_tokens += tokens
        self.totals.decode_passes += steps

    def _next_step(self) -> float:
        """The next step at which something happens."""
        interval = self.limits.log_interval
        due = [(math.floor(self._step / interval + 1e-9) + 1) * interval * 1.0]
        if self._ends:
            due.append(self._ends[0][0])
        if self.queue and len(self.running) < self.limits.running:
            due.append(math.floor(self._step + 1e-9) + 1.0)
        growth = len(self.running) * self.limits.accept_length
        due.append(self._step + max(1.0, math.ceil((self.limits.kv_tokens - self.used_tokens + 1) / growth)))
        return max(self._step, min(due))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.frozen:
            return
        if not self.running:
            if self.queue:
                self._timer = self._loop.call_soon(self._wake)
            return
        self._timer = self._loop.call_at(self._at + (self._next_step() - self._step) * self._pace_s(), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._advance()
        if not self.running:
            self._step = float(math.ceil(self._step))
            self._admit()
        self._arm()

    def _happen(self) -> None:
        """What a step boundary brings: ends, a decode line, retractions, admissions."""
        before = len(self.running)
        self.last_progress = time.time()
        if abs(self._step / self.limits.log_interval - round(self._step / self.limits.log_interval)) < 1e-9:
            self._write_decode_line()
        while self._ends and self._ends[0][0] <= self._step + 1e-9:
            request = heapq.heappop(self._ends)[2]
            self._leave(request)
            self.totals.requests += 1
            self.totals.finished_tokens += request.tokens
            if not request.done.done():
                request.done.set_result(True)
        if self.used_tokens > self.limits.kv_tokens:
            self._retract()
        self._admit()
        if len(self.running) != before:
            self._on_activity(len(self.running))

    def _leave(self, request: Request) -> None:
        del self.running[request]
        self._prompt_sum -= request.prompt_tokens + request.produced
        self._admit_sum -= request.step

    def _admit(self) -> None:
        before = len(self.running)
        while self.queue and len(self.running) < self.limits.running:
            batch: list[Request] = []
            budget = self.limits.prefill_tokens
            running = len(self.running)
            while self.queue and len(self.running) < self.limits.running:
                request = self.queue[0]
                if (batch and request.fresh_tokens > budget) or not self._fits(request):
                    break
                self.queue.popleft()
                budget -= request.fresh_tokens
                batch.append(request)
                self._enter(request)
            if not batch:
                break
            self._write_prefill_line(batch, running)
            if self.prefill_tok_s:
                self._at += sum(request.fresh_tokens for request in batch) / self.prefill_tok_s
                break
        if before != len(self.running):
            self._on_activity(len(self.running))

    def _fits(self, request: Request) -> bool:
        reserve = NEW_TOKEN_RATIO * min(request.max_new_tokens, MAX_NEW_TOKENS_CLIP)
        wanted = request.prompt_tokens + request.produced + (reserve if self.running else 0)
        return self.used_tokens + wanted <= self.limits.kv_tokens

    def _enter(self, request: Request) -> None:
        request.step = self._step
        request.admitted = self._loop.time()
        self.running[request] = None
        self._prompt_sum += request.prompt_tokens + request.produced
        self._admit_sum += request.step
        left = max(0, request.tokens - request.produced - 1)
        steps = max(1, math.ceil(left / self.limits.accept_length))
        heapq.heappush(self._ends, (self._step + steps, next(self._order), request))
        self.totals.prompt_tokens += request.prompt_tokens
        self.totals.cached_tokens += request.cached_tokens

    def _retract(self) -> None:
        """Gives running requests back to the queue until the KV pool is a little free again, the newest first."""
        gained = count = 0
        while len(self.running) > 1 and self.used_tokens > self.limits.kv_tokens * 0.98:
            request = next(reversed(self.running))
            before = self.used_tokens
            produced = int((self._step - request.step) * self.limits.accept_length)
            self._leave(request)
            request.produced += produced
            self._ends = [end for end in self._ends if end[2] is not request]
            self.queue.appendleft(request)
            gained, count = gained + before - self.used_tokens, count + 1
        heapq.heapify(self._ends)
        self.totals.retracted += count
        slots = count * self.limits.held_per_request
        self._lines.warning(retraction_line(count, gained, slots, NEW_TOKEN_RATIO))

    def _usage(self) -> Usage:
        return Usage(self.used_tokens, self.slots_held, len(self.queue))

    def _write_prefill_line(self, batch: list[Request], running: int) -> None:
        now = self._loop.time()
        fresh = sum(r.fresh_tokens for r in batch)
        cached = sum(r.cached_tokens for r in batch)
        self.totals.prefill_compute += fresh
        self.cache_hit_rate = cached / max(1, cached + fresh)
        rate = fresh / max(1e-3, now - self._prefill_line_at)
        self._prefill_line_at = now
        pending = self.pending_tokens
        self._lines.info(prefill_line(self.limits, self._usage(), batch, running=running, pending=pending, rate=rate))

    def _write_decode_line(self) -> None:
        self.gen_throughput = self._since_line / max(1e-6, self._at - self._line_at)
        self._line_at, self._since_line = self._at, 0.0
        self._lines.info(decode_line(self.limits, self._usage(), len(self.running), self.gen_throughput))
