"""How many requests a server gets that doesn't say what it can run, on a simulated server with a cap."""

from __future__ import annotations

import heapq
import random

import pytest

from remote.generator.adaptive_limit import AdaptiveLimit
from remote.generator.endpoint import Load
from remote.generator.server import Server


def _serve(limit: AdaptiveLimit, cap: int, completions: int, seed: int, start: float = 0.0) -> float:
    """A server that runs `cap` at once; a token takes 20 ms alone and 30 % more when it is full."""
    dice, now = random.Random(seed), start  # noqa: S311
    running: list[tuple[float, float, int]] = []
    waiting: list[float] = []

    def run(sent: float) -> None:
        tokens = int(dice.lognormvariate(6, 0.7)) + 1
        heapq.heappush(running, (now + tokens * 0.02 * (1 + 0.3 * len(running) / cap), sent, tokens))

    for _ in range(completions):
        while len(running) + len(waiting) < limit.value:
            waiting.append(now)
        while waiting and len(running) < cap:
            run(waiting.pop(0))
        in_flight = len(running) + len(waiting)
        now, sent, tokens = heapq.heappop(running)
        limit.note_completion(now, now - sent, tokens, in_flight)
    return now


@pytest.mark.parametrize("cap", [12, 40, 72, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_tells_nothing_is_kept_full_and_its_queue_short(cap: int, seed: int) -> None:
    limit = AdaptiveLimit()
    _serve(limit, cap, 60 * cap, seed)
    assert 0.9 * cap <= limit.value <= 1.7 * cap


def test_a_server_that_gets_slower_gets_less() -> None:
    limit = AdaptiveLimit()
    end = _serve(limit, 72, 4000, 1)
    before = limit.value
    _serve(limit, 20, 6000, 1, end)
    assert limit.value < 0.8 * before


def test_busy_answers_and_a_queue_take_a_fifth_at_most_every_two_seconds() -> None:
    limit = AdaptiveLimit()
    limit.value = 100
    for now in (0.0, 0.1, 1.9):
        limit.note_busy(now)
    assert limit.value == 80
    limit.note_queue(2.0, 3, aim=2)
    assert limit.value == 80
    limit.note_queue(2.0, 5, aim=2)
    assert limit.value == 64


def test_a_limit_that_is_not_reached_is_not_raised() -> None:
    limit = AdaptiveLimit()
    for second in range(500):
        limit.note_completion(float(second), 1.0, 100, 3)
    assert limit.value == 8


def test_a_server_that_was_away_is_measured_anew() -> None:
    server = Server("a", None)
    server.note_load(Load(None), 0.0)
    server.adaptive.value = 64
    server.breaker.trip(1.0)
    server.note_load(None, 2.0)
    server.note_load(Load(None), 4.0)
    assert server.limit == 8
