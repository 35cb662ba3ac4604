"""What one line of a server's log says."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["decode", "prefill", "ready", "memory", "retraction", "trouble", "lifecycle"]
Value = int | float | bool


class Event(NamedTuple):
    """One line, read.

    `fields` maps the log's own names to numbers: percentages as they are printed (`91.20%` is 91.2), GiB for what
    SGLang calls GB. `sign` names the thing for the kinds that have many (`kv_pool`, `cuda_oom`, `sigterm`); it is ""
    for batch lines and the ready line. `stamp` is the log's own local time, "" where the line has none; `rank` holds
    the rank tags (`DP0 TP0`), "" on one GPU. The text isn't kept: it may hold the API key.
    """

    kind: Kind
    fields: dict[str, Value]
    sign: str = ""
    stamp: str = ""
    rank: str = ""
