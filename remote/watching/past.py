"""The lines that a log holds of the past, in order and with their times, a piece at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from remote.watching.stamps import Stamps, find_moment, first_time, read_stamps
from remote.watching.tail import BACKLOG_BYTES, Tail

PAST_BYTES = 32 * 1024 * 1024
"""Read back of one log at most: about a day of a busy server."""
WARM_S = 60.0
"""Lines of so long before the first moment are read too: rates and rhythms need them."""
_STAMP = re.compile(r"(?:\([^()]*\) )?\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")


class PastLines:
    """`start` is where reading begins; `cut_at` the time of the first line, where PAST_BYTES kept it from beginning
    earlier; `tail` goes on where the past ends."""

    def __init__(self, tail: Tail, stamps: Stamps, start: int, cut_at: float | None) -> None:
        self.tail, self.stamps, self.start, self.cut_at = tail, stamps, start, cut_at
        self._lines: Iterator[str] = iter(())
        self._next: str | None = None

    @classmethod
    def open(cls, path: Path, since: float) -> PastLines | None:
        """None where there is no log, or it has no times."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            stamps = read_stamps(fd, status.st_size, status.st_mtime)
            if stamps is None:
                return None
            wanted = find_moment(fd, status.st_size, since - WARM_S, stamps)
            least = status.st_size - PAST_BYTES
            cut_at = first_time(fd, least, status.st_size, stamps) if wanted < least else None
        finally:
            os.close(fd)
        start = max(0, min(max(wanted, least), status.st_size - BACKLOG_BYTES))
        return cls(Tail(path, backlog_bytes=status.st_size - start), stamps, start, cut_at)

    def lines_to(self, moment: float) -> Iterator[str]:
        """Those not yet given, until the first that is younger; a line without a time is as old as the one before."""
        while True:
            line = self._next if self._next is not None else self._take()
            if line is None:
                return
            found = _STAMP.match(line)
            at = self.stamps.seconds(found[1]) if found is not None else None
            if at is not None and at > moment:
                self._next = line
                return
            self._next = None
            yield line

    def _take(self) -> str | None:
        while True:
            line = next(self._lines, None)
            if line is not None:
                return line
            piece = self.tail.read_piece()
            if piece is None:
                return None
            self._lines = iter(piece)
