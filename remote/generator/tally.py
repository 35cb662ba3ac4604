"""Counts of one run, and progress.json made from them. Pure; the caller brings the time."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rackhand.contract.job import BAD_LINES_NAMED, Progress, ServerProgress, Status
from remote import processes
from remote.generator.committer import Entry
from remote.generator.server import Server
from remote.output.ledger import utc_now

_WINDOW_S = 300.0
_Samples = deque[tuple[float, int, int]]
"""When, completions, output tokens."""


@dataclass
class Tally:
    """`total` rows of the file and `mine` of this shard, None until they are counted. All counts are of synced things
    except `given_up`: prompts whose attempts are used up, and `oddities`: of the lines that were read."""

    started: float
    completed_before: int = 0
    failed_before: int = 0
    total: int | None = None
    mine: int | None = None
    completed: int = 0
    permanent: int = 0
    rejected: int = 0
    given_up: int = 0
    bad_lines: int = 0
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    s3_uploaded: int = 0
    s3_bytes: int = 0
    uploads_left: int = 0
    upload_trouble: str = ""
    status: Status = "running"
    message: str = ""
    bad_line_numbers: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    oddities: Counter[str] = field(default_factory=Counter)
    _samples: _Samples = field(default_factory=deque)
    _server_samples: dict[str, _Samples] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return self.permanent + self.rejected + self.given_up

    def note_safe(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.reason:
                self.faults[entry.reason] += 1
            if entry.kind == "record":
                self.completed += 1
                self.input_tokens += entry.input_tokens
                self.output_tokens += entry.output_tokens
            elif entry.kind == "rejected":
                self.rejected += 1
            else:
                self.permanent += 1

    def note_bad_line(self, index: int) -> None:
        self.bad_lines += 1
        if len(self.bad_line_numbers) < BAD_LINES_NAMED:
            self.bad_line_numbers.append(index + 1)

    def sample(self, now: float, servers: Sequence[Server]) -> None:
        """Called about once a second."""
        _push(self._samples, (now, self.completed, self.output_tokens))
        for server in servers:
            _push(self._server_samples.setdefault(server.url, deque()), (now, server.completed, server.output_tokens))

    def rates(self, now: float) -> tuple[float, float]:
        """Completions and output tokens per second over the last 5 minutes, or since the start."""
        at, completed, tokens = self._samples[0] if self._samples else (self.started, 0, 0)
        span = now - at
        return ((self.completed - completed) / span, (self.output_tokens - tokens) / span) if span > 0 else (0.0, 0.0)

    def progress(self, now: float, servers: Sequence[Server]) -> Progress:
        rate, tokens_per_s = self.rates(now)
        left = self.left
        return Progress(
            total=self.total,
            completed=self.completed,
            failed=self.failed,
            rate_per_sec=round(rate, 3),
            eta_hours=0.0 if left == 0 else round(left / rate / 3600, 2) if rate > 0 and left is not None else None,
            total_input_tokens=self.input_tokens,
            total_output_tokens=self.output_tokens,
            avg_output_tokens=round(self.output_tokens / self.completed, 1) if self.completed else 0.0,
            elapsed_hours=round((now - self.started) / 3600, 4),
            s3_uploaded=self.s3_uploaded,
            s3_bytes=self.s3_bytes,
            status=self.status,
            completed_before=self.completed_before,
            failed_before=self.failed_before,
            in_flight=sum(len(server.flights) for server in servers),
            rejected=self.rejected,
            quality=dict(self.faults),
            bad_lines=self.bad_lines,
            bad_line_numbers=list(self.bad_line_numbers),
            input=dict(self.oddities),
            retries=self.retries,
            uploads_left=self.uploads_left,
            upload_trouble=self.upload_trouble,
            tokens_per_s=round(tokens_per_s, 1),
            pid=os.getpid(),
            updated=utc_now(),
            message=self.message,
            servers={server.url: self._server(server, now) for server in servers},
            left=left,
            concurrency=str(servers[0].concurrency or "auto") if servers else "",
            start_ticks=processes.start_ticks(os.getpid()) or 0,
            oom_kills=processes.oom_kills(),
        )

    @property
    def left(self) -> int | None:
        """Prompts of this shard that are still to be answered; bad lines count as left until they are read."""
        if self.mine is None:
            return None
        gone = self.completed_before + self.failed_before + self.completed + self.failed + self.bad_lines
        return max(0, self.mine - gone)

    def _server(self, server: Server, now: float) -> ServerProgress:
        samples = self._server_samples.get(server.url)
        at, _, tokens = samples[0] if samples else (self.started, 0, 0)
        load = server.load
        return ServerProgress(
            state=server.state,
            in_flight=len(server.flights),
            limit=server.limit,
            capacity=load.capacity if load else None,
            running=load.running if load else None,
            queue=load.queue if load else None,
            completed=server.completed,
            failures=server.failures,
            empty=server.empty,
            output_tokens=server.output_tokens,
            avg_output_tokens=round(server.output_tokens / server.completed, 1) if server.completed else 0.0,
            avg_latency_s=round(server.latency_sum_s / server.completed, 3) if server.completed else 0.0,
            tokens_per_s=round((server.output_tokens - tokens) / (now - at), 1) if now > at else 0.0,
            finish_reasons=dict(server.finish_reasons),
            quality=dict(server.faults),
            output_lengths={str(longest): count for longest, count in sorted(server.output_lengths.items())},
            last_error=server.last_error,
        )


def _push(samples: _Samples, sample: tuple[float, int, int]) -> None:
    samples.append(sample)
    while len(samples) > 2 and samples[1][0] <= sample[0] - _WINDOW_S:
        samples.popleft()
