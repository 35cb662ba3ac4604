"""What one server's log says now: the last batch lines, the capacity, the rate."""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections import deque
from pathlib import Path
from statistics import fmean, median

from rackhand.engines import Engine
from rackhand.engines.seen import Event
from remote.watching.prefill import PrefillShare
from remote.watching.tail import Tail, find_last_line

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
FRESH_S = 30.0
"""A batch line older than this says nothing about now: no decode, no line."""
RATE_WINDOW_S = 10.0
GAP_S = 5.0
"""The decode line after a longer pause, or after four times the usual rhythm, counts the pause in: its rate is
dropped."""
GRAPHS = frozenset({"cuda graph", "cpu graph", "npu graph", "musa graph"})
LONGEST_LINE = 400
SLOTS_WITHIN_BYTES = 64 * 1024 * 1024


class ServerLog:
    """Counts (`unread`, `retractions`) begin with the backlog; the rest is of the server's last start."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._read_line = engine.read_line
        self.tail = Tail(path)
        self.unread = 0
        self.retractions = 0
        self.trouble = ""
        self.ending = False
        self.ready = False
        self._caps: dict[str, int] = {}
        self._decode: dict[str, tuple[float, Event]] = {}
        self._prefill: tuple[float, Event] | None = None
        self._rhythm: dict[str, deque[float]] = {}
        self._prefill_shares: dict[str, PrefillShare] = {}
        self._rates: deque[tuple[float, str, float]] = deque(maxlen=512)
        self._lines: dict[str, str] = {}
        self._first = True
        self.slots: int | None = None

    def update(self) -> None:
        """Read what is new."""
        lines = self.tail.read()
        shift = self._backlog_shift(lines) if self._first else None
        now = time.time()
        for line in lines:
            event, unread = self._read_line(line)
            self.unread += unread
            if event is not None:
                at = now if shift is None else min(now, _seconds(event.stamp) + shift if event.stamp else now)
                self._take(event, at)
                if event.kind in ("decode", "prefill", "retraction"):
                    self._lines[event.kind] = line[:LONGEST_LINE]
        if self._first and self.tail.modified is not None:
            self._first = False
            if not self._caps:
                self._find_cap()
            if self.slots is None:
                self._find_slots()

    @property
    def graph(self) -> bool | None:
        """Whether the fresh decode lines ran from captured graphs, all ranks of them; None when they don't say."""
        values = [event.fields[name] for event in self._fresh() for name in event.fields if name in GRAPHS]
        return all(values) if values else None

    def batch_lines(self) -> tuple[str, ...]:
        """The last line of each kind that there was: decode, prefill, retraction."""
        return tuple(self._lines.values())

    @property
    def cap(self) -> int | None:
        return sum(self._caps.values()) if self._caps else None

    @property
    def decode_at(self) -> float | None:
        """When the last decode line came, Unix seconds."""
        return max((at for at, _ in self._decode.values()), default=None)

    @property
    def moved_at(self) -> float | None:
        """When the last batch line of either kind came."""
        times = [at for at in (self.decode_at, self._prefill[0] if self._prefill else None) if at is not None]
        return max(times, default=None)

    def total(self, *names: str) -> int | None:
        """The first of these counts that fresh decode lines have, the ranks added up."""
        for name in names:
            values = [event.fields[name] for event in self._fresh() if name in event.fields]
            if values:
                return int(sum(values))
        return None

    def prefill_share(self) -> float | None:
        """The share of time that goes into prefill, the mean over ranks; None while one doesn't tell."""
        shares = [rank.share(time.time()) for rank in self._prefill_shares.values()]
        known = [share for share in shares if share is not None]
        return fmean(known) if known and len(known) == len(shares) else None

    def highest(self, *names: str) -> float | None:
        """The first of these names that fresh decode lines have; of several ranks the highest."""
        for name in names:
            values = [event.fields[name] for event in self._fresh() if name in event.fields]
            if values:
                return float(max(values))
        return None

    def pending_tokens(self) -> int | None:
        if self._prefill is None or time.time() - self._prefill[0] > FRESH_S:
            return None
        value = self._prefill[1].fields.get("#pending-token")
        return None if value is None else int(value)

    def tok_s(self) -> float | None:
        """Decoded tokens per second over the last RATE_WINDOW_S; None when no decode line is that young."""
        since = time.time() - max(RATE_WINDOW_S, 1.5 * self._usual())
        by_rank: dict[str, list[float]] = {}
        for at, rank, rate in self._rates:
            if at >= since:
                by_rank.setdefault(rank, []).append(rate)
        return sum(sum(rates) / len(rates) for rates in by_rank.values()) if by_rank else None

    def _fresh(self) -> list[Event]:
        limit = time.time() - max(FRESH_S, 3 * self._usual())
        return [event for at, event in self._decode.values() if at >= limit]

    def _usual(self) -> float:
        return max((median(rhythm) for rhythm in self._rhythm.values() if rhythm), default=0.0)

    def _take(self, event: Event, at: float) -> None:
        if event.kind == "decode":
            self._take_decode(event, at)
        elif event.kind == "prefill":
            self._prefill = (at, event)
            self._prefill_shares.setdefault(event.rank, PrefillShare()).note_prefill()
        elif event.kind == "ready":
            self._caps[event.rank] = int(event.fields["max_running_requests"])
        elif event.kind == "retraction":
            self.retractions += 1
        elif event.sign == "mamba_pool":
            self._take_slots(event)
        elif event.kind == "trouble":
            self.trouble = self.trouble or event.sign
        elif event.sign == "server_args":
            self._start_anew()
        elif event.sign in ("sigterm", "draining", "exiting"):
            self.ending = True
        elif event.sign == "fired_up":
            self.ready = True

    def _take_decode(self, event: Event, at: float) -> None:
        before = self._decode.get(event.rank)
        rhythm = self._rhythm.setdefault(event.rank, deque(maxlen=16))
        self._decode[event.rank] = (at, event)
        shares = self._prefill_shares.setdefault(event.rank, PrefillShare())
        if before is None:
            shares.note_decode(at, 0, None)
            return
        pause = max(0.0, _seconds(event.stamp) - _seconds(before[1].stamp)) if event.stamp else at - before[0]
        limit = max(GAP_S, 4 * median(rhythm)) if len(rhythm) >= 3 else GAP_S
        rhythm.append(pause)
        rate = event.fields.get("gen throughput (token/s)")
        kept = float(rate) if rate is not None and pause <= limit else None
        shares.note_decode(at, float(event.fields.get("#running-req", 0)), kept)
        if kept is not None:
            self._rates.append((at, event.rank, kept))

    def _start_anew(self) -> None:
        self._caps, self._decode, self._prefill = {}, {}, None
        self._rates.clear()
        self._prefill_shares.clear()
        self._rhythm.clear()
        self._lines.clear()
        self.slots = None
        self.trouble, self.ending, self.ready = "", False, False

    def _backlog_shift(self, lines: list[str]) -> float | None:
        """What must be added to the log's own times to get Unix time: its last line came when the file changed."""
        modified = self.tail.modified
        for line in reversed(lines):
            stamp = _STAMP.search(line)
            if stamp is not None and modified is not None:
                return modified - _seconds(stamp[1])
        return None

    def _find_cap(self) -> None:
        line = find_last_line(self.tail.path, b"max_total_num_tokens=")
        event = self._read_line(line)[0] if line else None
        if event is not None and event.kind == "ready":
            self._caps[event.rank] = int(event.fields["max_running_requests"])

    def _find_slots(self) -> None:
        line = find_last_line(self.tail.path, b"Mamba Cache is allocated", within_bytes=SLOTS_WITHIN_BYTES)
        event = self._read_line(line)[0] if line else None
        if event is not None:
            self._take_slots(event)

    def _take_slots(self, event: Event) -> None:
        slots = event.fields.get("max_mamba_cache_size")
        if slots is not None:
            self.slots = int(slots)


def _seconds(stamp: str) -> float:
    """The stamp as if it were UTC: the log doesn't name its time zone. 0 for none."""
    try:
        year, month, day = int(stamp[:4]), int(stamp[5:7]), int(stamp[8:10])
        return timegm((year, month, day, int(stamp[11:13]), int(stamp[14:16]), int(stamp[17:19])))
    except ValueError:
        return 0.0
