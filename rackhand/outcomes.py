"""What became of a job's requests, as a history keeps it: the servers' counts of progress.json added up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

KEPT = ("failed_before", "rejected", "bad_lines", "retries", "message")
NUMBERS = "bad_line_numbers"
COUNTS = ("failures", "empty")
CLASSES = ("finish_reasons", "output_lengths")
ALL = "all servers"
"""The one server of a progress that was read back."""
SENT = "sent_per_server"
"""Requests that a server may be sent at once, the mean over servers; progress.json itself doesn't have it."""


def outcomes_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a progress that progress.json would have with a single server. Empty when there is nothing in it.
    What isn't of the expected shape is left out."""
    found: dict[str, Any] = {
        name: progress[name] for name in KEPT if isinstance(progress.get(name), int | str) and progress[name]
    }
    numbers = progress.get(NUMBERS)
    if isinstance(numbers, list) and numbers:
        found[NUMBERS] = [number for number in numbers if isinstance(number, int)]
    named = progress.get("servers")
    servers = {url: s for url, s in named.items() if isinstance(s, dict)} if isinstance(named, dict) else {}
    limits = [limit for s in servers.values() if isinstance(limit := s.get("limit"), int)]
    if limits:
        found[SENT] = round(sum(limits) / len(limits), 2)
    added: dict[str, Any] = {name: sum(_count(s.get(name)) for s in servers.values()) for name in COUNTS}
    for name in CLASSES:
        total: Counter[str] = Counter()
        for server in servers.values():
            counted = server.get(name)
            total.update({k: _count(n) for k, n in counted.items()} if isinstance(counted, dict) else {})
        added[name] = dict(total)
    errors = [f"{url}: {error}" for url, s in sorted(servers.items()) if isinstance(error := s.get("last_error"), str)]
    if errors:
        added["last_error"] = "; ".join(errors)
    added = {name: value for name, value in added.items() if value}
    return found | ({"servers": {ALL: added}} if added else {})


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
