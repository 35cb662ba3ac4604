"""One host's samples as they come, for as long as what is shown needs them; the older, the thinner. Pure."""

from __future__ import annotations

from collections import deque

from rackhand.contract.watch import Sample
from rackhand.eta import Eta, Point, eta_of, point_of
from rackhand.steady import WINDOW_S, total_of

KEPT_S = 600.0
WHOLE_S = 2 * WINDOW_S
"""All of these are kept, of older ones one every THINNED_S."""
THINNED_S = 5.0
POINTS_S = 4 * 3600.0


class Trail:
    """Samples of one host, which are taken in order of time; one that isn't newer than the last is none."""

    def __init__(self) -> None:
        self._old: deque[Sample] = deque()
        self._new: deque[Sample] = deque()
        self._points: dict[str, deque[Point]] = {}

    @property
    def samples(self) -> tuple[Sample, ...]:
        return (*self._old, *self._new)

    def take(self, sample: Sample) -> bool:
        """Whether it was newer. A clock that was set back by more than KEPT_S begins a new trail."""
        last = self._new[-1].time if self._new else None
        if last is not None and sample.time <= last:
            if sample.time > last - KEPT_S:
                return False
            self._old.clear()
            self._new.clear()
            self._points.clear()
        self._new.append(sample)
        while self._new[0].time < sample.time - WHOLE_S:
            old = self._new.popleft()
            if not self._old or old.time >= self._old[-1].time + THINNED_S:
                self._old.append(old)
        while self._old and self._old[0].time < sample.time - KEPT_S:
            self._old.popleft()
        self._take_jobs(sample)
        return True

    def eta(self, job: str) -> Eta:
        """Of a job of the newest sample; unknown without why when it isn't running."""
        points = self._points.get(job)
        progress = next((j.progress for j in self._new[-1].jobs if j.name == job), None) if self._new else None
        if not points or progress is None or progress.get("status") != "running":
            return Eta()
        return eta_of(tuple(points), now=self._new[-1].time)

    def _take_jobs(self, sample: Sample) -> None:
        running = _in_flight(sample) if len(sample.jobs) == 1 else None
        for job in sample.jobs:
            if job.progress is None:
                continue
            point = point_of(job.progress, time=sample.time - (job.age_s or 0.0), running=running)
            if point is not None:
                _put(self._points.setdefault(job.name, deque()), point)


def _in_flight(sample: Sample) -> float | None:
    running, queue = total_of(sample, "running"), total_of(sample, "queue")
    return None if running is None else running + (queue or 0.0)


def _put(points: deque[Point], point: Point) -> None:
    """Of one run, one every THINNED_S and the newest."""
    if points and (point.pid != points[-1].pid or point.finished < points[-1].finished):
        points.clear()
    if points and point.time <= points[-1].time:
        return
    if len(points) > 1 and points[-1].time < points[-2].time + THINNED_S:
        points.pop()
    points.append(point)
    while points[0].time < point.time - POINTS_S:
        points.popleft()
