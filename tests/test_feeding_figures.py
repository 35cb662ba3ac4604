"""The arithmetic of bench/occupancy.py: what samples and records say of a window."""

from __future__ import annotations

from typing import Any

import pytest

from bench.feeding_figures import Window, fed, first_rise_s, full_s, last_rise_s, tokens_ended_in, tokens_in


def _samples(*held: tuple[int, int], cap: int = 4) -> list[dict[str, Any]]:
    """One server's (running, queue) at 100 s, 101 s ...; each running request makes ten tokens a second."""
    found, decoded = [], 0.0
    for second, (running, queue) in enumerate(held):
        counters = {"decoded": decoded, "steps": 10.0 * second}
        found.append(
            {"time": 100.0 + second, "servers": [{"running": running, "queue": queue, "cap": cap, **counters}]}
        )
        decoded += 10 * running
    return found


def test_slots_at_work_are_told_by_gauges_and_by_counters() -> None:
    found = fed(_samples((4, 2), (4, 1), (2, 0), (4, 1)), Window(100, 103), 0)
    assert (found.cap, found.share, found.queue, found.empty, found.decoded) == (4, 0.875, 1.0, 0.25, 100.0)
    assert found.counted == pytest.approx(10 / 12)
    with pytest.raises(ValueError, match="server 0"):
        fed([{"time": 100.0, "servers": [None]}] * 3, Window(100, 103), 0)


def test_a_records_tokens_count_by_the_share_of_its_time_that_lies_in_the_window() -> None:
    records = [
        {"created": "1970-01-01T00:01:50+00:00", "latency_s": 10.0, "usage": {"completion_tokens": tokens}}
        for tokens in (100, 300)
    ]
    assert tokens_in(records, Window(0, 200)) == 400
    assert tokens_in(records, Window(105.5, 200)) == 200
    assert tokens_in(records, Window(102.5, 105)) == 100
    assert tokens_in(records, Window(111, 200)) == 0
    assert (tokens_ended_in(records, Window(110, 111)), tokens_ended_in(records, Window(111, 200))) == (400, 0)


def test_when_a_wish_was_obeyed_is_told_by_the_looks_at_which_requests_came() -> None:
    samples = _samples((2, 1), (3, 1), (2, 0), (2, 0), (2, 1), (4, 2))
    assert (last_rise_s(samples, Window(100, 103), 0), last_rise_s(samples, Window(102, 103), 0)) == (1.0, 0.0)
    assert (first_rise_s(samples, Window(102, 105), 0), first_rise_s(samples, Window(102, 103), 0)) == (2.0, 1.0)
    assert (full_s(samples, Window(102, 105), 0, 4), full_s(samples, Window(102, 105), 0, 5)) == (3.0, None)
