"""One long-lived nvidia-smi and what it said last of each GPU."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from dataclasses import dataclass

from rackhand.contract.gpus import fault_in, number, query_argv, split_rows

FIELDS: tuple[str, ...] = (
    "index", "memory.used", "memory.total", "utilization.gpu", "power.draw", "temperature.gpu",
    "clocks_throttle_reasons.active",
)  # fmt: skip
REASONS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
"""Bits of clocks_throttle_reasons.active that slow a GPU down; the others tell of idleness and settings."""
RETRY_S = 15.0
LINES = 4
SILENT_S = 30.0
"""Beyond ten rounds: one that hangs with its driver is ended, a new one may answer."""


@dataclass(frozen=True)
class GpuReading:
    """None where nvidia-smi says [N/A] or another word; `fault` is one that tells of a GPU out of order."""

    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    util_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    fault: str = ""


class NvidiaSmi:
    """Started again when it ends or falls silent; without one every reading is empty."""

    def __init__(self, *, interval_s: float, stop: threading.Event, program: str = "nvidia-smi") -> None:
        self._every_s = max(1, round(interval_s))
        self._stop, self._program = stop, program
        self._fields = FIELDS
        self._latest: dict[int, tuple[float, GpuReading]] = {}
        self._process: subprocess.Popen[str] | None = None
        self._heard_at = 0.0
        self._lines: dict[str, float] = {}
        self.heard = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="nvidia-smi")

    def start(self) -> None:
        self._thread.start()

    def reading(self, gpu: int) -> GpuReading:
        """Empty when the last word on this GPU is older than five rounds."""
        self._end_silent()
        at, reading = self._latest.get(gpu, (0.0, GpuReading()))
        return reading if time.monotonic() - at < 5 * self._every_s + 2 else GpuReading()

    def heard_at(self, gpu: int) -> float:
        """When it spoke last of this GPU, by the monotonic clock; 0 for never."""
        return self._latest.get(gpu, (0.0,))[0]

    def says(self) -> str:
        """What it has said of late that is no GPU's row, or that it says nothing; "" when all is well."""
        now = time.monotonic()
        told = [line for line, at in tuple(self._lines.items()) if now - at < 2 * RETRY_S + 5 * self._every_s]
        if not told and self.heard.is_set() and now - self._heard_at > 5 * self._every_s + 2 + RETRY_S:
            return "no answer"
        return "; ".join(told)

    def known(self) -> set[int]:
        """The GPUs that it has spoken of."""
        return set(self._latest)

    def _end_silent(self) -> None:
        process = self._process
        if process is not None and time.monotonic() - self._heard_at > SILENT_S + 10 * self._every_s:
            process.kill()

    def close(self) -> None:
        """End the process; `stop` must be set before."""
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stop.is_set():
            lines = self._follow()
            if lines == 0 and self._fields == FIELDS:
                self._fields = FIELDS[:-1]
                continue
            self.heard.set()
            # one that ends after good rows has met a GPU that it can't read: the good ones are asked again soon
            self._stop.wait(self._every_s if lines > 0 else RETRY_S)

    def _follow(self) -> int:
        """Read one process to its end; the count of lines that were understood."""
        argv = [self._program, *query_argv(self._fields)[1:]]
        count = 0
        try:
            process = subprocess.Popen(
                [*argv, "-l", str(self._every_s)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._tell(f"{self._program}: {error.strerror}")
            return -1
        self._heard_at, self._process = time.monotonic(), process
        with process:
            if self._stop.is_set():
                process.kill()
            for line in process.stdout or ():
                self._heard_at = time.monotonic()
                read = parse_row(line)
                if read is None:
                    self._tell(line.strip())
                else:
                    self._latest[read[0]] = (time.monotonic(), read[1])
                    count += 1
                    self.heard.set()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self._process = None
        return count

    def _tell(self, line: str) -> None:
        if line and not line.startswith(("index,", "Field ")):
            self._lines[line] = time.monotonic()
        while len(self._lines) > LINES:
            self._lines.pop(next(iter(self._lines)))


def observe_indices(program: str = "nvidia-smi") -> frozenset[int]:
    """The indices of the GPUs there are; empty when nvidia-smi can't tell within 20 s."""
    argv = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        out = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).stdout
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
    except OSError:
        return frozenset()
    return frozenset(int(line) for line in out.split(b"\n") if line.strip().isdigit())


def parse_row(line: str) -> tuple[int, GpuReading] | None:
    """GPU index and reading from one CSV row of FIELDS, the last of which may be missing, and others may follow."""
    rows, _ = split_rows(line)
    if not rows or len(rows[0]) < len(FIELDS) - 1:
        return None
    words = rows[0]
    fault, used, total = fault_in(words[1:]), number(words[1]), number(words[2])
    if fault:  # a GPU that has to be reset says 0 MiB and 0 %
        return int(words[0]), GpuReading(fault=fault)
    return int(words[0]), GpuReading(
        memory_used_mib=None if used is None else int(used),
        memory_total_mib=None if total is None else int(total),
        util_pct=number(words[3]),
        power_w=number(words[4]),
        temperature_c=number(words[5]),
        throttle=_throttle(words[6]) if len(words) >= len(FIELDS) else (),
    )


def _throttle(word: str) -> tuple[str, ...]:
    try:
        bits = int(word, 16)
    except ValueError:
        return ()
    return tuple(name for bit, name in REASONS.items() if bits & bit)
