"""From what the servers could decode to what the client gets: where tokens per second stay. Pure.

All are means over one window in tokens per second, added over the GPUs:

    possible - prefill - queue - idle slots = server        server - in flight - thrown away - rest = client

- server: growth of the servers' counters of decoded tokens; where one can't be read or began anew, `tok_s` integrated
  over the window. client: growth of the jobs' total_output_tokens, which are those of synced records.
- idle slots: on each GPU tok_s / running x the slots below the cap that nobody asked for; queue: the same for those
  that stand empty while requests wait, min(queue, cap - running). Both are at most: a fuller server decodes each
  request a little slower.
- prefill: tok_s x p / (1 - p), p the share of the time that goes into prefill (`prefill_share`); a GPU that doesn't
  tell it is taken to be like the others where at least half of them do.
- in flight: growth of the KV tokens in use, less the prompts of the requests that came to run: tokens of answers that
  aren't finished. Large while a run ramps up, below zero while it drains.
- thrown away: output tokens of answers that came back and became no record: bad ones, asked again or rejected.
- rest: what remains: answers cut off (time-outs, resets, hedged twins), other clients of the servers, retractions, and
  chance, since answers come whole.

A part that can't be read is None, and so is what follows from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rackhand.contract.job import real_of
from rackhand.contract.watch import LIVE, GpuSample, JobSample, Sample
from rackhand.steady import last_seconds, total_of

WINDOW_S = 300.0
LEAST_S = 60.0
LEAST_FINISHED = 30
LEAST_KNOWN = 0.5
"""So many of the GPUs, and of the window's samples, must tell their prefill share."""


@dataclass(frozen=True, slots=True)
class Losses:
    """`seconds` is the window's length, 0 for a single sample. `client_tok_s` and what follows from it are None
    below LEAST_S seconds or LEAST_FINISHED completions."""

    seconds: float
    server_tok_s: float | None = None
    prefill_tok_s: float | None = None
    queue_tok_s: float | None = None
    idle_slots_tok_s: float | None = None
    client_tok_s: float | None = None
    in_flight_tok_s: float | None = None
    thrown_away_tok_s: float | None = None

    @property
    def possible_tok_s(self) -> float | None:
        return _sum(self.server_tok_s, self.prefill_tok_s, self.queue_tok_s, self.idle_slots_tok_s)

    @property
    def rest_tok_s(self) -> float | None:
        taken = _sum(self.client_tok_s, self.in_flight_tok_s, self.thrown_away_tok_s)
        return None if taken is None or self.server_tok_s is None else self.server_tok_s - taken

    def as_json(self) -> dict[str, float | None]:
        parts = {
            "seconds": self.seconds,
            "possible_tok_s": self.possible_tok_s,
            "prefill_tok_s": self.prefill_tok_s,
            "queue_tok_s": self.queue_tok_s,
            "idle_slots_tok_s": self.idle_slots_tok_s,
            "server_tok_s": self.server_tok_s,
            "in_flight_tok_s": self.in_flight_tok_s,
            "thrown_away_tok_s": self.thrown_away_tok_s,
            "rest_tok_s": self.rest_tok_s,
            "client_tok_s": self.client_tok_s,
        }
        return {name: None if value is None else round(value, 1) for name, value in parts.items()}


def losses_of(samples: Sequence[Sample], *, window_s: float = WINDOW_S) -> Losses:
    """Of the newest samples of one host, as far back as nothing broke: every rate known, the same generators."""
    window = _unbroken(last_seconds(samples, window_s))
    if not window:
        return Losses(0.0)
    counted = _counted(window)
    server = _mean(window, lambda sample: total_of(sample, "tok_s")) if counted is None else counted
    parts = {
        "prefill_tok_s": _mean(window, _prefill, known=LEAST_KNOWN),
        "queue_tok_s": _mean(window, lambda sample: _empty(sample, asked=True)),
        "idle_slots_tok_s": _mean(window, lambda sample: _empty(sample, asked=False)),
    }
    return Losses(window[-1].time - window[0].time, server, **parts, **_client(window))


def _unbroken(samples: Sequence[Sample]) -> Sequence[Sample]:
    at = len(samples)
    while at > 0 and total_of(samples[at - 1], "tok_s") is not None and _runs(samples[at - 1]) == _runs(samples[-1]):
        at -= 1
    return samples[at:]


def _runs(sample: Sample) -> list[tuple[str, object]]:
    return [(job.name, job.progress.get("pid")) for job in _at_work(sample) if job.progress]


def _at_work(sample: Sample) -> list[JobSample]:
    return [job for job in sample.jobs if job.progress and job.progress.get("status") in ("running", "draining")]


def _client(window: Sequence[Sample]) -> dict[str, float | None]:
    first, last = window[0], window[-1]
    before, after = (_at_work(sample) for sample in (first, last))
    seconds = last.time - _mean_age(after) - (first.time - _mean_age(before))
    finished = _grown(before, after, "completed")
    tokens = _grown(before, after, "total_output_tokens")
    if tokens is None or finished is None or seconds < LEAST_S or finished < LEAST_FINISHED:
        return {}
    answered = _grown(before, after, "output_tokens", of_servers=True)
    held = [(_kv_tokens(sample), total_of(sample, "running")) for sample in (first, last)]
    prompt = _prompt_tokens(after)
    growth = _difference(held[0][0], held[1][0])
    came = _difference(held[0][1], held[1][1])
    return {
        "client_tok_s": tokens / seconds,
        "in_flight_tok_s": None
        if growth is None or came is None or prompt is None
        else (growth - came * prompt) / (last.time - first.time),
        "thrown_away_tok_s": None if answered is None else max(0.0, answered - tokens) / seconds,
    }


def _mean_age(jobs: Sequence[JobSample]) -> float:
    ages = [job.age_s for job in jobs if job.age_s is not None]
    return sum(ages) / len(ages) if ages else 0.0


def _grown(
    before: Sequence[JobSample], after: Sequence[JobSample], name: str, *, of_servers: bool = False
) -> float | None:
    """Of all jobs together; None when one doesn't tell, or there is none."""
    totals = [[_count(job.progress or {}, name, of_servers=of_servers) for job in jobs] for jobs in (before, after)]
    known = [_sum(*values) if values else None for values in totals]
    return _difference(known[0], known[1])


def _count(progress: Mapping[str, Any], name: str, *, of_servers: bool) -> float | None:
    if not of_servers:
        return real_of(progress, name)
    servers = progress.get("servers")
    named = [s for s in servers.values() if isinstance(s, dict)] if isinstance(servers, dict) else []
    return _sum(*(real_of(server, name) for server in named)) if named else None


def _prompt_tokens(jobs: Sequence[JobSample]) -> float | None:
    """The mean prompt's tokens."""
    tokens = _sum(*(real_of(job.progress or {}, "total_input_tokens") for job in jobs))
    finished = _sum(*(real_of(job.progress or {}, "completed") for job in jobs))
    return tokens / finished if tokens is not None and finished else None


def _kv_tokens(sample: Sample) -> float | None:
    return _over_gpus(sample, lambda gpu: 0.0 if gpu.running == 0 else gpu.kv_tokens)


def _counted(window: Sequence[Sample]) -> float | None:
    """By the counters, when all can be read throughout, of the same servers, and none went back."""
    rows = [{g.gpu: (g.pid, g.decoded_tokens) for g in sample.gpus if g.state in LIVE} for sample in window]
    for before, after in itertools.pairwise(rows):
        for gpu in before.keys() | after.keys():
            (old, least), (new, count) = before.get(gpu, (None, None)), after.get(gpu, (None, None))
            if least is None or count is None or count < least or old != new:
                return None
    grown = _difference(*(_sum(*(count for _, count in row.values())) for row in (rows[0], rows[-1])))
    seconds = window[-1].time - window[0].time
    return None if grown is None or seconds <= 0 else grown / seconds


def _prefill(sample: Sample) -> float | None:
    live = [gpu for gpu in sample.gpus if gpu.state in LIVE and gpu.running != 0 and gpu.tok_s is not None]
    known = [(gpu.tok_s or 0.0, gpu.prefill_share) for gpu in live if gpu.prefill_share is not None]
    lost = [rate * share / (1 - share) for rate, share in known if share < 1]
    told, rate = sum(rate for rate, share in known if share < 1), total_of(sample, "tok_s")
    if not live:
        return 0.0
    return None if len(lost) < LEAST_KNOWN * len(live) or not told or rate is None else sum(lost) * rate / told


def _empty(sample: Sample, *, asked: bool) -> float | None:
    """What the empty slots could decode, those with a request waiting for them, or the others."""
    running, rate = total_of(sample, "running"), total_of(sample, "tok_s")
    usual = rate / running if running and rate is not None else None

    def cost(gpu: GpuSample) -> float | None:
        if gpu.running is None or gpu.cap is None or gpu.queue is None:
            return None
        empty = max(0, gpu.cap - gpu.running)
        waiting = min(gpu.queue, empty)
        each = gpu.tok_s / gpu.running if gpu.running and gpu.tok_s is not None else usual
        slots = waiting if asked else empty - waiting
        return slots * each if each is not None else None if slots else 0.0

    return _over_gpus(sample, cost)


def _over_gpus(sample: Sample, read: Callable[[GpuSample], float | None]) -> float | None:
    live = [read(gpu) for gpu in sample.gpus if gpu.state in LIVE]
    return _sum(*live) if live else None


def _mean(window: Sequence[Sample], read: Callable[[Sample], float | None], *, known: float = 0.9) -> float | None:
    """Over time, on the line through the samples; None when fewer than the share `known` of them know."""
    points = [(sample.time, value) for sample in window if (value := read(sample)) is not None]
    if not points or len(points) < known * len(window):
        return None
    seconds = points[-1][0] - points[0][0]
    area = sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in itertools.pairwise(points))
    return area / seconds if seconds > 0 else points[-1][1]


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
