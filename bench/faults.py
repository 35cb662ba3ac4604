"""What bad servers and kills cost: ours beside a raw client under four policies, on the same null server, in one go.

Run: python bench/faults.py [--quick] [--rounds 3] [--part servers|random|window|kills ...] [--scenario NAME ...]

servers: one of 8 servers is bad; each runs 32 requests at once, for 800 ms: 320 requests/s at most, so that CPU limits
nobody. 4,800 prompts (2,400 for the hang), 3 attempts, a time-out of 5 s; `ours 120` has the default floor of 120 s for
it. t95 and t100: when the null server had answered so many, from the first request on; `wall` till the process's end.
A run is cut after 45 s. The bar: ours does all, fails none, and its t100 is at most 1.05 times that of the best policy
that loses nothing, medians over the rounds.
random: 2 % of 500, 0.5 % resets, 1 % empty, 1 % cut by length, 0.5 % torn bodies; one server, 512 in flight, 50 ms.
window: the same server answers 503 for 20 s from the first request on.
kills: SIGKILL when so many answers are out. The bar: asked again is at most the 512 in flight and one commit a kill;
one commit is the most answers of any 0.2 s.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.fault_policies import ATTEMPTS, SLOTS, TIMEOUT_S  # noqa: E402

PORTS, LAT_MS = 8, 800
CUT_S = 45.0
BAR = 1.05
SCENARIOS = {
    "all_good": [],
    "one_4x_slow": ["--slow", "0:4"],
    "one_500_at_once": ["--bad", "0:500"],
    "one_reset": ["--bad", "0:reset"],
    "one_hang": ["--bad", "0:hang"],
    "down_5s": ["--down", "0:2:7"],
}
POLICIES = ["static", "rr", "pull", "breaker"]
RANDOM = ["--p500", ".02", "--preset", ".005", "--pempty", ".01", "--plength", ".01", "--ptrunc", ".005"]
KILLS = [(4_000, [2_000]), (8_000, [2_000, 4_000, 6_000])]
COMMIT_S = 0.2
IN_FLIGHT = 512


@dataclass(frozen=True)
class Figures:
    """Times in seconds from the first request; `asked0` counts the requests that server 0 got."""

    wall: float
    done: int
    failed: int
    t95: float
    t100: float
    asked0: int


class Null:
    """The null server's process."""

    def __init__(self, ports: int, lat_ms: float, options: list[str]) -> None:
        argv = [sys.executable, ROOT / "tests/remote/null_server.py", "--ports", str(ports), "--lat", str(lat_ms)]
        self.process = subprocess.Popen([*argv, "--remember", *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ports: list[int] = json.loads(self.process.stdout.readline())

    def get(self, path: str, port: int = 0) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}{path}", timeout=30) as answer:
            return json.load(answer)

    def times(self) -> list[float]:
        """When each prompt got its first good answer, from the first request on."""
        found = self.get("/_answers")
        return sorted(at - found["asked"] for at in found["times"])

    def asked(self) -> int:
        return sum(self.get("/_stats", place)["requests"] for place in range(len(self.ports)))


@contextlib.contextmanager
def null_server(ports: int, lat_ms: float, options: list[str]) -> Iterator[Null]:
    null = Null(ports, lat_ms, options)
    try:
        yield null
    finally:
        null.process.kill()
        null.process.communicate()


class Ours:
    """The generator on its output in `folder`; `start` may be called again after a kill."""

    def __init__(self, null: Null, folder: Path, count: int, *options: str) -> None:
        prompts, self.output = folder / "prompts.jsonl", folder / "out"
        prompts.write_text("".join(f'{{"id": {i}, "prompt": "prompt {i}"}}\n' for i in range(count)))
        servers = [word for port in null.ports for word in ("--server", f"http://127.0.0.1:{port}")]
        where = ["--prompts", str(prompts), "--output", str(self.output), "--sampling", '{"max_tokens": 64}']
        self.argv = [sys.executable, "-m", "remote", "generate", *where, *servers, *options]

    def start(self) -> subprocess.Popen[str]:
        return _start(self.argv)

    def progress(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "progress.json").read_text())
        return found

    def records(self) -> list[dict[str, Any]]:
        shards = sorted(self.output.glob("completions-*.jsonl"))
        return [json.loads(line) for shard in shards for line in shard.read_bytes().split(b"\n")[:-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the prompts: does it run at all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", action="append", choices=["servers", "random", "window", "kills"])
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    options = parser.parse_args()
    share, rounds = (0.1, 1) if options.quick else (1.0, options.rounds)
    parts = options.part or ["servers", "random", "window", "kills"]
    print(f"load {os.getloadavg()[0]:.1f}")
    if "servers" in parts:
        compare_policies(options.scenario or list(SCENARIOS), rounds, share)
    if "random" in parts:
        measure_random(int(2_000 * share), rounds)
    if "window" in parts:
        measure_window(int(4_000 * share), 20 * share, rounds)
    if "kills" in parts:
        measure_kills(share)


def compare_policies(scenarios: list[str], rounds: int, share: float) -> None:
    print(f"{'':16} {'':9}  wall s   done  failed    t95   t100  on server 0")
    for scenario in scenarios:
        count = int((2_400 if scenario == "one_hang" else 4_800) * share)
        names = [*POLICIES, "ours", *(["ours 120"] if scenario == "one_hang" else [])]
        runs: dict[str, list[Figures]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                runs[name].append(_run_policy(name, count, SCENARIOS[scenario]))
        found = {name: _median(several) for name, several in runs.items()}
        for name, f in found.items():
            print(
                f"{scenario:16} {name:9} {f.wall:7.2f} {f.done:6.0f} {f.failed:7.0f} {f.t95:6.2f} {f.t100:6.2f}"
                f" {f.asked0:12.0f}"
            )
        whole = [f.t100 for name, f in found.items() if name in POLICIES and f.done == count]
        for name in names:
            if name.startswith("ours") and whole:
                ratio = found[name].t100 / min(whole)
                good = found[name].done == count and found[name].failed == 0 and ratio <= BAR
                print(f"{name} / best that loses nothing: {ratio:.2f}  (bar {BAR})  {'held' if good else 'MISSED'}")


def _run_policy(name: str, count: int, faults: list[str]) -> Figures:
    with null_server(PORTS, LAT_MS, ["--slots", str(SLOTS), *faults]) as null, tempfile.TemporaryDirectory() as folder:
        floor_s = "120" if name == "ours 120" else str(TIMEOUT_S)
        options = ["--concurrency", str(SLOTS), "--attempts", str(ATTEMPTS), "--timeout-floor", floor_s]
        ours = Ours(null, Path(folder), count, *options) if name.startswith("ours") else None
        script = ROOT / "bench/fault_policies.py"
        argv = ours.argv if ours else [sys.executable, str(script), name, json.dumps(null.ports), str(count)]
        said = _end(_start(argv), CUT_S)
        ended = time.monotonic()
        if ours:
            progress = ours.progress()
            result = {"done": progress["completed"], "failed": progress["failed"]}
        else:
            result = json.loads(said) if said else {"done": len(null.times()), "failed": 0}
        times = null.times()
        wall = ended - null.get("/_answers")["asked"]
        t95 = times[min(len(times), int(0.95 * result["done"])) - 1]
        return Figures(wall, result["done"], result["failed"], t95, times[-1], null.get("/_stats")["requests"])


def _median(found: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*(vars(f).values() for f in found), strict=True)))  # type: ignore[arg-type]


def _start(argv: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _end(process: subprocess.Popen[str], cut_s: float) -> str:
    """What it said; nothing when it was cut."""
    try:
        return process.communicate(timeout=cut_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return ""


def measure_random(count: int, rounds: int) -> None:
    print(f"\nrandom faults, {count} prompts")
    for _ in range(rounds):
        with null_server(1, 50, RANDOM) as null, tempfile.TemporaryDirectory() as folder:
            ours = Ours(null, Path(folder), count, "--concurrency", str(IN_FLIGHT))
            _end(ours.start(), CUT_S)
            rows, progress = ours.records(), ours.progress()
            empty = sum(not row["completion"] for row in rows)
            other = progress["failed"] - progress["rejected"]
            print(
                f"{'ours':22} {len(rows)} rows, {empty} empty, {progress['rejected']} rejected (bad twice),"
                f" {other} failed otherwise, {null.times()[-1]:.1f} s"
            )


def measure_window(count: int, window_s: float, rounds: int) -> None:
    print(f"\n{window_s:.0f} s of 503, {count} prompts")
    for _ in range(rounds):
        with null_server(1, 50, ["--down", f"0:0:{window_s}"]) as null, tempfile.TemporaryDirectory() as folder:
            ours = Ours(null, Path(folder), count, "--concurrency", str(IN_FLIGHT))
            _end(ours.start(), CUT_S + 2 * window_s)
            took_s, rows = null.times()[-1], len(ours.records())
            print(
                f"{'ours':22} {rows} rows, {ours.progress()['failed']} failed, {took_s:.1f} s:"
                f" {took_s - window_s:.1f} s after the window"
            )


def measure_kills(share: float) -> None:
    print(f"\n{'kills':24} asked again  generated twice  bar    rows")
    for full, stops in KILLS:
        count, kills = int(full * share), [int(at * share) for at in stops]
        with null_server(1, 50, []) as null, tempfile.TemporaryDirectory() as folder:
            ours = Ours(null, Path(folder), count, "--concurrency", str(IN_FLIGHT))
            for at in kills:
                _kill_at(null, ours, at)
            _end(ours.start(), CUT_S)
            again, twice = null.asked() - count, null.get("/_answers")["answers"] - count
            bar = len(kills) * (IN_FLIGHT + _most_within(null.times(), COMMIT_S))
            rows = [row["index"] for row in ours.records()]
            good = again <= bar and len(set(rows)) == len(rows) == count
            where = ", ".join(map(str, kills)) + f" of {count}"
            print(f"{where:24} {again:11} {twice:16} {bar:4} {len(rows):7}  {'held' if good else 'MISSED'}")


def _kill_at(null: Null, ours: Ours, answers: int) -> None:
    process = ours.start()
    while null.get("/_answers")["answers"] < answers:
        assert process.poll() is None, f"it ended before {answers} answers"
        time.sleep(0.02)
    process.kill()
    process.communicate()


def _most_within(times: list[float], span_s: float) -> int:
    return max(bisect.bisect_right(times, at + span_s) - place for place, at in enumerate(times))


if __name__ == "__main__":
    main()
