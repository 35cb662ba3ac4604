"""Lengths of time and counts on the command line."""

from __future__ import annotations

import pytest

from rackhand.arguments import checked_count, checked_seconds
from rackhand.errors import UsageError


def test_no_time_asked_is_none() -> None:
    assert (checked_seconds(None, "timeout"), checked_seconds(1.5, "timeout")) == (None, 1.5)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_length_of_time_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        checked_seconds(value, "timeout")


@pytest.mark.parametrize("value", [0, -3])
def test_a_count_below_one_is_refused(value: int) -> None:
    assert checked_count(None, "at-once") is None
    with pytest.raises(UsageError, match=f"--at-once {value}"):
        checked_count(value, "at-once")
