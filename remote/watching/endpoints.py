"""One server's /v1/loads and /metrics, asked again and again by a thread of its own, so that one that hangs delays
nobody."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Literal
from urllib.parse import urlsplit

from rackhand.engines.sglang.exposition import LOADS, METRICS, Reading, parse_loads, parse_metrics

TIMEOUT_S = 3.0
RETRY_MISSING_S = 30.0
"""An endpoint that answered 404 or so is asked again after this long: the server may be a new one."""
RATE_WINDOW_S = 10.0
LARGEST_ANSWER = 8 * 1024 * 1024

Answer = Literal["unasked", "ok", "refused", "silent"]


class Endpoints:
    """The latest answers. `answer`: ok when anything came back over HTTP, refused when the port is closed, silent
    when nothing came within TIMEOUT_S."""

    def __init__(self, url: str, *, interval_s: float, key: str | None, stop: threading.Event) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._interval_s, self._key, self._stop = interval_s, key, stop
        self.answer: Answer = "unasked"
        self.answered_at: float | None = None
        self.moved_at: float | None = None
        self.asked = threading.Event()
        self._reading = Reading()
        self._at = 0.0
        self._skip_until = {LOADS: 0.0, METRICS: 0.0}
        self._counts: deque[tuple[float, float]] = deque(maxlen=256)
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"endpoints {url}")

    def start(self) -> None:
        self._thread.start()

    def reading(self) -> Reading:
        """The latest figures; empty when they are older than three rounds."""
        age = time.monotonic() - self._at
        return self._reading if age < 3 * self._interval_s + TIMEOUT_S else Reading()

    def tok_s(self) -> float | None:
        """The counter's rate over the last RATE_WINDOW_S; None without /metrics or before the second look."""
        if self.reading().decoded_tokens is None or len(self._counts) < 2:
            return None
        counts = tuple(self._counts)
        since = counts[-1][0] - max(RATE_WINDOW_S, 3 * self._interval_s)
        first = next((count for count in counts if count[0] >= since), counts[0])
        seconds = counts[-1][0] - first[0]
        return (counts[-1][1] - first[1]) / seconds if seconds > 0 else None

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            self._look()
            self.asked.set()
            self._stop.wait(max(0.2, self._interval_s - (time.monotonic() - begin)))

    def _look(self) -> None:
        loads = self._ask(LOADS)
        metrics = self._ask(METRICS) if self.answer != "refused" else None
        if self.answer == "refused":
            self._counts.clear()
            return
        now = time.monotonic()
        read_loads = parse_loads(loads) if loads is not None else None
        read_metrics = parse_metrics(metrics) if metrics is not None else None
        if read_loads is None and read_metrics is None:
            return
        self._reading, self._at = _merged(read_loads, read_metrics), now
        self._count(now, self._reading.decoded_tokens)

    def _count(self, now: float, tokens: float | None) -> None:
        if tokens is None:
            return
        if self._counts and tokens < self._counts[-1][1]:
            self._counts.clear()
        if self._counts and tokens > self._counts[-1][1]:
            self.moved_at = time.time()
        self._counts.append((now, tokens))

    def _ask(self, path: str) -> bytes | None:
        if time.monotonic() < self._skip_until[path]:
            return None
        try:
            status, body = get(self._address, path, self._key)
        except ConnectionRefusedError:
            self.answer = "refused"
            self._skip_until = dict.fromkeys(self._skip_until, 0.0)
            return None
        except (OSError, ValueError):
            self.answer = "silent"
            return None
        self.answer, self.answered_at = "ok", time.time()
        if status != 200:
            self._skip_until[path] = time.monotonic() + (RETRY_MISSING_S if status in (401, 404, 405) else 0.0)
            return None
        return body


def _merged(loads: Reading | None, metrics: Reading | None) -> Reading:
    """Counts from /v1/loads, which are of this moment; usages and the counter from /metrics."""
    if loads is None or metrics is None:
        return loads or metrics or Reading()
    return replace(
        metrics,
        running=loads.running if loads.running is not None else metrics.running,
        queue=loads.queue if loads.queue is not None else metrics.queue,
        cap=loads.cap,
        pending_tokens=loads.pending_tokens,
        kv_usage=metrics.kv_usage if metrics.kv_usage is not None and loads.running != 0 else loads.kv_usage,
    )


def get(address: tuple[str, int], path: str, key: str | None) -> tuple[int, bytes]:
    """Status and body of one GET. Raises OSError (TimeoutError, ConnectionRefusedError ...), or ValueError for
    what isn't HTTP. http.client would load OpenSSL and the e-mail package: memory that a watch doesn't have."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Connection: close", "Accept: */*"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    deadline = time.monotonic() + TIMEOUT_S
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        pieces, size = [], 0
        while piece := connection.recv(65536):
            pieces.append(piece)
            size += len(piece)
            if size > LARGEST_ANSWER:
                raise ValueError("the answer is too large")
            if time.monotonic() > deadline:
                raise TimeoutError
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("not HTTP")
    chunked = b"transfer-encoding: chunked" in head.lower()
    return int(words[1]), _unchunked(body) if chunked else body


def _unchunked(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if length == 0:
            break
        pieces.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(pieces)
