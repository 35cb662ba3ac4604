"""What a page is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackhand.contract.watch import Sample
from rackhand.inventory import Baseline
from rackhand.recording import Run


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `time` (Unix seconds). `kind`: restart, diagnosis, trouble, job, comparison or gap."""

    time: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of one job on one host. `samples` are in order of time, every `every`-th of the history; `runs` are
    the history's; `marks` are events that samples don't show themselves.

    `inventory` is what shown_inventory made: plain values, no secret in them. `made` is when the page was asked for,
    Unix seconds.
    """

    job: str
    where: str
    samples: Sequence[Sample]
    made: float
    every: int = 1
    runs: Sequence[Run] = ()
    marks: Sequence[Mark] = ()
    inventory: Mapping[str, Any] = field(default_factory=dict)
    baselines: Sequence[Baseline] = ()
