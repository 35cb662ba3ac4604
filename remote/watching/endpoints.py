"""One server's /v1/loads and /metrics, asked again and again by a thread of its own, so that one that hangs delays
nobody."""

from __future__ import annotations

import socket
import threading
import time
from typing import Literal
from urllib.parse import urlsplit

from rackhand.engines import Engine
from rackhand.engines.seen import Reading
from remote.redirects import words_of_redirect
from remote.watching.rate import CountedRate

TIMEOUT_S = 3.0
RETRY_MISSING_S = 30.0
"""An endpoint that answered 404, a redirect or so is asked again after this long: the server may be a new one."""
LARGEST_ANSWER = 8 * 1024 * 1024

Answer = Literal["unasked", "ok", "refused", "silent"]


class Endpoints:
    """The latest answers. `answer`: ok when anything came back over HTTP, refused when the port is closed, silent
    when nothing came within TIMEOUT_S. `moved`: where the last one leads, when that was a redirect."""

    def __init__(
        self, url: str, engine: Engine, *, interval_s: float, key: bytes | None, stop: threading.Event
    ) -> None:
        self._engine = engine
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._interval_s, self._key, self._stop = interval_s, key, stop
        self.answer: Answer = "unasked"
        self.answered_at: float | None = None
        self.moved = ""
        self.moved_at: float | None = None
        self.asked = threading.Event()
        self._reading = Reading()
        self._at = 0.0
        self._skip_until = dict.fromkeys(engine.watch_paths, 0.0)
        self._rate = CountedRate(interval_s)
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"endpoints {url}")

    def start(self) -> None:
        self._thread.start()

    def reading(self) -> Reading:
        """The latest figures; empty when they are older than three rounds."""
        age = time.monotonic() - self._at
        return self._reading if age < 3 * self._interval_s + TIMEOUT_S else Reading()

    def tok_s(self) -> float | None:
        """The counter's rate. None without a counter, and until enough of it was seen."""
        return None if self.reading().decoded_tokens is None else self._rate.tok_s()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            self._look()
            self.asked.set()
            self._stop.wait(max(0.2, self._interval_s - (time.monotonic() - begin)))

    def _look(self) -> None:
        readings = []
        for path in self._engine.watch_paths:
            body = self._ask(path)
            if self.answer == "refused":
                self._rate.forget()
                return
            reading = None if body is None else self._engine.parse_reading(path, body)
            if reading is not None:
                readings.append(reading)
        if readings:
            now = time.monotonic()
            self._reading, self._at = _merged(readings), now
            tokens = self._reading.decoded_tokens
            if tokens is not None and self._rate.take(now, tokens, self._reading.running):
                self.moved_at = time.time()

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
        self.moved = body.decode() if 300 <= status < 400 else ""
        if status != 200:
            self._skip_until[path] = time.monotonic() + (
                RETRY_MISSING_S if 300 <= status < 400 or status in (401, 404, 405) else 0.0
            )
            return None
        return body


def _merged(readings: list[Reading]) -> Reading:
    """Counts from the first that has them, which is of this moment; usages and counters from the last, unless the
    server is idle: gauges aren't renewed then."""
    first, last = readings[0], readings[-1]
    if first is last:
        return first
    idle = first.running == 0
    return Reading(
        running=last.running if first.running is None else first.running,
        queue=last.queue if first.queue is None else first.queue,
        cap=last.cap if first.cap is None else first.cap,
        pending_tokens=last.pending_tokens if first.pending_tokens is None else first.pending_tokens,
        kv_usage=first.kv_usage if idle or last.kv_usage is None else last.kv_usage,
        mamba_usage=None if idle else last.mamba_usage,
        accept_len=None if idle else last.accept_len,
        decoded_tokens=last.decoded_tokens,
    )


def get(address: tuple[str, int], path: str, key: bytes | None) -> tuple[int, bytes]:
    """Status and body of one GET, of a redirect its words.

    Raises OSError (TimeoutError, ConnectionRefusedError ...), or ValueError for
    what isn't HTTP. http.client would load OpenSSL and the e-mail package: memory that a watch doesn't have."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Connection: close", "Accept: */*"]
    if key:
        lines.append(f"Authorization: Bearer {key.decode()}")
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
    status = int(words[1])
    if 300 <= status < 400:
        return status, words_of_redirect(status, _header(head, b"location")).encode()
    return status, _unchunked(body) if chunked else body


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.decode("utf-8", "replace").strip()
    return ""


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
