"""The generator's speed beside a floor and its peers: same null server, same core, in one go.

Run: python bench/generator.py [--quick] [--count N] [--rounds 3] [--datatrove PYTHON]

The null server (8 ports, 50 ms) has the last core, the measured process the first. 64 requests in flight a port,
prompts of 2 KB, answers of 200 bytes and of 8 KB. Requests/s are counted by the server, from its first answer to its
last; CPU is the whole process's, its start too; medians over the rounds, each of which runs all of them in turn. `ours`
is durable; so is nobody else.
--datatrove names the Python of an environment with datatrove, aiosqlite, httpx, openai, orjson and xxhash; without it
that row is left out; it gets 3,000 requests, as it writes its cache for long afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.generator_peers import SLOTS, prompt_text  # noqa: E402

PORTS, LAT_MS, PROMPT_BYTES = 8, 50, 2048
ANSWERS = {"short": 200, "8 KB": 8192}
BARS = {"library": 0.8, "datatrove": 4.0}
DATATROVE_NEEDS = ("aiosqlite", "httpx", "openai", "orjson", "xxhash", "datatrove.pipeline.inference.run_inference")
"""datatrove imports most of them only once its first requests are under way."""


@dataclass(frozen=True)
class Figures:
    """`cpu_ms` per request of the measured process; `rss_mib` its peak."""

    rate: float
    cpu_ms: float
    rss_mib: float
    most: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3,000 requests, one round: does it run at all")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", metavar="PYTHON")
    options = parser.parse_args()
    if options.quick:
        options.count, options.rounds = 3_000, 1
    names = ["floor", "library", "ours", *(["datatrove"] if options.datatrove else [])]
    if options.datatrove:
        _check_datatrove(options.datatrove)
    else:
        print("datatrove: left out; name a Python that can import it with --datatrove")
    print(f"{options.count} requests, {PORTS} x {SLOTS} in flight, {LAT_MS} ms, load {os.getloadavg()[0]:.1f}")
    for label, body in ANSWERS.items():
        runs: dict[str, list[Figures]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                count = min(options.count, 3_000) if name == "datatrove" else options.count
                runs[name].append(_run(name, count, body, options.datatrove))
        _print_table(label, {name: _median(found) for name, found in runs.items()})


def _check_datatrove(python: str) -> None:
    """Ends the program when that Python can't run datatrove."""
    try:
        tried = subprocess.run([python, "-c", f"import {', '.join(DATATROVE_NEEDS)}"], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"--datatrove {python}: {error.strerror}; name a Python that can import datatrove")
    if tried.returncode:
        reason = tried.stderr.strip().rpartition("\n")[2]
        sys.exit(f"--datatrove {python}: {reason}; install datatrove aiosqlite httpx openai orjson xxhash there")


def _print_table(label: str, found: dict[str, Figures]) -> None:
    print(f"\n{label + ' answers':16} requests/s  CPU s per 1,000  peak RSS MiB  most in flight")
    for name, f in found.items():
        print(f"{name:16} {f.rate:10.0f}  {f.cpu_ms:15.3f}  {f.rss_mib:12.0f}  {f.most:14d}")
    for name, f in found.items():
        if name != "ours":
            bar = f"  (bar {BARS[name]})" if name in BARS else ""
            print(f"ours / {name:9} {found['ours'].rate / f.rate:10.2f}{bar}")


def _median(found: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*(vars(f).values() for f in found), strict=True)))  # type: ignore[arg-type]


def _run(name: str, count: int, body: int, datatrove: str | None) -> Figures:
    server_argv = [sys.executable, ROOT / "bench/null_server.py", "--lat", str(LAT_MS), "--body", str(body)]
    server = subprocess.Popen([*server_argv, "--ports", str(PORTS)], stdout=subprocess.PIPE, text=True)
    try:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(server.pid, {cores[-1]})
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline())
        with tempfile.TemporaryDirectory() as folder:
            argv = _argv(name, ports, count, Path(folder), datatrove)
            cpu_s, rss_mib = _measure(argv, cores[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/_stats", timeout=10) as answer:
            stats = json.load(answer)
        assert stats["count"] >= count, f"{name}: {stats['count']} of {count} were asked"
        rate = (stats["count"] - 1) / (stats["last"] - stats["first"])
        return Figures(rate, cpu_s * 1000 / count, rss_mib, stats["most"])
    finally:
        server.kill()
        server.communicate()


def _argv(name: str, ports: list[int], count: int, folder: Path, datatrove: str | None) -> list[str]:
    if name != "ours":
        python = datatrove if name == "datatrove" and datatrove else sys.executable
        return [python, str(ROOT / "bench/generator_peers.py"), name, json.dumps(ports), str(count), str(PROMPT_BYTES)]
    prompts = folder / "prompts.jsonl"
    with prompts.open("w") as file:
        for index in range(count):
            file.write(json.dumps({"id": index, "prompt": prompt_text(index, PROMPT_BYTES)}) + "\n")
    servers = [word for port in ports for word in ("--server", f"http://127.0.0.1:{port}")]
    where = ["--prompts", str(prompts), "--output", str(folder / "out"), "--concurrency", str(SLOTS)]
    return [sys.executable, "-m", "remote", "generate", *where, *servers]


def _measure(argv: list[str], core: int) -> tuple[float, float]:
    """CPU seconds and peak RSS (MiB) of a process that is bound to one core."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        os.sched_setaffinity(process.pid, {core})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(argv[:4])} ended with {process.returncode}: {said.read()[-2000:].decode()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
