"""How full the generator keeps the lab's servers: slots at work of those there are, tokens on disk of those decoded.

Run: python bench/occupancy.py [--window 120] [--faster 10] [--json FILE]      (root; about seven minutes)

The whole lab: Proxmox host, container, 8 simulated SGLang servers of an RTX PRO 6000 with the field report's flags
(cap 72); deploy, restart-servers, `resume --concurrency auto`. Lengths are log-normal, 2,660 tokens in the mean,
thinking on. Every decode step is `--faster` times as fast, which is harder for the feeder: its own times weigh as much
more. The figures are the servers' own, asked for in the container; tokens are those of the records on disk, each by the
share of its time that lies in the window, so that the window's edges cut nothing off and add nothing.
After it: one server draining and active again, one four times as slow, one restarted with another cap.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import feeding_figures as figures  # noqa: E402
from feeding_figures import Sample, Window  # noqa: E402

from demo.figures import PHASES  # noqa: E402
from demo.prompts import write_prompts  # noqa: E402
from lab import cgroups, container, faults, host  # noqa: E402
from lab.place import LabOptions, Place  # noqa: E402
from rackhand.load import load  # noqa: E402
from rackhand.report import Report  # noqa: E402
from rackhand.workflows.deploy import deploy  # noqa: E402
from rackhand.workflows.job import Resume, Stop, resume, stop  # noqa: E402
from rackhand.workflows.servers import Restart, restart_servers  # noqa: E402

GPUS, VMID, FIRST_PORT = 8, 200, 30000
MEAN_TOKENS, SIGMA, MAX_TOKENS = 2660.0, 0.8, 32768
ROWS = 40_000
BARS = {"occupancy": 0.98, "tokens": 0.97, "obeyed_s": 1.0, "full_s": 10.0}
TICK_S, WARM_UP_S, SETTLE_S, SLOW_S, FULL_S = 0.25, 45.0, 15.0, 60.0, 30.0
DRAINED, SLOW, RESTARTED = 5, 3, 6
BEFORE, AFTER = PHASES[0].settings, PHASES[1].settings


class Stage:
    """The lab, its fleet, and what its servers say."""

    def __init__(self, place: Place, folder: Path, faster: float) -> None:
        self.place, self._faster = place, faster
        write_prompts(place.state / "prompts.jsonl", ROWS)
        inventory = folder / "lab.yaml"
        text = (ROOT / "inventory/lab.yaml").read_text().replace("../.lab", str(place.state))
        inventory.write_text(text.replace("stop_timeout_s: 30", "stop_timeout_s: 5"))
        fleet = load(inventory, os.environ)
        job = fleet.jobs[0]
        job = dataclasses.replace(job, sampling={**job.sampling, "max_tokens": MAX_TOKENS})
        self.fleet = dataclasses.replace(fleet, jobs=(job,))
        self.output = place.workspace(VMID) / Path(job.output).name
        self.control = place.workspace(VMID) / "rackhand/control.json"
        self.samples: list[Sample] = []

    def go_first(self) -> None:
        """The lab's CPU goes before what else the machine does: control groups share it, whatever their size."""
        for group in cgroups.groups(self.place):
            for name, most in (("cpu.shares", "24576"), ("cpu.weight", "10000")):
                with contextlib.suppress(OSError):
                    if (group / name).exists():
                        (group / name).write_text(most)

    def set_pace(self, *, slow_gpu: int | None = None) -> None:
        """`slow_gpu` decodes four times as slowly as the others."""
        faults.set_fault(self.place.gpu_dir(VMID), None, "slow", factor=1 / self._faster)
        if slow_gpu is not None:
            faults.set_fault(self.place.gpu_dir(VMID), slow_gpu, "slow", factor=4 / self._faster)

    def start(self) -> None:
        self.go_first()
        self.set_pace()
        _check(deploy(self.fleet, self.fleet.hosts, say=_quiet))
        self.restart(None, AFTER)
        _check(resume(self.fleet, self.fleet.jobs[0], Resume(concurrency="auto"), say=_quiet))

    def restart(self, gpu: int | None, settings: Any) -> None:
        gpus = None if gpu is None else (gpu,)
        _check(restart_servers(self.fleet, self.fleet.hosts, Restart(gpus=gpus, overrides=settings), say=_quiet))

    def stop(self) -> None:
        _check(stop(self.fleet, self.fleet.hosts, Stop(timeout_s=60.0), say=_quiet))

    def wish(self, gpu: int, word: str) -> float:
        """Writes control.json as the verbs do; gives the time."""
        wishes = json.loads(self.control.read_text())
        wishes["servers"][_url(gpu)] = word
        draft = self.control.with_name(".control.bench")
        draft.write_text(json.dumps(wishes))
        draft.replace(self.control)
        return time.time()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Samples come from inside the container meanwhile."""
        words = ("/opt/sglang/bin/python", str(ROOT / "bench/loads.py"), str(TICK_S), *map(_url, range(GPUS)))
        argv = container.attach_argv(self.place, VMID, *words, keep_env=False)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as telling:
            reader = threading.Thread(target=self._read, args=(telling,), daemon=True)
            reader.start()
            try:
                yield
            finally:
                cast("IO[str]", telling.stdin).close()
                reader.join()

    def _read(self, telling: subprocess.Popen[str]) -> None:
        for line in telling.stdout or ():
            self.samples.append(json.loads(line))

    def cpu_s(self) -> Counter[str]:
        """CPU seconds so far, by part."""
        found: Counter[str] = Counter()
        for pid in cgroups.members(self.place, f"ct/{VMID}"):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
                used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                part = "generator" if b"generate\0" in command else "servers" if b"sglang" in command else "watching"
                found[part] += used
        return found

    def records(self) -> list[dict[str, Any]]:
        """Of all shards, without their texts."""
        kept = ("created", "latency_s", "usage", "server", "attempts")
        found = []
        for shard in sorted(self.output.glob("completions-*.jsonl")):
            with shard.open("rb") as lines:
                found += [{name: record[name] for name in kept} for record in map(json.loads, lines)]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=float, default=120.0, help="seconds of the steady window")
    parser.add_argument("--faster", type=float, default=10.0, help="times as fast as real decoding")
    parser.add_argument("--json", type=Path, help="the figures go there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "lab"
        wanted = LabOptions(
            gpus=GPUS, load_seconds=3.0, release_seconds=1.0, speed=5.0, mean_tokens=MEAN_TOKENS, length_sigma=SIGMA
        )
        try:
            found = _play(Stage(host.up(ROOT, wanted, state=state), Path(folder), options.faster), options.window)
        finally:
            host.down(ROOT, state=state)
    _print(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if found["missed"] else 0)


def _play(stage: Stage, seconds: float) -> dict[str, Any]:
    stage.start()
    with stage.watched():
        time.sleep(WARM_UP_S)
        before, window = stage.cpu_s(), _wait(seconds)
        used = stage.cpu_s() - before
        _quiet("", str(figures.fed(stage.samples, window, 0)))
        scenes = {}
        for name, scene in {"drain": _drain, "slow": _slow, "restart": _restart}.items():
            scenes[name] = scene(stage)
            _quiet("", f"{name}: {scenes[name]}")
        stage.stop()
    records = stage.records()
    servers = [figures.fed(stage.samples, window, gpu) for gpu in range(GPUS)]
    decoded = sum(server.decoded for server in servers)
    span = [sample["time"] for sample in window.inside(stage.samples)]
    counted = Window(span[0], span[-1])
    found = {
        "seconds": window.seconds,
        "servers": [dataclasses.asdict(server) for server in servers],
        "decoded_tok_s": decoded / counted.seconds,
        "tokens": figures.tokens_in(records, counted) / decoded,
        "tokens_ended": figures.tokens_ended_in(records, counted) / decoded,
        "mean_tokens": sum(record["usage"]["completion_tokens"] for record in records) / len(records),
        "mean_latency_s": sum(record["latency_s"] for record in records) / len(records),
        "cpu": {part: round(seconds / window.seconds, 2) for part, seconds in used.items()},
        "load": os.getloadavg()[0],
        **scenes,
    }
    return {**found, "missed": _missed(found)}


def _drain(stage: Stage) -> dict[str, float]:
    """Seconds until draining and then active were obeyed, as the server's requests show it."""
    told = []
    for word in ("draining", "active"):
        at = stage.wish(DRAINED, word)
        time.sleep(5.0)
        told.append(Window(at, at + 5.0))
    return {
        "draining_s": figures.last_rise_s(stage.samples, told[0], DRAINED),
        "active_s": figures.first_rise_s(stage.samples, told[1], DRAINED),
        "full_s": _full_s(stage, told[1].begin, DRAINED, stage.samples[-1]["servers"][DRAINED]["cap"]),
    }


def _slow(stage: Stage) -> dict[str, float]:
    """The least occupancy of the others while one server is four times as slow, and its own."""
    stage.set_pace(slow_gpu=SLOW)
    time.sleep(SETTLE_S)
    window = _wait(SLOW_S)
    shares = [figures.fed(stage.samples, window, gpu).share for gpu in range(GPUS)]
    faults.clear_faults(stage.place.gpu_dir(VMID), SLOW)
    return {"others": min(share for gpu, share in enumerate(shares) if gpu != SLOW), "its_own": shares[SLOW]}


def _restart(stage: Stage) -> dict[str, float]:
    """Seconds from `active` until a restarted server is full, with a cap of 37 and then of 72."""
    found = {}
    for settings in (BEFORE, AFTER):
        stage.restart(RESTARTED, settings)
        active_at = stage.control.stat().st_mtime
        cap = stage.samples[-1]["servers"][RESTARTED]["cap"]
        found[f"full_at_{cap}_s"] = _full_s(stage, active_at, RESTARTED, cap)
    return found


def _full_s(stage: Stage, since: float, gpu: int, cap: int) -> float:
    while (took := figures.full_s(stage.samples, Window(since, since + FULL_S), gpu, cap)) is None:
        if time.time() > since + FULL_S:
            return float("inf")
        time.sleep(TICK_S)
    return took


def _missed(found: dict[str, Any]) -> list[str]:
    bars = [
        ("occupancy", min(server["share"] for server in found["servers"]) >= BARS["occupancy"]),
        ("occupancy by counters", min(server["counted"] for server in found["servers"]) >= BARS["occupancy"]),
        ("tokens", found["tokens"] >= BARS["tokens"]),
        ("occupancy beside a slow server", found["slow"]["others"] >= BARS["occupancy"]),
        ("draining", found["drain"]["draining_s"] <= BARS["obeyed_s"] + TICK_S),
        ("active", found["drain"]["active_s"] <= BARS["obeyed_s"] + TICK_S),
        ("full after a restart", max(found["restart"].values()) <= BARS["full_s"]),
    ]
    return [name for name, met in bars if not met]


def _print(found: dict[str, Any]) -> None:
    print(
        f"{found['seconds']:.0f} s; a request takes {found['mean_latency_s']:.1f} s, {found['mean_tokens']:.0f} tokens"
    )
    print("GPU  cap  slots at work  by counters  queue  looks without a queue")
    for gpu, server in enumerate(found["servers"]):
        shares = f"{server['share']:13.3f}  {server['counted']:11.3f}  {server['queue']:5.2f}  {server['empty']:21.1%}"
        print(f"{gpu:3}  {server['cap']:3}  {shares}")
    print(f"servers {found['decoded_tok_s']:,.0f} tok/s; of it on disk {found['tokens']:.3f} (bar {BARS['tokens']}),")
    print(f"  counting whole records that ended in the window {found['tokens_ended']:.3f}")
    for scene in ("drain", "slow", "restart"):
        print(f"{scene}: " + ", ".join(f"{name} {value:.3f}" for name, value in found[scene].items()))
    print(f"CPU, cores: {found['cpu']}; load {found['load']:.1f}")
    print(f"MISSED: {', '.join(found['missed'])}" if found["missed"] else "all bars met")


def _wait(seconds: float) -> Window:
    begin = time.time()
    time.sleep(seconds)
    return Window(begin, time.time())


def _check(report: Report) -> None:
    if report.exit_code:
        lines = [f"{row.where}: {row.error or [outcome.what for outcome in row.outcomes]}" for row in report.rows]
        sys.exit(f"{report.verb} ended with {report.exit_code}: {'; '.join(lines)}")


def _url(gpu: int) -> str:
    return f"http://127.0.0.1:{FIRST_PORT + gpu}"


def _quiet(where: str, text: str) -> None:
    del where
    print(f"  {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
