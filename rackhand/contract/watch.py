"""The verb `watch`: what is followed in a container, and the samples that come of it.

A sample is one event, a line each interval. None stands for what can't be read, never zero. docs/metrics.md says
where each figure comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["running", "loading", "draining", "stalled", "stopped", "dead", "unknown"]
"""running: it answers · loading: the process lives, and its port is still closed or it hasn't generated yet ·
draining: told to end · stalled: requests are in flight and nothing moves · stopped: it ended and was told to ·
dead: it ended and was not told to · unknown: no record of it and no answer."""

LIVE: tuple[State, ...] = ("running", "draining", "stalled")
"""Of a server that is up: its figures are of now."""

LONGEST_PAST_S = 12 * 3600.0
"""So far back at most are samples rebuilt from logs."""
NOTE = "note"
"""An event of a watch that is no sample: `text` is for people."""


@dataclass(frozen=True)
class WatchedServer:
    """`log` is where its lines stand unless run/gpuN.json names another file; `url` has no /v1 at its end."""

    gpu: int
    url: str
    log: str
    engine: str = "sglang"


@dataclass(frozen=True)
class WatchedJob:
    """`output` is the directory of its progress.json, `others` those of runs that `--new` started. The run whose
    progress.json is the newest is the one that is told of."""

    name: str
    output: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class WatchRequest:
    """`once` ends after the first sample. `until_eof` ends when stdin does: the caller holds it open. `seen_only`
    leaves out servers of GPUs that nvidia-smi doesn't list, unless they have a record in run/. `with_lines` puts the
    last batch lines of each log into its samples.

    `past_s` and `since` (the container's Unix seconds) ask for the past first: samples rebuilt from the servers' logs,
    later than the earlier of the two moments and at most LONGEST_PAST_S old.
    The servers' API key is RACKHAND_API_KEY of secrets.env in the tmpfs directory of `home`.
    """

    home: str
    servers: tuple[WatchedServer, ...] = ()
    jobs: tuple[WatchedJob, ...] = ()
    interval_s: float = 2.0
    once: bool = False
    until_eof: bool = False
    seen_only: bool = False
    with_lines: bool = False
    past_s: float = 0.0
    since: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU and its server. Usages are shares from 0 to 1; memory is MiB; `tok_s` are decoded tokens per second,
    from the counter of /metrics or from the log's decode lines, as `tok_s_source` says. `cap` is the effective
    max_running_requests. `retractions` and `unread` count since the watch began; `decode_age_s` is how old the last
    decode line is. `trouble` names the last trouble line of this start, e.g. cuda_oom.

    `slots` is the size of the state pool; `graph` whether the last decode line ran from a captured graph; `still_s`
    how long ago a batch line of either kind came or the counter moved; `pid` the recorded server process while it
    lives, `flags` those of its command line that decide capacity and speed; `lines` its last batch lines; `kv_tokens`
    the tokens in its KV pool; `prefill_share` how much of its time goes into prefill; `decoded_tokens` its counter;
    `fault` what nvidia-smi says of a GPU out of order, of which it tells nothing else;
    `cause` why a dead server ended, in words."""

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
    slots: int | None = None
    graph: bool | None = None
    still_s: float | None = None
    pid: int | None = None
    flags: dict[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    kv_tokens: int | None = None
    prefill_share: float | None = None
    decoded_tokens: float | None = None
    fault: str = ""
    cause: str = ""


@dataclass(frozen=True)
class JobSample:
    """`progress` is progress.json of `output` as it stands, None when there is none or it can't be read; `age_s` is how
    long ago it was written."""

    name: str
    output: str
    progress: dict[str, Any] | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class HostSample:
    """The container's CPUs and disks. `cpu_pct` and `iowait_pct` are shares of all its CPUs since the last sample;
    the pressures say for how much of the last 10 s some work waited for a CPU, and all work for I/O;
    `disk_free_gib` is the least of the workspace and the jobs' outputs; `xids` are the driver's fault lines of the
    kernel log since the watch began, where that can be read, as `79 PCI:0000:01:00`.
    `boot` names this run of the container: it changes with each start; `started` is when that was, `machine_started`
    when the machine's kernel was, Unix seconds."""

    cpu_pct: float | None = None
    iowait_pct: float | None = None
    cpu_pressure_pct: float | None = None
    io_pressure_pct: float | None = None
    disk_free_gib: float | None = None
    xids: tuple[str, ...] = ()
    boot: str = ""
    started: float | None = None
    machine_started: float | None = None


@dataclass(frozen=True)
class WatcherSample:
    """The watch itself: share of one core since the last sample, memory now."""

    cpu_pct: float | None = None
    rss_mib: float | None = None


@dataclass(frozen=True)
class Sample:
    """`time` is the container's clock, Unix seconds; `seq` counts from 0. `drops` are samples that nobody took in
    time, `skipped_bytes` log bytes that were jumped over; both since the watch began.

    `rebuilt`: of the past, from the servers' logs alone. What they don't say is None, `seq` is -1; a server that they
    say nothing of at that moment is `unknown`. `nvidia_smi` is what that program says beside the rows of GPUs, such as
    which one it can't read; "" when all is well."""

    time: float
    seq: int = 0
    gpus: tuple[GpuSample, ...] = ()
    jobs: tuple[JobSample, ...] = ()
    unread: int = 0
    drops: int = 0
    skipped_bytes: int = 0
    watcher: WatcherSample = field(default_factory=WatcherSample)
    host: HostSample = field(default_factory=HostSample)
    rebuilt: bool = False
    event: str = "sample"
    nvidia_smi: str = ""
