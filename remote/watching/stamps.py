"""A log's own times, which name no time zone → Unix seconds; and where in a log a moment is."""

from __future__ import annotations

import os
import re
import time
from calendar import timegm
from math import floor

_STAMP = re.compile(rb"(?:^|\n)(?:\([^()\n]*\) )?\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_BLOCK = 64 * 1024
_LOOKED_AT = 16
"""So many blocks in a row without a time are looked at."""
ZONE_STEP_S = 900.0
"""Zones are multiples of a quarter of an hour."""
SLACK_S = 5.0
"""A line's time is cut to seconds, and a file's time of change may be some ticks old."""
JUST_WRITTEN_S = 60.0
"""A file that changed longer after its last line with a time was changed by something else."""


class Stamps:
    """Dates the lines of one log: its last time isn't later than `modified`, the file's time of change.

    Where a line wrote the file last, the zone is what lies between the two; where something else did (a traceback has
    no time), this machine's own zone, if that puts the line before the change. Its summer time is kept to.
    """

    def __init__(self, last: str, modified: float) -> None:
        behind = modified - _as_utc(last)
        self._shift = ZONE_STEP_S * floor((behind + SLACK_S) / ZONE_STEP_S)
        own = _as_local(last) - _as_utc(last)
        is_odd = behind - self._shift > JUST_WRITTEN_S and behind - own > -SLACK_S
        self._is_local = is_odd or abs(own - self._shift) < 1
        self._minute = ("", 0.0)

    def seconds(self, stamp: str) -> float | None:
        """Unix seconds; None for what is no time."""
        try:
            if stamp[:17] != self._minute[0]:
                first = f"{stamp[:17]}00"
                self._minute = (stamp[:17], _as_local(first) if self._is_local else _as_utc(first) + self._shift)
            return self._minute[1] + float(stamp[17:].replace(",", "."))
        except ValueError:
            return None


def read_stamps(fd: int, size: int, modified: float) -> Stamps | None:
    """By the last line with a time; None when there is none near the end of the file."""
    for number in range(1, _LOOKED_AT + 1):
        block = os.pread(fd, _BLOCK, max(0, size - number * _BLOCK))
        if found := _STAMP.findall(block):
            return stamps_of(found[-1].decode(), modified)
        if size <= number * _BLOCK:
            break
    return None


def stamps_of(last: str, modified: float) -> Stamps | None:
    """None when `last` is no time."""
    try:
        return Stamps(last, modified)
    except (ValueError, OverflowError):
        return None


def find_moment(fd: int, size: int, at: float, stamps: Stamps) -> int:
    """A place in the file before which every line is older than `at`, at most a block before the first that isn't."""
    low, high = 0, size
    while high - low > _BLOCK:
        middle = (low + high) // 2
        found = first_time(fd, middle, high, stamps)
        if found is None or found >= at:
            high = middle
        else:
            low = middle
    return low


def first_time(fd: int, start: int, end: int, stamps: Stamps) -> float | None:
    """Of the first line with a time in this part of the file; None when there is none, or it comes late."""
    for place in range(start, min(end, start + _LOOKED_AT * _BLOCK), _BLOCK):
        found = _STAMP.search(os.pread(fd, _BLOCK + 64, place))
        if found is not None:
            return stamps.seconds(found[1].decode())
    return None


def raw_seconds(stamp: str) -> float:
    """The stamp as if it were UTC, for differences; 0 for none."""
    try:
        return _as_utc(stamp)
    except ValueError:
        return 0.0


def _as_utc(stamp: str) -> float:
    return float(timegm(_parts(stamp)))


def _as_local(stamp: str) -> float:
    return time.mktime((*_parts(stamp), 0, 0, -1))


def _parts(stamp: str) -> tuple[int, int, int, int, int, int]:
    year, month, day = int(stamp[:4]), int(stamp[5:7]), int(stamp[8:10])
    return year, month, day, int(stamp[11:13]), int(stamp[14:16]), int(stamp[17:19])
