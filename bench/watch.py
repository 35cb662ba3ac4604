"""What a watch costs: CPU and memory of the watch's process with eight servers at work, nvidia-smi not counted.

Run: python bench/watch.py [SECONDS]. The servers are stand-ins: /v1/loads and the 83 KB of /metrics as recorded, a
log that gets a decode line, a prefill line and two access lines each per server every 1.7 s. Interval 2 s. The ten
minutes before are rebuilt from the logs first; what that costs is in the first sample's share.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rackhand import payload  # noqa: E402
from rackhand.contract import to_json, wire  # noqa: E402
from rackhand.contract.watch import WatchedServer, WatchRequest  # noqa: E402
from tests.remote_watch.fake_server import FakeServer, decode_line, ready_line, serving  # noqa: E402

ACCESS = '[2026-05-09 22:10:39] INFO:     127.0.0.1:51722 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
SERVERS = 8


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fakes = [FakeServer() for _ in range(SERVERS)]
        urls = [stack.enter_context(serving(fake)) for fake in fakes]
        logs = [Path(folder) / f"gpu{gpu}.log" for gpu in range(SERVERS)]
        for log in logs:
            log.write_text(
                ready_line(time.time() - 700, 72) + "".join(_burst(time.time() - 600 + n) for n in range(600))
            )
        stop = threading.Event()
        threading.Thread(target=_write, args=(logs, fakes, stop), daemon=True).start()
        began = time.time()
        events = _watch(urls, logs, folder, seconds)
        stop.set()
    samples = [event for event in events if not event["rebuilt"]]
    first_s = samples[0]["time"] - began
    rebuilt = len(events) - len(samples)
    print(f"past   {rebuilt} samples rebuilt, first of the present after {first_s:.1f} s")
    cpu = [sample["watcher"]["cpu_pct"] for sample in samples[1:]]
    memory = [sample["watcher"]["rss_mib"] for sample in samples]
    rate = [gpu["tok_s"] for gpu in samples[-1]["gpus"]]
    print(f"{len(samples)} samples, start {samples[0]['watcher']['cpu_pct']} % of a core")
    print(f"CPU    mean {statistics.fmean(cpu):.2f} % of a core, highest {max(cpu):.2f} %")
    print(f"memory highest {max(memory):.1f} MiB")
    print(f"last   {rate} tok/s, {samples[-1]['gpus'][0]}")


def _watch(urls: list[str], logs: list[Path], home: str, seconds: float) -> list[dict[str, Any]]:
    servers = tuple(WatchedServer(gpu, url, str(log)) for gpu, (url, log) in enumerate(zip(urls, logs, strict=True)))
    request = wire.ask("watch", to_json(WatchRequest(home, servers, until_eof=True, past_s=600)), "python3")
    app = payload.build().data
    argv = [sys.executable, "-c", wire.BOOT, str(len(app)), "bench", "python3"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(app + request)
        process.stdin.flush()
        timer = threading.Timer(seconds, process.stdin.close)
        timer.start()
        texts = [wire.hear("bench", line)[1] for line in process.stdout]
        events = [json.loads(text) for text in texts if text is not None]
        timer.cancel()
    return [event for event in events if event["event"] == "sample"]


def _write(logs: list[Path], fakes: list[FakeServer], stop: threading.Event) -> None:
    while not stop.wait(1.7):
        for log, fake in zip(logs, fakes, strict=True):
            fake.decoded += 1175 * 1.7
            with log.open("a") as file:
                file.write(_burst(time.time()))


def _burst(at: float) -> str:
    return decode_line(at) + 2 * ACCESS


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0)
