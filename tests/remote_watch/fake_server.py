"""A server's outside, for watches: /v1/loads and /metrics as SGLang 0.5.23 recorded them, and a log that grows."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures" / "sglang-0.5.23"


class FakeServer:
    """Set the attributes; the next answer shows them. `metrics` off answers 404, as without --enable-metrics."""

    def __init__(self) -> None:
        self.running, self.queue, self.cap = 64, 3, 72
        self.kv_usage, self.mamba_usage = 0.4241, 0.59
        self.decoded = 1000.0
        self.metrics = self.loads = True
        self.frozen = threading.Event()
        self.key: str | None = None
        self.asked: list[str] = []
        self._loads = json.loads((FIXTURES / "h7_loads_under_32.json").read_text())
        self._metrics = (FIXTURES / "h7_metrics_under_32.txt").read_text()

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.frozen.is_set():
            time.sleep(30)
        if path == "/metrics" and self.metrics:
            return 200, self._metrics_text().encode()
        if path == "/v1/loads" and self.loads:
            if self.key and authorization != f"Bearer {self.key}":
                return 401, b'{"error":"Unauthorized"}'
            load = self._loads["loads"][0]
            load.update(num_running_reqs=self.running, num_waiting_reqs=self.queue, max_running_requests=self.cap)
            load.update(num_used_tokens=round(self.kv_usage * load["max_total_num_tokens"]), token_usage=0.9)
            return 200, json.dumps(self._loads).encode()
        return 404, b'{"detail":"Not Found"}'

    def _metrics_text(self) -> str:
        text = self._metrics
        for name, value in (
            ("num_running_reqs", self.running),
            ("num_queue_reqs", self.queue),
            ("full_token_usage", self.kv_usage),
            ("mamba_usage", self.mamba_usage),
        ):
            text = re.sub(rf"(?m)^(sglang:{name}\{{.*\}}) .*$", rf"\g<1> {value}", text)
        return re.sub(r'(?m)^(sglang:realtime_tokens_total\{.*mode="decode".*\}) .*$', rf"\g<1> {self.decoded}", text)


@contextmanager
def serving(fake: FakeServer) -> Iterator[str]:
    """Serves `fake` on a free loopback port; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = fake.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def decode_line(at: float, *, running: int = 64, tok_s: float = 1175.0, queue: int = 3, usage: float = 0.42) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return (
        f"[{stamp}] Decode batch, #running-req: {running}, #full token: 181000, full token usage: {usage:.2f}, "
        f"mamba num: {2 * running}, mamba usage: 0.59, cuda graph: True, gen throughput (token/s): {tok_s:.2f}, "
        f"#queue-req: {queue}\n"
    )


def ready_line(at: float, cap: int) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return (
        f"[{stamp}] max_total_num_tokens=431872, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={cap}, context_len=262144, available_gpu_mem=7.10 GB\n"
    )
