"""nvidia-smi of the lab: answers GPU queries from the state directory, as the real one does inside a container."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.faults import faults_of
from lab.gpu.smi_faults import NO_DRIVER, play_whole, spoil
from lab.gpu.state import (
    DRIVER_VERSION,
    Gpu,
    observe_activity,
    observe_free_mib,
    observe_used_mib,
    read_gpus,
    state_dir,
)

NOT_APPLICABLE = "[N/A]"
NOT_SUPPORTED = "[Not Supported]"
IDLE, POWER_CAP, HW_SLOWDOWN = 0x1, 0x4, 0x8
THROTTLES = {
    "power_cap": POWER_CAP,
    "thermal": 0x20,
    "hw_thermal": HW_SLOWDOWN | 0x40,
    "power_brake": HW_SLOWDOWN | 0x80,
}
"""What the fault `throttle` shows: the hardware's slowdown has a bit of its own beside its cause."""
HOT_C = 91


class Reading(NamedTuple):
    """One GPU as it is now."""

    gpu: Gpu
    used_mib: int
    free_mib: int
    running: int
    cap: int
    faults: Mapping[str, Mapping[str, Any]]

    @property
    def says(self) -> str:
        """The fault `smi`: how it shows that it can't be read; "" when it can."""
        return str(self.faults.get("smi", {}).get("says", ""))

    @property
    def throttle(self) -> str:
        """Why it works more slowly than it could, as the fault says; "" without one or without work."""
        return str(self.faults.get("throttle", {}).get("reason", "")) if self.running else ""

    @property
    def reasons(self) -> int:
        """clocks_throttle_reasons.active."""
        if not self.running:
            return IDLE
        return THROTTLES.get(self.throttle, 0) | (POWER_CAP if self.load > 0.9 and not self.throttle else 0)

    @property
    def util_pct(self) -> int:
        busy = 99 + (self.load > 0.5) if self.running else 0
        return min(busy, round(float(self.faults.get("starved", {}).get("util", 100))))

    @property
    def temperature_c(self) -> int:
        return HOT_C if "thermal" in self.throttle else round(31 + 36 * self.power_w / self.gpu.kind.power_limit_w)

    @property
    def load(self) -> float:
        return min(1.0, self.running / self.cap) if self.cap else 0.0

    @property
    def power_w(self) -> float:
        kind = self.gpu.kind
        if not self.running:
            return kind.power_idle_w + (60.0 if self.used_mib > kind.memory_idle_mib else 0.0)
        share = 0.6 if self.throttle else self.util_pct / 100
        return kind.power_limit_w * (0.82 + 0.17 * self.load) * share


class Request(NamedTuple):
    """What the command line asks for."""

    fields: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    chosen: tuple[str, ...] = ()
    listing: bool = False
    loop_s: float | None = None


FIELDS: dict[str, tuple[str, Callable[[Reading], str]]] = {
    "timestamp": ("", lambda _: time.strftime("%Y/%m/%d %H:%M:%S") + f".{int(time.time() * 1000) % 1000:03d}"),
    "index": ("", lambda r: str(r.gpu.number)),
    "uuid": ("", lambda r: r.gpu.uuid),
    "name": ("", lambda r: r.gpu.kind.name),
    "serial": ("", lambda _: NOT_APPLICABLE),
    "count": ("", lambda _: str(len(read_gpus(state_dir())))),
    "driver_version": ("", lambda _: DRIVER_VERSION),
    "pci.bus_id": ("", lambda r: r.gpu.pci_bus_id),
    "compute_cap": ("", lambda r: r.gpu.kind.compute_capability),
    "persistence_mode": ("", lambda _: "Enabled"),
    "mig.mode.current": ("", lambda r: "Disabled" if r.gpu.kind.key == "b200" else NOT_APPLICABLE),
    "pstate": ("", lambda r: "P0" if r.running or r.gpu.kind.key == "b200" else "P8"),
    "memory.total": ("MiB", lambda r: str(r.gpu.kind.memory_total_mib)),
    "memory.reserved": ("MiB", lambda r: str(r.gpu.kind.memory_reserved_mib)),
    "memory.used": ("MiB", lambda r: str(r.used_mib)),
    "memory.free": ("MiB", lambda r: str(r.free_mib)),
    "utilization.gpu": ("%", lambda r: str(r.util_pct)),
    "utilization.memory": ("%", lambda r: str(round(58 + 30 * r.load)) if r.running else "0"),
    "power.draw": ("W", lambda r: f"{r.power_w:.2f}"),
    "power.draw.instant": ("W", lambda r: f"{r.power_w:.2f}"),
    "power.draw.average": ("W", lambda r: f"{r.power_w:.2f}"),
    "power.limit": ("W", lambda r: f"{r.gpu.kind.power_limit_w:.2f}"),
    "enforced.power.limit": ("W", lambda r: f"{r.gpu.kind.power_limit_w:.2f}"),
    "temperature.gpu": ("", lambda r: str(r.temperature_c)),
    "temperature.memory": ("", lambda _: "N/A"),
    "fan.speed": ("%", lambda _: NOT_APPLICABLE),
    "clocks.sm": ("MHz", lambda r: "2280" if r.running else "180"),
    "clocks.mem": ("MHz", lambda r: "12481" if r.running else "405"),
    "clocks_throttle_reasons.active": ("", lambda r: f"0x{r.reasons:016X}"),
    "clocks_throttle_reasons.hw_thermal_slowdown": ("", lambda r: "Active" if r.reasons & 0x40 else "Not Active"),
    "clocks_throttle_reasons.sw_power_cap": ("", lambda r: "Active" if r.reasons & POWER_CAP else "Not Active"),
    "ecc.mode.current": ("", lambda _: "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda _: "0"),
    "retired_pages.pending": ("", lambda _: NOT_SUPPORTED),
}
ALIASES = {
    "gpu_uuid": "uuid",
    "gpu_name": "name",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
}
APP_FIELDS = ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid", "process_name", "used_memory")


def parse(argv: list[str]) -> Request | str:
    """The request, or the text of the error."""
    request = Request()
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while words:
        word = words.pop(0)
        if word in ("-L", "--list-gpus"):
            request = request._replace(listing=True)
            continue
        value = words.pop(0) if words else ""
        items = tuple(item.strip() for item in value.split(",") if item.strip())
        match word:
            case "--query-gpu":
                request = request._replace(fields=items)
            case "--query-compute-apps":
                request = request._replace(apps=items)
            case "--format":
                request = request._replace(options=frozenset(items))
            case "-i" | "--id":
                request = request._replace(chosen=items)
            case "-l" | "--loop" | "-lms" | "--loop-ms" if value.isdigit():
                request = request._replace(loop_s=int(value) / (1000 if word.endswith("ms") else 1))
            case _:
                return f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{word}"
    return _check(request)


def _check(request: Request) -> Request | str:
    asked = request.fields + request.apps
    if asked and "csv" not in request.options:
        return "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help."
    known = {*FIELDS, *ALIASES} if request.fields else set(APP_FIELDS)
    wrong = next((f for f in asked if f.replace("clocks_event_reasons", "clocks_throttle_reasons") not in known), None)
    return request if wrong is None else f'Field "{wrong}" is not a valid field to query.\n'


def observe(directory: Path, chosen: tuple[str, ...]) -> list[Reading]:
    """The readings of the chosen GPUs (index, UUID or bus id; empty: all)."""
    found = []
    for gpu in read_gpus(directory):
        if not chosen or {str(gpu.number), gpu.uuid, gpu.pci_bus_id} & set(chosen):
            used, (running, cap) = observe_used_mib(directory, gpu), observe_activity(directory, gpu)
            faults = faults_of(directory, gpu.number)
            found.append(Reading(gpu, used, observe_free_mib(directory, gpu), running, cap, faults))
    return found


def render(request: Request, readings: list[Reading]) -> list[str]:
    """The lines of a query, a listing or the short table."""
    if request.listing:
        return [f"GPU {r.gpu.number}: {r.gpu.kind.name} (UUID: {r.gpu.uuid})" for r in readings]
    if request.apps:
        # Inside a container's PID namespace the driver reports no process: an empty list doesn't mean an idle GPU.
        return [] if "noheader" in request.options else [", ".join(request.apps)]
    if not request.fields:
        return render_table(readings)
    lines = []
    units = "nounits" not in request.options
    names = [f.replace("clocks_event_reasons", "clocks_throttle_reasons") for f in request.fields]
    columns = [FIELDS[ALIASES.get(n, n)] for n in names]
    if "noheader" not in request.options:
        lines.append(", ".join(f"{n} [{u}]" if u else n for n, (u, _) in zip(request.fields, columns, strict=True)))
    for reading in readings:
        cells = [(value(reading), unit) for unit, value in columns]
        lines.append(", ".join(f"{v} {u}" if u and units and not v.startswith("[") else v for v, u in cells))
    return lines


def render_spoilt(request: Request, readings: list[Reading]) -> tuple[list[str], int]:
    """As `render`, with what the fault `smi` makes of a query's rows; and the exit status."""
    lines = render(request, readings)
    if not request.fields:
        return lines, 0
    rows, after, status = lines[len(lines) - len(readings) :], list[str](), 0
    lines = lines[: len(lines) - len(readings)]
    for reading, row in zip(readings, rows, strict=True):
        instead, last, code = spoil(reading.says, request.fields, reading.gpu.pci_bus_id, row)
        lines, after, status = lines + instead, after + last, max(status, code)
    return lines + after, status


def render_table(readings: list[Reading]) -> list[str]:
    """A short form of the table that plain `nvidia-smi` prints."""
    rule = "+" + "-" * 88 + "+"
    lines = [rule, f"| NVIDIA-SMI {DRIVER_VERSION} (simulated)".ljust(89) + "|", rule]
    for r in readings:
        memory = f"{r.used_mib}MiB / {r.gpu.kind.memory_total_mib}MiB"
        text = f"| {r.gpu.number:3}  {r.gpu.kind.name:46} {r.power_w:4.0f}W  {memory}"
        lines.append(text.ljust(89) + "|")
    return [*lines, rule]


def main(argv: list[str]) -> int:
    """Exit status as nvidia-smi: 2 for a wrong command line, 6 for no such GPU, 9 without a driver."""
    request = parse(argv)
    if isinstance(request, str):
        print(request)
        return 2
    while True:
        try:
            readings = observe(state_dir(), request.chosen)
        except FileNotFoundError:
            print(NO_DRIVER)
            return 9
        if not readings:
            print("No devices were found")
            return 6
        if told := play_whole({reading.says for reading in readings}):
            print(told[0])
            return told[1]
        lines, status = render_spoilt(request, readings)
        for line in lines:
            print(line, flush=request.loop_s is not None)
        if request.loop_s is None or status == 15:
            return status
        time.sleep(request.loop_s)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)
