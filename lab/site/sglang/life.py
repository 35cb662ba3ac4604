"""The life of a server that has loaded: status, drain, faults, children watched, and how each signal ends it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

from lab.faults import faults_of, slowness_of
from lab.gpu import state
from lab.gpu.kinds import step_time_s

from .batch import Request
from .children import Child
from .failures import CRASHES, TRACEBACK, kill_tree
from .lines import Log
from .loading import Loaded
from .metrics import Histogram
from .scheduler import Scheduler
from .server_args import ServerArgs

DRAIN_POLL_S = 5.0
WATCH_S = 1.0


class Life:
    """Holds the scheduler and decides about health; every generation request passes `enter`."""

    def __init__(self, args: ServerArgs, loaded: Loaded, children: list[Child], gpu: state.Gpu, lines: Log) -> None:
        self.args = args
        self.loaded = loaded
        self.children = children
        self.gpu = gpu
        self.lines = lines
        self.directory: Path = state.state_dir()
        self.options = state.read_options(self.directory)
        self.up = False
        self.unhealthy = False
        self.draining = False
        self.in_flight: dict[str, Request] = {}
        self.seen = 0
        self.mean_tokens = float(os.environ.get("RACKHAND_LAB_MEAN_TOKENS", self.options["mean_tokens"]))
        self.length_sigma = float(self.options["length_sigma"])
        self.histograms = {
            "time_to_first_token_seconds": Histogram(),
            "e2e_request_latency_seconds": Histogram(),
        }
        self._handlers_set = False
        self._faults: dict[str, dict[str, Any]] = {}
        self._faults_mtime = -1
        self._dice = random.Random(os.getpid())  # noqa: S311 - which requests a fault hits
        self._tasks: set[asyncio.Task[None]] = set()
        speculation = bool(args.speculative_algorithm)
        self.scheduler = Scheduler(
            loaded.limits,
            lambda running: step_time_s(gpu.kind, running, speculation=speculation),
            lines,
            self._put_activity,
        )
        self.read_faults()

    @property
    def scale(self) -> float:
        """What the pauses of this process are multiplied with."""
        return 1.0 / float(os.environ.get("RACKHAND_LAB_SPEED", self.options["speed"]))

    def start_tasks(self) -> None:
        """The once-a-second watch over children and faults."""
        self._spawn(self._watch())

    def set_handlers(self) -> None:
        """SIGTERM and SIGQUIT as from the first request on; before, the default action applies."""
        if self._handlers_set:
            return
        self._handlers_set = True
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGQUIT, self.on_sigquit)
        self._spawn(self._drain_when_asked())

    def enter(self, rid: str, request: Request) -> str | None:
        """Counts a request in, or says what a fault makes of it ("http_500")."""
        self.set_handlers()
        self.read_faults()
        self.seen += 1
        crash = self._faults.get("crash_under_load")
        if crash is not None and self.seen >= int(crash.get("after", 1)):
            self._crash()
        if self._dice.random() < float(self._faults.get("http_500", {}).get("share", 0.0)):
            return "http_500"
        self.scheduler.submit(request)
        self.in_flight[rid] = request
        return None

    def observe_latency(self, seconds: float, request: Request) -> None:
        """One finished request, for the histograms; the first token comes with the prefill."""
        self.histograms["e2e_request_latency_seconds"].observe(seconds)
        self.histograms["time_to_first_token_seconds"].observe(max(0.0, request.admitted - request.arrived))

    def read_faults(self) -> None:
        """Takes over faults.json when it has changed."""
        try:
            mtime = (self.directory / "faults.json").stat().st_mtime_ns
        except FileNotFoundError:
            mtime = 0
        if mtime != self._faults_mtime:
            self._faults_mtime = mtime
            self._faults = faults_of(self.directory, self.gpu.number)
        hang = self._faults.get("hang")
        frozen = hang is not None and self.seen >= int(hang.get("after", 0))
        prefill_tok_s = self._faults.get("slow_prefill", {}).get("tok_s")
        self.scheduler.set_pace(frozen=frozen, slowness=slowness_of(self._faults), prefill_tok_s=prefill_tok_s)

    def on_sigquit(self) -> None:
        """A child failed: say so and end the whole tree."""
        self.lines.error("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        kill_tree(self.children)

    def _on_sigterm(self) -> None:
        self.lines.warning("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.draining = True

    async def _drain_when_asked(self) -> None:
        while not self.draining:  # noqa: ASYNC110 - 0.5.11 polls the flag, and so takes up to 5 s
            await asyncio.sleep(DRAIN_POLL_S * self.scale)
        while True:
            rids = list(self.in_flight)
            if self.unhealthy:
                self.lines.error("Signal SIGTERM received while health check failed. Force exiting.")
                break
            if os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
                self.lines.error("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                break
            self.lines.info(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids!r}."
            )
            if not rids:
                break
            await asyncio.sleep(DRAIN_POLL_S * self.scale)
        kill_tree(self.children)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S * min(1.0, self.scale))
            self.read_faults()
            for child in self.children:
                pid, status = os.waitpid(child.pid, os.WNOHANG)  # noqa: ASYNC222 - WNOHANG doesn't wait
                code = os.waitstatus_to_exitcode(status)
                # Ctrl-C reaches the children too, and may end them before this process has heard of it.
                if pid and code and code != -signal.SIGINT:
                    self.lines.error(
                        f"Subprocess {child.name}_0 (pid={child.pid}) crashed with exit code {code}. "
                        "Triggering SIGQUIT for cleanup..."
                    )
                    self.on_sigquit()

    def _crash(self) -> None:
        self.lines.error(f"Scheduler hit an exception: {TRACEBACK}{CRASHES['under_load']}\n")
        self.on_sigquit()

    def _put_activity(self, running: int) -> None:
        state.put_activity(self.directory, self.gpu.uuid, running, self.loaded.limits.running)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
