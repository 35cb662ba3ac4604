"""When a job ends, from its progress.json as it was seen again and again: an estimate with a range. Pure.

At a start the rate is wrong in a known way: all slots begin at once, and only short answers have finished. So nothing
is said until the slots have been handed on twice, which is two mean latencies whatever a latency is (Little's law: the
requests in flight are the rate times the mean latency). Slots are the requests in flight; the count begins anew when
they change by more than SETTLED. The first turn isn't counted, and what is counted are the last WINDOW_S seconds, or
more where these hold fewer completions than there are slots, or than LEAST.

The rate is n completions over T seconds. Its 95 % interval is (n +- t sqrt(phi n)) / T: counts with a dispersion phi,
the variance over the mean of the counts in BLOCKS equal blocks and at least 1, the Poisson value (McCullagh and Nelder,
Generalized Linear Models, 1989, 6.2); t is Student's for BLOCKS - 1 degrees of freedom. So that a trend shows, the
range reaches from the lowest to the highest of two such intervals: of the whole window, and of its later half.

What isn't in flight yet takes that long, then the last requests run to their end: one mean latency at least, at most
the longest length class seen (its upper bound, at the mean seconds a token); the estimate takes the class's lower
bound. Of a generator that tells no lengths: one, two and three mean latencies. Prompts that are left are taken to be
like those of the window: a file sorted by length breaks that.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from rackhand.contract.job import real_of, whole_of

WINDOW_S = 600.0
LEAST = 30
TURNS = 2
SETTLED = 1.25
BLOCKS = 10
STUDENT_T = 2.262
OWN_WINDOW_S = 300.0
"""What the generator's own rate_per_sec is taken over."""
STALE_S = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One look at progress.json: when it was written (Unix seconds), what this run has finished (completed or failed
    for good), what is in flight, what is left (in flight included), how old the run was; `rate` is the generator's own,
    `longest_s` how long the longest answers so far took; None where it doesn't tell."""

    time: float
    finished: int
    in_flight: int | None
    left: int | None
    elapsed_s: float
    pid: int | None = None
    rate: float | None = None
    longest_s: float | None = None


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds from now; all None when unknown, and `why` says what is missing then."""

    eta_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Window:
    """Completions, seconds, and the lowest and highest rate they allow."""

    count: float
    seconds: float
    low: float
    high: float


def point_of(progress: Mapping[str, Any], *, time: float, running: float | None = None) -> Point | None:
    """`time` is when it was written; `running` stands in for `in_flight` where the generator doesn't tell it. None when
    it isn't the progress of a generator at work."""
    completed = whole_of(progress, "completed")
    if completed is None or progress.get("status") != "running":
        return None
    finished = completed + (whole_of(progress, "failed") or 0)
    left, total = whole_of(progress, "left"), whole_of(progress, "total")
    if left is None and total is not None:
        before = sum(whole_of(progress, name) or 0 for name in ("completed_before", "failed_before", "bad_lines"))
        left = max(0, total - before - finished)
    in_flight = whole_of(progress, "in_flight")
    if in_flight is None and running is not None:
        in_flight = round(running)
    elapsed_s = 3600 * (real_of(progress, "elapsed_hours") or 0.0)
    pid, rate = whole_of(progress, "pid"), real_of(progress, "rate_per_sec")
    return Point(time, finished, in_flight, left, elapsed_s, pid, rate, _longest_s(progress))


def eta_of(points: Sequence[Point], *, now: float) -> Eta:
    """By the rules above; `points` are one run's, in order of time."""
    if not points or points[-1].left is None:
        return Eta(why="nothing is known of what is left")
    last = points[-1]
    if last.left == 0:
        return Eta(0.0, 0.0, 0.0)
    if now - last.time > STALE_S:
        return Eta(why="progress.json is old")
    fed = [point for point in points if (point.left or 0) > (point.in_flight or 0)] or points
    slots = fed[-1].in_flight
    if not slots:
        return Eta(why="nothing is in flight")
    counted, missing = _counted(fed, slots)
    if missing > 0:
        return Eta(why=f"{missing:,} more must finish")
    window = _window(counted)
    if window is None or window.low <= 0:
        return Eta(why="too few have finished lately")
    return _end(last, fed[-1], slots, window, now)


def _counted(fed: Sequence[Point], slots: int) -> tuple[Sequence[Point], int]:
    """The points that count, and how many completions are missing before anything may be said."""
    at = len(fed) - 1
    while at > 0 and slots / SETTLED <= (fed[at - 1].in_flight or 0) <= slots * SETTLED:
        at -= 1
    base = fed[at].finished if at else 0
    last = fed[-1]
    counted = [point for point in fed[at:] if point.finished >= base + slots]
    if at == 0 and counted and counted[0] is fed[0]:
        counted = [*_own_window(fed[0], slots), *counted]
    missing = base + TURNS * slots - last.finished
    if counted and missing <= 0:
        missing = LEAST - (last.finished - counted[0].finished)
    counted = counted or [last]
    return _latest(counted, max(LEAST, slots)), max(0, missing)


def _own_window(first: Point, slots: int) -> list[Point]:
    """Where the run was when the rate that it tells began, if it had settled by then: a watch may begin late."""
    if first.rate is None or first.elapsed_s < OWN_WINDOW_S:
        return []
    finished = round(first.finished - first.rate * OWN_WINDOW_S)
    if finished < slots:
        return []
    return [Point(first.time - OWN_WINDOW_S, finished, slots, None, first.elapsed_s - OWN_WINDOW_S)]


def _latest(points: Sequence[Point], least: int) -> Sequence[Point]:
    """Those of the last WINDOW_S, and older ones until there are `least` completions."""
    last, at = points[-1], len(points) - 1
    while at > 0 and (last.time - points[at].time < WINDOW_S or last.finished - points[at].finished < least):
        at -= 1
    return points[at:]


def _window(points: Sequence[Point]) -> _Window | None:
    first, last = points[0], points[-1]
    seconds, count = last.time - first.time, last.finished - first.finished
    if seconds <= 0 or count <= 0:
        return None
    edges = [_finished_at(points, first.time + seconds * n / BLOCKS) for n in range(BLOCKS + 1)]
    counts = [after - before for before, after in itertools.pairwise(edges)]
    phi = max(1.0, variance(counts) / fmean(counts))
    later = last.finished - _finished_at(points, first.time + seconds / 2)
    bounds = []
    for n, span in ((float(count), seconds), (later, seconds / 2)):
        reach = STUDENT_T * (phi * n) ** 0.5
        bounds += [(n - reach) / span, (n + reach) / span]
    return _Window(count, seconds, min(bounds), max(bounds))


def _finished_at(points: Sequence[Point], time: float) -> float:
    """Between two points on the line through them."""
    for before, after in itertools.pairwise(points):
        if time <= after.time:
            share = (time - before.time) / (after.time - before.time) if after.time > before.time else 1.0
            return before.finished + min(1.0, max(0.0, share)) * (after.finished - before.finished)
    return points[-1].finished


def _end(last: Point, fed: Point, slots: int, window: _Window, now: float) -> Eta:
    rate = window.count / window.seconds
    waiting = max(0, (last.left or 0) - slots)
    latency_s = slots / rate
    longest_s = max(latency_s, last.longest_s) if last.longest_s is not None else 3 * latency_s
    usual_s = max(latency_s, longest_s / 2) if last.longest_s is not None else 2 * latency_s
    if last is fed:
        passed_s = now - last.time
        low = waiting / window.high + slots / window.high
        return Eta(
            max(0.0, waiting / rate + usual_s - passed_s),
            max(0.0, low - passed_s),
            max(0.0, waiting / window.low + max(longest_s, slots / window.low) - passed_s),
        )
    passed_s = now - fed.time
    high = max(longest_s - passed_s, latency_s)
    return Eta(min(high, max(0.0, usual_s - passed_s)), 0.0, high)


def _longest_s(progress: Mapping[str, Any]) -> float | None:
    """The upper bound of the longest length class seen, at the mean seconds a token."""
    named = progress.get("servers")
    servers = [s for s in named.values() if isinstance(s, dict)] if isinstance(named, dict) else []
    latency_s = sum((real_of(s, "avg_latency_s") or 0.0) * (whole_of(s, "completed") or 0) for s in servers)
    tokens = sum(whole_of(s, "output_tokens") or 0 for s in servers)
    classes = [c for s in servers if isinstance(s.get("output_lengths"), dict) for c in s["output_lengths"]]
    longest = max((int(c) for c in classes if isinstance(c, str) and c.isdigit()), default=0)
    return longest * latency_s / tokens if tokens and longest and latency_s else None
