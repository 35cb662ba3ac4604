"""Null servers and generators as processes, and the one question that every test asks in the end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import zstandard

from tests.remote.forked import Forked

ROOT = Path(__file__).resolve().parents[2]


Process = Forked | subprocess.Popen[Any]


def write_prompts(folder: Path, count: int, text: Callable[[int], str] = lambda i: f"prompt {i}") -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"r{i}", "prompt": text(i)}) + "\n" for i in range(count)))
    return path


def varied(size: int) -> str:
    """`size` characters that repeat nothing: a null server echoes its prompts, and loops are rejected."""
    return " ".join(map(str, range(size // 3)))[:size]


def wait_until(true: Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


class Rig:
    """Null servers with a generator in front; `log` is what the last generator said."""

    def __init__(self, folder: Path, *server_options: str, ports: int = 8) -> None:
        self.output = folder / "out"
        self.folder = folder
        self.log = ""
        self._options = server_options
        self._count = ports
        self.ports: list[int] = []
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        argv = [sys.executable, str(ROOT / "tests/remote/null_server.py"), "--ports", str(self._count), *self._options]
        self._server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        self.ports = json.loads(self._server.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_generators()
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()

    def kill_generators(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def argv(self, prompts: Path, *options: str) -> list[str]:
        servers = [word for port in range(len(self.ports)) for word in ("--server", f"{self.url(port)}/v1")]
        where = ["--prompts", str(prompts), "--output", str(self.output)]
        if "--concurrency" not in options:
            options = ("--concurrency", "16", *options)
        return [sys.executable, "-m", "remote", "generate", *where, *servers, *options]

    def start(self, prompts: Path, *options: str) -> Process:
        argv, log = self.argv(prompts, *options), self.folder / "generation.log"
        process: Process
        if threading.active_count() == 1 and "obstore" not in sys.modules:
            process = Forked(argv[3:], ROOT, log)
        else:
            # Threads, obstore's own among them, don't come along in a fork.
            with log.open("w") as file:
                process = subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        self._started.append(process)
        return process

    def end(self, process: Process, seconds: float = 60) -> int:
        code = process.wait(seconds)
        self.log = (self.folder / "generation.log").read_text()
        assert "Traceback" not in self.log, self.log
        return code

    def generate(self, prompts: Path, *options: str, seconds: float = 60) -> int:
        return self.end(self.start(prompts, *options), seconds)

    def stats(self, port: int) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url(port)}/_stats", timeout=10) as answer:
            stats: dict[str, Any] = json.load(answer)
        return stats

    def set_fault(self, port: int, fault: str | dict[str, Any] | None) -> None:
        data = json.dumps({"fault": fault}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url(port)}/_fault", data), timeout=10).close()

    def requests(self) -> int:
        return sum(self.stats(port)["requests"] for port in range(len(self.ports)))

    def progress(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            progress: dict[str, Any] = json.loads((self.output / "progress.json").read_text())
            return progress
        return {}

    def wait_for_progress(self, process: Process) -> None:
        """Until more is finished than now, or the generator has ended."""
        before = self.finished()
        wait_until(lambda: self.finished() > before or process.poll() is not None, "progress")

    def finished(self) -> int:
        try:
            return (self.output / ".done_indices").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def lines_of(shard: Path) -> bytes:
    """A shard's lines; a compressed one as any reader of zstd files sees it: whole, each checksum right."""
    if shard.suffix != ".zst":
        return shard.read_bytes()
    with shard.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()


def records(output: Path) -> list[dict[str, Any]]:
    """All records of an output whose every line is whole."""
    found = []
    for shard in sorted(output.glob("completions-*.jsonl*")):
        data = lines_of(shard)
        assert not data or data.endswith(b"\n")
        found += [json.loads(line) for line in data.split(b"\n")[:-1]]
    return found


def listed(output: Path) -> list[int]:
    return [int(line) for line in (output / ".done_indices").read_text().splitlines()]


def nothing_lost_nothing_twice(output: Path, wanted: int | Iterable[int]) -> list[dict[str, Any]]:
    """The shards and `.done_indices` hold exactly the wanted indices, each once, each with its own answer; what the
    manifest says of closed shards is true."""
    wanted = list(range(wanted)) if isinstance(wanted, int) else sorted(wanted)
    found = records(output)
    assert sorted(record["index"] for record in found) == wanted
    assert sorted(listed(output)) == wanted
    for record in found:
        assert record["completion"].startswith(f"echo:{record['messages'][-1]['content'][:200]}")
    for line in (output / "manifest.jsonl").read_text().splitlines() if (output / "manifest.jsonl").exists() else []:
        entry = json.loads(line)
        data = (output / entry["shard"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        assert lines_of(output / entry["shard"]).count(b"\n") == entry["count"]
    return found
