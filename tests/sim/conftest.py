"""Simulated servers as plain processes on this machine, each test with its own state directory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from lab import faults
from lab.gpu import state

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
PLAIN_GPU = 3
CHAT = "/v1/chat/completions"


def await_true(what: str, check: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Polls until `check` holds; fails naming what it waited for."""
    end = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < end, f"waited {deadline_s} s for {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    return state.start_ticks(pid) is not None


class Server:
    """One `python -m sglang.launch_server` and its log."""

    def __init__(self, directory: Path, gpu: int, flags: list[str], port: int | None = None) -> None:
        self.port = port or free_port()
        self.log = directory / f"server-{self.port}.log"
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {
            **os.environ,
            "RACKHAND_LAB_DIR": str(directory),
            "PYTHONPATH": f"{ROOT / 'lab/site'}:{ROOT}",
            "CUDA_VISIBLE_DEVICES": str(gpu),
        }
        words = ["--model-path", "Qwen/Qwen3.6-27B-FP8", "--port", str(self.port), *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *words],
                cwd=directory,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text().replace("\r", "\n")

    def lines(self, part: str) -> list[str]:
        return [line for line in self.text().splitlines() if part in line]

    def await_log(self, part: str) -> None:
        await_true(
            f"{part!r} in the log of port {self.port}",
            lambda: part in self.text() or self.process.poll() is not None,
        )
        assert part in self.text(), self.text()[-3000:]

    def await_ready(self) -> Server:
        self.await_log("The server is fired up and ready to roll!")
        return self

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=DEADLINE_S)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=DEADLINE_S)

    def chat(self, text: str, **options: object) -> httpx.Response:
        return self.post(CHAT, {"model": "any", "messages": [{"role": "user", "content": text}], **options})

    def children(self) -> dict[str, int]:
        """Child title → pid, as /proc shows them."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                parent = int(path.joinpath("stat").read_text().rpartition(") ")[2].split()[1])
                title = path.joinpath("cmdline").read_text().partition("\0")[0].strip()
                if parent == self.process.pid and title.startswith("sglang::"):
                    found[title.removeprefix("sglang::")] = int(path.name)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cards whose servers load in a blink."""
    directory = tmp_path_factory.mktemp("gpus")
    state.write(directory, 4, "rtx-pro-6000", load_seconds=0.3, release_seconds=0.3, speed=20.0, mean_tokens=10)
    return directory


@pytest.fixture
def start(gpus: Path) -> Iterator[Start]:
    """start(*flags, gpu=0, port=None) → Server; ended with the test."""
    started: list[Server] = []

    def make(*flags: str, gpu: int = 0, port: int | None = None) -> Server:
        started.append(Server(gpus, gpu, list(flags), port))
        return started[-1]

    yield make
    for server in started:
        server.end()
    everything = state.read_gpus(gpus)[:PLAIN_GPU]
    for gpu in everything:
        faults.clear_faults(gpus, gpu.number)
    await_true(
        "the GPUs' memory to come back",
        lambda: all(state.observe_used_mib(gpus, gpu) == gpu.kind.memory_idle_mib for gpu in everything),
    )


@pytest.fixture(scope="module")
def plain(gpus: Path) -> Iterator[Server]:
    """A no_buffer server on the last card, shared by tests that only ask; it decodes ten times too fast."""
    faults.set_fault(gpus, PLAIN_GPU, "slow", factor=0.1)
    server = Server(gpus, PLAIN_GPU, ["--mem-fraction-static", "0.9", "--reasoning-parser", "qwen3"])
    yield server.await_ready()
    server.end()


def shape_of(line: str) -> str:
    """A log line with its numbers taken out, to compare its form."""
    return re.sub(r"\d+(\.\d+)?", "N", line)
