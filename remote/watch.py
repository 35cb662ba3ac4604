"""The verb `watch`: every source in one process, one sample an interval, until the other side is gone."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rackhand.contract import from_json, to_json
from rackhand.contract.servers import API_KEY, secrets_dir
from rackhand.contract.watch import (
    LONGEST_PAST_S,
    NOTE,
    GpuSample,
    Sample,
    WatchedServer,
    WatcherSample,
    WatchRequest,
)
from remote.serving.redact import read_values
from remote.watching.host import HostWatch
from remote.watching.jobs import observe_job
from remote.watching.outlet import Outlet
from remote.watching.past import PAST_BYTES
from remote.watching.server import WatchedGpu, read_object
from remote.watching.smi import NvidiaSmi, observe_indices

FIRST_LOOK_S = 5.0
"""How long the first sample waits for nvidia-smi and the endpoints."""
FIRST_ROUND_S = 1.0
"""From nvidia-smi's first row to its last."""
MOST_PAST = 7200
"""Samples of the past at most: four hours at an interval of 2 s, more widely spaced beyond."""
WORK_S = 0.05
"""CPU time that goes into the past between two rests."""
_BLANK = vars(GpuSample(0))
BLOCKED_S = 600.0
"""A road that has taken nothing for this long is given up: nobody will come back to it."""


def call(data: Any, emit: Callable[[dict[str, Any]], None], body: BinaryIO) -> None:
    request = from_json(WatchRequest, data)
    outlet, stop = Outlet(emit), threading.Event()
    watcher = Watcher(request, stop)
    caller = _Caller(body, listen=request.until_eof)
    watcher.start()
    try:
        watcher.await_first_look(FIRST_LOOK_S)
        if _tell_past(watcher, request, outlet, caller):
            _run(watcher, request, outlet, caller)
    finally:
        stop.set()
        watcher.close()
        if not outlet.finish(2.0):
            os._exit(1)  # the writer holds stdout's lock in a write that never returns


class Watcher:
    """All sources of one container."""

    def __init__(self, request: WatchRequest, stop: threading.Event, *, nvidia_smi: str = "nvidia-smi") -> None:
        home, key = Path(request.home), read_values(Path(secrets_dir(request.home))).get(API_KEY)
        self._request = request
        self._control = home / "control.json"
        self._host = HostWatch(
            (str(home.parent), *(place for job in request.jobs for place in (job.output, *job.others)))
        )
        self._smi = NvidiaSmi(interval_s=request.interval_s, stop=stop, program=nvidia_smi)
        self._gpus = [
            WatchedGpu(server, home, interval_s=request.interval_s, key=key, stop=stop, with_lines=request.with_lines)
            for server in _there(request, home, nvidia_smi)
        ]
        self._seq = 0
        self._cpu = (time.monotonic(), time.process_time())

    def start(self) -> None:
        self._smi.start()
        for gpu in self._gpus:
            gpu.start()

    def close(self) -> None:
        self._smi.close()
        self._host.close()
        for gpu in self._gpus:
            gpu.close()

    def await_first_look(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for source in (self._smi.heard, *(gpu.endpoints.asked for gpu in self._gpus)):
            source.wait(max(0.0, deadline - time.monotonic()))
        wanted, deadline = {gpu.server.gpu for gpu in self._gpus}, min(deadline, time.monotonic() + FIRST_ROUND_S)
        while not wanted <= self._smi.known() and time.monotonic() < deadline:
            time.sleep(0.02)

    def sample(self, drops: int) -> Sample:
        wishes = read_object(self._control).get("servers")
        wishes = wishes if isinstance(wishes, dict) else {}
        gpus = tuple(
            gpu.sample(self._smi.reading(gpu.server.gpu), str(wishes.get(gpu.server.url, "active")))
            for gpu in self._gpus
        )
        self._seq += 1
        return Sample(
            time=round(time.time(), 3),
            seq=self._seq - 1,
            gpus=gpus,
            jobs=tuple(observe_job(job) for job in self._request.jobs),
            unread=sum(gpu.unread for gpu in gpus),
            drops=drops,
            skipped_bytes=sum(gpu.skipped_bytes for gpu in self._gpus),
            watcher=self._self_sample(),
            host=self._host.sample(),
            nvidia_smi=self._smi.says(),
        )

    def past(self, since: float) -> Iterator[dict[str, Any] | None]:
        """Samples rebuilt from the logs, from `since` to now, one an interval or as many as MOST_PAST allows; None for
        a moment of which no log says anything. A log that is too long is told of by a note."""
        step_s = max(self._request.interval_s, (time.time() - since) / MOST_PAST)
        for gpu in self._gpus:
            cut_at = gpu.begin_past(since)
            if cut_at is not None and cut_at > since:
                when = time.strftime("%H:%M:%S", time.localtime(cut_at))
                limit = f"the last {PAST_BYTES // 1024**2} MiB of its log are read back"
                yield {"event": NOTE, "text": f"GPU {gpu.server.gpu}: {limit}, from {when} on"}
        moment = since + step_s
        while moment <= time.time() - step_s / 2:
            gpus = [gpu.past_sample(moment) for gpu in self._gpus]
            is_known = any(gpu.state != "unknown" for gpu in gpus)
            head = {"event": "sample", "rebuilt": True, "seq": -1, "time": round(moment, 3)}
            yield {**head, "gpus": [_known(gpu) for gpu in gpus]} if is_known else None
            moment += step_s
        for gpu in self._gpus:
            gpu.end_past()

    def _self_sample(self) -> WatcherSample:
        (wall, cpu), self._cpu = self._cpu, (time.monotonic(), time.process_time())
        seconds = self._cpu[0] - wall
        share = (self._cpu[1] - cpu) / seconds * 100 if seconds > 0 else None
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
        return WatcherSample(None if share is None else round(share, 2), round(rss_mib, 1))


def _there(request: WatchRequest, home: Path, nvidia_smi: str) -> tuple[WatchedServer, ...]:
    if not request.seen_only:
        return request.servers
    seen = observe_indices(nvidia_smi)
    return tuple(s for s in request.servers if s.gpu in seen or (home / "run" / f"gpu{s.gpu}.json").exists())


def _tell_past(watcher: Watcher, request: WatchRequest, outlet: Outlet, caller: _Caller) -> bool:
    """False when the caller is gone. It waits for a slow road, so that nothing of the past is dropped, and rests as
    long as it works."""
    now = time.time()
    since = now - request.past_s if request.since is None else min(request.since, now - request.past_s)
    since = max(since, now - LONGEST_PAST_S)
    if now - since < request.interval_s:
        return True
    began = time.process_time()
    for event in watcher.past(since):
        while event is not None and not outlet.put_when_taken(event, 0.5):
            if outlet.closed.is_set() or outlet.blocked_s() > BLOCKED_S or caller.is_gone(0.0):
                return False
        if (spent := time.process_time() - began) > WORK_S:
            if outlet.closed.is_set() or caller.is_gone(spent):
                return False
            began = time.process_time()
    return True


def _known(gpu: GpuSample) -> dict[str, Any]:
    """What differs from a GpuSample of which nothing is known; the reader puts the rest back."""
    return {name: value for name, value in vars(gpu).items() if name == "gpu" or value != _BLANK[name]}


def _run(watcher: Watcher, request: WatchRequest, outlet: Outlet, caller: _Caller) -> None:
    due = time.monotonic()
    while not outlet.closed.is_set() and outlet.blocked_s() < BLOCKED_S:
        outlet.put(to_json(watcher.sample(outlet.drops)))
        if request.once:
            return
        due = max(due + request.interval_s, time.monotonic())
        while (left := due - time.monotonic()) > 0:
            if outlet.closed.is_set() or caller.is_gone(min(left, 0.5)):
                return


class _Caller:
    """The other side of stdin and stdout."""

    def __init__(self, body: BinaryIO, *, listen: bool) -> None:
        self._poll, self._stdin = select.poll(), -1
        with contextlib.suppress(OSError, io.UnsupportedOperation, ValueError):
            self._poll.register(sys.stdout.fileno(), 0)
        if listen:
            self._stdin = body.fileno()
            self._poll.register(self._stdin, select.POLLIN)

    def is_gone(self, wait_s: float) -> bool:
        """Waits that long, less when something happens. stdin counts only when it was asked to be held open."""
        for fd, events in self._poll.poll(wait_s * 1000):
            if fd != self._stdin or events & ~(select.POLLIN | select.POLLHUP):
                return True
            if not os.read(fd, 4096):
                return True
        return False
