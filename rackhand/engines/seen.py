"""What is seen of a server at work: one line of its log, one look at its endpoints."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Reading:
    """One look at a server; None for what the answer doesn't hold. Usages are shares from 0 to 1.

    `decoded_tokens` only grows while the server lives.
    """

    running: int | None = None
    queue: int | None = None
    cap: int | None = None
    pending_tokens: int | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    accept_len: float | None = None
    decoded_tokens: float | None = None
