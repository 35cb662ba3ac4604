"""A run of millions of prompts on a null server, killed on the way: memory, descriptors and rate by how far it is.

Run: python bench/long_run.py [--prompts 10000000] [--kills 3] [--folder DIR]

The null server (8 ports, 20 ms, 64 requests in flight each, answers of 60 bytes) has the last core, the generator the
first. At even distances the generator is killed with SIGKILL and started again by the same command. At the end every
shard is read: each index must stand there exactly once. Ten million take about 8 GB of disk and an hour; the exit code
is 1 when something is lost or stands twice. Asked again: what the servers answered beyond one for each prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORTS, SLOTS, LAT_MS, ANSWER_BYTES = 8, 64, 20, 60
ROW = '{"id":%d,"prompt":"Say something about the number %d, briefly, then stop."}\n'
INDEX = re.compile(rb'^\{"index":(\d+),', re.MULTILINE)


@dataclass(frozen=True)
class Mark:
    """What was seen when `completed` prompts of all were done; `rss_mib` is the peak since the process began."""

    completed: int
    seconds: float
    rss_mib: float
    descriptors: int
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder otherwise")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _run(Path(folder), options.prompts, options.kills)


def _run(folder: Path, count: int, kills: int) -> None:
    prompts, output = folder / "prompts.jsonl", folder / "out"
    with prompts.open("w") as file:
        file.writelines(ROW % (index, index) for index in range(count))
    server_argv = [sys.executable, ROOT / "bench/null_server.py", "--lat", str(LAT_MS), "--body", str(ANSWER_BYTES)]
    server = subprocess.Popen([*server_argv, "--ports", str(PORTS)], stdout=subprocess.PIPE, text=True)
    try:
        os.sched_setaffinity(server.pid, {max(os.sched_getaffinity(0))})
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline())
        where = ["--prompts", str(prompts), "--output", str(output), "--concurrency", str(SLOTS)]
        servers = [word for port in ports for word in ("--server", f"http://127.0.0.1:{port}")]
        argv = [sys.executable, "-m", "remote", "generate", *where, *servers]
        stops = [count * (k + 1) // (kills + 1) for k in range(kills)]
        print(f"{count:,} prompts, SIGKILL at {', '.join(f'{stop:,}' for stop in stops) or 'no point'}")
        print(" completed     s   requests/s  CPU s per 1,000  peak RSS MiB  descriptors", flush=True)
        for stop in [*stops, None]:
            _segment(argv, output, count, stop)
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/_stats", timeout=10) as answer:
            answered = json.load(answer)["count"]
    finally:
        server.kill()
        server.communicate()
    lost, twice = _indices(output, count)
    again = answered - count
    print(f"lost {lost}, twice {twice}, asked again {again} after {kills} kills ({PORTS * SLOTS} in flight)")
    sys.exit(1 if lost or twice else 0)


def _segment(argv: list[str], output: Path, count: int, stop: int | None) -> None:
    """One process, from its start to its end or to its SIGKILL; a line for each tenth of all prompts."""
    with (output.parent / "generate.log").open("ab") as log:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    began = last = Mark(_completed(output), time.monotonic(), 0, 0, 0)
    tenth = max(1, count // 10)
    while process.poll() is None:
        time.sleep(0.5)
        now = _mark(process.pid, output)
        if now is None:
            continue
        if now.completed // tenth > last.completed // tenth:
            _print(now, last if last is not began else began)
            last = now
        if stop is not None and now.completed >= stop:
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"{now.completed:10,}  SIGKILL", flush=True)
            return
    if process.returncode:
        sys.exit(f"generate ended with {process.returncode}: {(output.parent / 'generate.log').read_text()[-2000:]}")


def _print(now: Mark, before: Mark) -> None:
    done, took = now.completed - before.completed, now.seconds - before.seconds
    cpu_s = (now.cpu_s - before.cpu_s) * 1000 / max(done, 1)
    words = f"{now.completed:10,} {took:5.0f}  {done / took:11.0f}  {cpu_s:15.3f}"
    print(f"{words}  {now.rss_mib:12.0f}  {now.descriptors:11d}", flush=True)


def _completed(output: Path) -> int:
    try:
        progress = json.loads((output / "progress.json").read_text())
    except (OSError, ValueError):
        return 0
    return int(progress["completed"]) + int(progress["completed_before"])


def _mark(pid: int, output: Path) -> Mark | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        rss_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Mark(_completed(output), time.monotonic(), rss_mib, descriptors, cpu_s)


def _indices(output: Path, count: int) -> tuple[int, int]:
    """How many indices of 0 .. count - 1 stand in no shard, and how many records stand there beyond the first."""
    seen, records = bytearray(count), 0
    for shard in sorted(output.glob("completions-*.jsonl")):
        with shard.open("rb") as file:
            for found in map(INDEX.match, file):
                assert found is not None, f"{shard.name}: a line that is no record"
                seen[int(found[1])] = 1
                records += 1
    return count - sum(seen), records - sum(seen)


if __name__ == "__main__":
    main()
