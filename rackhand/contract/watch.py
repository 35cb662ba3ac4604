"""The verb `watch`: what is followed in a container, and the samples that come of it.

A sample is one event, a line each interval. None stands for what can't be read, never zero. docs/metrics.md says
where each figure comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["running", "loading", "draining", "stalled", "stopped", "dead", "unknown"]
"""running: it answers · loading: the process lives, the port is still closed · draining: told to end · stalled:
requests are in flight and nothing moves · stopped: it ended and was told to · dead: it ended and was not told to ·
unknown: no record of it and no answer."""

STATES: tuple[State, ...] = ("running", "loading", "draining", "stalled", "stopped", "dead", "unknown")


@dataclass(frozen=True)
class WatchedServer:
    """`log` is where its lines stand unless run/gpuN.json names another file; `url` has no /v1 at its end."""

    gpu: int
    url: str
    log: str
    engine: str = "sglang"


@dataclass(frozen=True)
class WatchedJob:
    """`output` is the directory of its progress.json."""

    name: str
    output: str


@dataclass(frozen=True)
class WatchRequest:
    """`once` ends after the first sample. `until_eof` ends when stdin does: the caller holds it open. `seen_only`
    leaves out servers of GPUs that nvidia-smi doesn't list, unless they have a record in run/.
    The servers' API key is RACKHAND_API_KEY of secrets.env in the tmpfs directory of `home`.
    """

    home: str
    servers: tuple[WatchedServer, ...] = ()
    jobs: tuple[WatchedJob, ...] = ()
    interval_s: float = 2.0
    once: bool = False
    until_eof: bool = False
    seen_only: bool = False


@dataclass(frozen=True)
class GpuSample:
    """One GPU and its server. Usages are shares from 0 to 1; memory is MiB; `tok_s` are decoded tokens per second,
    from the counter of /metrics or from the log's decode lines, as `tok_s_source` says. `cap` is the effective
    max_running_requests. `retractions` and `unread` count since the watch began; `decode_age_s` is how old the last
    decode line is. `trouble` names the last trouble line of this start, e.g. cuda_oom."""

    gpu: int
    state: State = "unknown"
    running: int | None = None
    cap: int | None = None
    queue: int | None = None
    pending_tokens: int | None = None
    kv_usage: float | None = None
    mamba_usage: float | None = None
    tok_s: float | None = None
    tok_s_source: str = ""
    accept_len: float | None = None
    util_pct: float | None = None
    power_w: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    retractions: int = 0
    unread: int = 0
    decode_age_s: float | None = None
    trouble: str = ""


@dataclass(frozen=True)
class JobSample:
    """`progress` is progress.json as it stands, None when there is none or it can't be read; `age_s` is how long ago
    it was written."""

    name: str
    output: str
    progress: dict[str, Any] | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class WatcherSample:
    """The watch itself: share of one core since the last sample, memory now."""

    cpu_pct: float | None = None
    rss_mib: float | None = None


@dataclass(frozen=True)
class Sample:
    """`time` is the container's clock, Unix seconds; `seq` counts from 0. `drops` are samples that nobody took in
    time, `skipped_bytes` log bytes that were jumped over; both since the watch began."""

    time: float
    seq: int = 0
    gpus: tuple[GpuSample, ...] = ()
    jobs: tuple[JobSample, ...] = ()
    unread: int = 0
    drops: int = 0
    skipped_bytes: int = 0
    watcher: WatcherSample = field(default_factory=WatcherSample)
    event: str = "sample"
