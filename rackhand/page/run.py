"""What a page is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackhand.contract.watch import Sample
from rackhand.inventory import Baseline


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `time` (Unix seconds). `kind`: restart, diagnosis, trouble, verb or job."""

    time: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time in which the servers' flags (by GPU) and the generator's process stayed the same, in the container's
    Unix seconds. `sent` is requests in flight per server; None: no generator."""

    began: float
    ended: float
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sent: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One job on one host. `samples` are in order of time; `marks` are events that samples don't show themselves;
    each of `stretches` in which a generator worked is a phase of the page.

    `inventory` is what shown_inventory made: plain values, no secret in them. `made` is when the page was asked for,
    Unix seconds.
    """

    job: str
    where: str
    samples: Sequence[Sample]
    made: float
    stretches: Sequence[Stretch] = ()
    marks: Sequence[Mark] = ()
    inventory: Mapping[str, Any] = field(default_factory=dict)
    baselines: Sequence[Baseline] = ()
