"""The ETA: unknown while only short answers have finished, then a range that holds the end."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from rackhand.eta import Eta, Point, eta_of, point_of

REPORT = {
    "total": 653_929, "completed": 291, "failed": 0, "rate_per_sec": 1.7, "eta_hours": 106.92,
    "total_input_tokens": 30_080, "total_output_tokens": 574_563, "avg_output_tokens": 1974, "elapsed_hours": 0.05,
    "s3_uploaded": 0, "s3_bytes": 0, "status": "running",
}  # fmt: skip
"""The field report's progress.json, 180 s after the resume; the job then ran at 2.9/s, which is 62 h."""


def seen(progress: dict[str, object], time: float, running: float | None = 8 * 63.0) -> Point:
    point = point_of(progress, time=time, running=running)
    assert point is not None
    return point


def run_of(slots: int, prompts: int, *, mean_s: float = 145.0, every_s: float = 5.0) -> tuple[list[Point], float]:
    """A run with every slot full from the start and log-normal latencies (their spread as wide as their mean): what is
    seen of it, and when it ended."""
    random = Random(7)  # noqa: S311
    latencies = [random.lognormvariate(0, 0.83) * mean_s / 1.41 for _ in range(prompts)]
    ends = list(latencies[:slots])
    heapq.heapify(ends)
    at, waiting = [], latencies[slots:]
    for latency in waiting:
        at.append(heapq.heappop(ends))
        heapq.heappush(ends, at[-1] + latency)
    at += sorted(ends)
    points, done = [], 0
    for tick in range(1, int(at[-1] / every_s) + 1):
        now = tick * every_s
        while done < prompts and at[done] <= now:
            done += 1
        in_flight = min(slots, prompts - done)
        points.append(Point(now, done, in_flight, prompts - done, now, longest_s=max(latencies)))
    return points, at[-1]


def test_the_field_reports_ramp_has_no_eta_where_its_own_rate_said_107_hours() -> None:
    found = eta_of([seen(REPORT, 180.0)], now=180.0)
    assert found == Eta(why="717 more must finish")


def test_once_the_field_reports_run_has_settled_the_range_holds_its_62_hours() -> None:
    points = [seen(REPORT, 180.0)]
    for step in range(1, 60):
        done = 291 + int(2.9 * 10 * step)
        points.append(seen(REPORT | {"completed": done, "elapsed_hours": 0.05 + step / 360}, 180.0 + 10 * step))
    found = eta_of(points, now=points[-1].time)
    assert found.eta_s is not None
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.eta_s / 3600 == pytest.approx(62.4, rel=0.02)
    assert 55 < found.low_s / 3600 < 62 < found.high_s / 3600 < 75


def test_all_through_a_run_of_long_answers_the_range_holds_the_end() -> None:
    points, end = run_of(64, 3000)
    known = [(point, eta_of(points[: n + 1], now=point.time)) for n, point in enumerate(points) if n % 8 == 0]
    told = [(point, eta) for point, eta in known if eta.eta_s is not None]
    assert told[0][0].finished >= 2 * 64
    assert told[0][0].time < 0.1 * end
    assert all(eta.eta_s is not None for _, eta in known[len(known) - len(told) :])
    held = [eta.low_s <= end - p.time <= eta.high_s for p, eta in told if eta.low_s is not None and eta.high_s]
    assert sum(held) / len(told) > 0.9
    middle, eta = told[len(told) // 2]
    assert eta.eta_s == pytest.approx(end - middle.time, rel=0.15)


def test_a_watch_that_begins_late_has_an_eta_at_once_from_the_generators_own_rate() -> None:
    progress = REPORT | {"completed": 40_000, "rate_per_sec": 2.9, "elapsed_hours": 4.0, "in_flight": 512}
    found = eta_of([seen(progress, 0.0)], now=0.0)
    assert found.eta_s is not None
    assert found.eta_s / 3600 == pytest.approx(613_929 / 2.9 / 3600, rel=0.02)


def test_other_concurrency_begins_the_count_anew() -> None:
    points = [Point(10.0 * n, 60 * n, 100, 100_000 - 60 * n, 10.0 * n) for n in range(20)]
    assert eta_of(points, now=190.0).eta_s is not None
    points += [Point(190.0 + 10 * n, 1140 + 60 * n, 200, 98_000 - 60 * n, 190.0 + 10 * n) for n in range(1, 4)]
    assert eta_of(points, now=220.0) == Eta(why="280 more must finish")


@pytest.mark.parametrize(
    ("points", "now", "why"),
    [
        ([], 0.0, "nothing is known of what is left"),
        ([Point(0.0, 9000, 64, None, 3600.0)], 0.0, "nothing is known of what is left"),
        ([Point(0.0, 9000, 64, 900, 3600.0)], 90.0, "progress.json is old"),
        ([Point(0.0, 9000, None, 900, 3600.0)], 0.0, "nothing is in flight"),
        ([Point(0.0, 9000, 64, 900, 3600.0)], 0.0, "30 more must finish"),
    ],
)
def test_what_is_missing_is_said(points: list[Point], now: float, why: str) -> None:
    assert eta_of(points, now=now) == Eta(why=why)


def test_nothing_left_is_no_time_and_other_states_have_no_eta() -> None:
    assert eta_of([Point(0.0, 9000, 0, 0, 3600.0)], now=0.0) == Eta(0.0, 0.0, 0.0)
    assert point_of(REPORT | {"status": "paused"}, time=0.0) is None
    assert point_of({"status": "running"}, time=0.0) is None
