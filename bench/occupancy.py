"""How full the generator keeps servers: slots at work of those there are, tokens on disk of those decoded.

Run: python bench/occupancy.py [--gpus 2] [--seconds 60] [--mean-tokens 120]

The lab's simulated SGLang servers as processes, `--concurrency auto`. After a warm-up, twice a second what /v1/loads
says runs and waits, and over the window the decoded tokens of /metrics beside the output tokens of progress.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lab.gpu import state  # noqa: E402

FIRST_PORT = 39_500
BARS = (0.98, 0.97)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=25.0)
    parser.add_argument("--mean-tokens", type=int, default=120)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        state.write(folder, options.gpus, "rtx-pro-6000", load_seconds=0.5, speed=20.0, mean_tokens=options.mean_tokens)
        urls = [_start_server(folder, gpu, stack) for gpu in range(options.gpus)]
        _start_generator(folder, urls, stack)
        time.sleep(options.warm_up)
        _print_window(urls, folder / "out/progress.json", options.seconds)


def _start_server(folder: Path, gpu: int, stack: ExitStack) -> str:
    port = FIRST_PORT + os.getpid() % 400 * 4 + gpu
    environment = {
        **os.environ, "RACKHAND_LAB_DIR": str(folder), "PYTHONPATH": f"{ROOT / 'lab/site'}:{ROOT}",
        "CUDA_VISIBLE_DEVICES": str(gpu),
    }  # fmt: skip
    flags = ["--model-path", "Qwen/Qwen3.6-27B-FP8", "--port", str(port), "--enable-metrics"]
    log = stack.enter_context((folder / f"gpu{gpu}.log").open("wb"))
    argv = [sys.executable, "-m", "sglang.launch_server", *flags]
    process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    stack.callback(_end, process)
    deadline = time.monotonic() + 60
    while "fired up and ready" not in (folder / f"gpu{gpu}.log").read_text():
        assert process.poll() is None and time.monotonic() < deadline, (folder / f"gpu{gpu}.log").read_text()[-2000:]
        time.sleep(0.2)
    return f"http://127.0.0.1:{port}"


def _start_generator(folder: Path, urls: list[str], stack: ExitStack) -> None:
    prompts = folder / "prompts.jsonl"
    with prompts.open("w") as file:
        for index in range(200_000):
            file.write(json.dumps({"prompt": f"Tell {index} tales, each in its own way."}) + "\n")
    servers = [word for url in urls for word in ("--server", url)]
    argv = [sys.executable, "-m", "remote", "generate", "--prompts", prompts, "--output", folder / "out", *servers]
    log = stack.enter_context((folder / "generation.log").open("wb"))
    sampling = ["--sampling", '{"max_tokens": 4096}', "--drain-timeout", "1"]
    process = subprocess.Popen([*argv, *sampling], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _print_window(urls: list[str], progress: Path, seconds: float) -> None:
    shares: dict[str, list[float]] = {url: [] for url in urls}
    queues: dict[str, list[int]] = {url: [] for url in urls}
    began, decoded, written = time.monotonic(), sum(map(_decoded, urls)), _written(progress)
    while time.monotonic() < began + seconds:
        for url in urls:
            load = json.loads(_get(f"{url}/v1/loads"))["loads"][0]
            shares[url].append(load["num_running_reqs"] / load["max_running_requests"])
            queues[url].append(load["num_waiting_reqs"])
        time.sleep(0.5)
    decoded, written = sum(map(_decoded, urls)) - decoded, _written(progress) - written
    took = time.monotonic() - began
    for url in urls:
        running, queue = statistics.mean(shares[url]), statistics.mean(queues[url])
        empty = sum(1 for waiting in queues[url] if waiting == 0) / len(queues[url])
        print(f"{url}  slots at work {running:.3f} (bar {BARS[0]})  queue mean {queue:.1f}, empty {empty:.0%} of looks")
    rates = f"client {written / took:.0f} tok/s, servers {decoded / took:.0f} tok/s"
    print(f"{rates}: {written / decoded:.3f} (bar {BARS[1]})")
    print(f"{took:.0f} s, load {os.getloadavg()[0]:.1f}")


def _decoded(url: str) -> float:
    lines = _get(f"{url}/metrics").splitlines()
    values = [line.rpartition(" ")[2] for line in lines if "realtime_tokens_total{" in line and 'mode="decode"' in line]
    return sum(map(float, values))


def _written(progress: Path) -> int:
    return int(json.loads(progress.read_text())["total_output_tokens"])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        return str(answer.read().decode())


if __name__ == "__main__":
    main()
