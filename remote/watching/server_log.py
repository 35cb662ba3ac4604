"""What one server's log says now, or said at a moment before: the last batch lines, the capacity, the rate."""

from __future__ import annotations

import re
import time
from collections import deque
from math import inf
from pathlib import Path
from statistics import fmean, median

from rackhand.engines import Engine
from rackhand.engines.seen import Event
from remote.watching.past import PastLines
from remote.watching.prefill import PrefillShare
from remote.watching.stamps import Stamps, raw_seconds, stamps_of
from remote.watching.tail import Tail, find_last_line

_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
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
    """Counts (`unread`, `retractions`) begin with what is read back; the rest is of the server's last start.

    Every figure is of now; between `begin_past` and `end_past` it is of the moment that was played to.
    """

    def __init__(self, path: Path, engine: Engine) -> None:
        self._read_line = engine.read_line
        self.tail = Tail(path)
        self.unread = 0
        self.retractions = 0
        self.trouble = ""
        self.ending = False
        self.starting = False
        self._caps: dict[str, int] = {}
        self._decode: dict[str, tuple[float, Event]] = {}
        self._prefill: tuple[float, Event] | None = None
        self._rhythm: dict[str, deque[float]] = {}
        self._prefill_shares: dict[str, PrefillShare] = {}
        self._rates: deque[tuple[float, str, float]] = deque(maxlen=512)
        self._lines: dict[str, str] = {}
        self._first = True
        self._past: PastLines | None = None
        self._moment: float | None = None
        self._fresh_then: list[Event] | None = None
        self.slots: int | None = None

    def update(self) -> None:
        """Read what is new."""
        lines = self.tail.read()
        stamps = self._backlog_stamps(lines) if self._first else None
        now = time.time()
        for line in lines:
            self._read(line, now, stamps)
        if self._first and self.tail.modified is not None:
            self._first = False
            self._find_capacity(None)

    def begin_past(self, since: float) -> None:
        """What the log holds from `since` on is read again, as far as it has times; before the first update only."""
        past = PastLines.open(self.tail.path, since)
        if past is not None:
            self._past, self._first = past, False
            self.tail = past.tail
            self._find_capacity(past.start)

    def play_to(self, moment: float) -> None:
        """Take the lines up to `moment`; from then on the log says what it said then."""
        self._moment, self._fresh_then = moment, None
        if self._past is not None:
            for line in self._past.lines_to(moment):
                self._read(line, moment, self._past.stamps)

    def end_past(self) -> None:
        """Take the rest; from then on the log says what it says now."""
        if self._past is not None:
            now = time.time()
            for line in self._past.lines_to(inf):
                self._read(line, now, self._past.stamps)
        self._past = self._moment = None

    @property
    def cut_at(self) -> float | None:
        """When the past begins that is read back, where the log is longer than may be read."""
        return None if self._past is None else self._past.cut_at

    def _read(self, line: str, now: float, stamps: Stamps | None) -> None:
        event, unread = self._read_line(line)
        self.unread += unread
        if event is None:
            return
        at = stamps.seconds(event.stamp) if stamps is not None and event.stamp else None
        self._take(event, now if at is None else min(now, at))
        if event.kind in ("decode", "prefill", "retraction"):
            self._lines[event.kind] = line[:LONGEST_LINE]

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
        shares = [rank.share(self._now()) for rank in self._prefill_shares.values()]
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
        if self._prefill is None or self._now() - self._prefill[0] > FRESH_S:
            return None
        value = self._prefill[1].fields.get("#pending-token")
        return None if value is None else int(value)

    def tok_s(self) -> float | None:
        """Decoded tokens per second over the last RATE_WINDOW_S; None when no decode line is that young."""
        since = self._now() - max(RATE_WINDOW_S, 1.5 * self._usual())
        by_rank: dict[str, list[float]] = {}
        for at, rank, rate in reversed(self._rates):
            if at < since:
                break
            by_rank.setdefault(rank, []).append(rate)
        return sum(sum(rates) / len(rates) for rates in by_rank.values()) if by_rank else None

    def is_fresh(self) -> bool:
        """Whether a decode line is young enough to speak of now."""
        return bool(self._fresh())

    def age_s(self, at: float | None) -> float | None:
        return None if at is None else round(max(0.0, self._now() - at), 1)

    def _now(self) -> float:
        return time.time() if self._moment is None else self._moment

    def _fresh(self) -> list[Event]:
        if self._moment is not None and self._fresh_then is not None:
            return self._fresh_then
        limit = self._now() - max(FRESH_S, 3 * self._usual())
        self._fresh_then = [event for at, event in self._decode.values() if at >= limit]
        return self._fresh_then

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
            self.starting = False

    def _take_decode(self, event: Event, at: float) -> None:
        before = self._decode.get(event.rank)
        rhythm = self._rhythm.setdefault(event.rank, deque(maxlen=16))
        self._decode[event.rank] = (at, event)
        shares = self._prefill_shares.setdefault(event.rank, PrefillShare())
        if before is None:
            shares.note_decode(at, 0, None)
            return
        pause = max(0.0, raw_seconds(event.stamp) - raw_seconds(before[1].stamp)) if event.stamp else at - before[0]
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
        self.trouble, self.ending, self.starting = "", False, True

    def _backlog_stamps(self, lines: list[str]) -> Stamps | None:
        for line in reversed(lines):
            stamp = _STAMP.search(line)
            if stamp is not None and self.tail.modified is not None:
                return stamps_of(stamp[1], self.tail.modified)
        return None

    def _find_capacity(self, before: int | None) -> None:
        """Cap and slots where what was read doesn't have them: of lines that stand before a place in the file."""
        if not self._caps:
            event = self._found(find_last_line(self.tail.path, b"max_total_num_tokens=", before=before))
            if event is not None and event.kind == "ready":
                self._caps[event.rank] = int(event.fields["max_running_requests"])
        if self.slots is None:
            text = b"Mamba Cache is allocated"
            line = find_last_line(self.tail.path, text, within_bytes=SLOTS_WITHIN_BYTES, before=before)
            event = self._found(line)
            if event is not None:
                self._take_slots(event)

    def _found(self, line: str | None) -> Event | None:
        return self._read_line(line)[0] if line else None

    def _take_slots(self, event: Event) -> None:
        slots = event.fields.get("max_mamba_cache_size")
        if slots is not None:
            self.slots = int(slots)
