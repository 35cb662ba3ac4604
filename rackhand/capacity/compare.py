"""Predicted against effective values of a started server. Pure."""

from __future__ import annotations

import dataclasses

from rackhand.capacity.predict import Capacity

TOLERANCE = 0.03


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What a running server says of itself; None where it doesn't."""

    max_running_requests: int | None = None
    kv_tokens: int | None = None
    slots: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs. `share` is effective over predicted, less 1."""

    name: str
    predicted: int
    effective: int

    @property
    def share(self) -> float:
        return self.effective / self.predicted - 1 if self.predicted else 1.0

    def __str__(self) -> str:
        return f"{self.name}: {self.predicted:,} predicted, {self.effective:,} effective ({self.share:+.1%})"


def compare_effective(predicted: Capacity, effective: Effective) -> tuple[Difference, ...]:
    """The values that differ by more than 3 %; what the server doesn't say isn't compared."""
    pairs = (
        ("max_running_requests", predicted.max_running_requests, effective.max_running_requests),
        ("kv_tokens", predicted.kv_tokens, effective.kv_tokens),
        ("slots", predicted.slots, effective.slots),
    )
    found = [Difference(name, ours, theirs) for name, ours, theirs in pairs if theirs is not None]
    return tuple(d for d in found if abs(d.effective - d.predicted) > TOLERANCE * d.predicted)
