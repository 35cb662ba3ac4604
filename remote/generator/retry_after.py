"""How long a server asks to be left alone: HTTP's Retry-After. Pure; the caller brings the time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime

LONGEST_WAIT_S = 300.0
"""A longer wish is taken for this long: what is meant for people (a day) or is a slip must not stop a job."""

_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?")


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds, 0 to LONGEST_WAIT_S; None without the header, for what is none, and for a moment that is past.

    A date (any of HTTP's three forms) counts from the answer's own Date, so that no clock need be right; from `now`
    (Unix time) where there is none.
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        # A number of thousands of digits is no float's business.
        return min(LONGEST_WAIT_S, float(value[:400]))
    until = _moment(value)
    since = _moment(headers.get("Date", ""))
    wait_s = None if until is None else until - (now if since is None else since)
    return min(LONGEST_WAIT_S, wait_s) if wait_s is not None and wait_s >= 0 else None


def _moment(text: str) -> float | None:
    """Unix time."""
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    # Without a zone it is GMT: HTTP knows no other.
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
