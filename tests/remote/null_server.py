"""OpenAI-style servers that generate nothing, with faults on request: `python null_server.py --ports 8 ...`.

Raw HTTP on asyncio, so that it costs less than what it tests. The first line of stdout is a JSON list of its ports.
A prompt's text comes back as `echo:TEXT`, that of `body:TEXT` as the whole body. GET /_stats tells what came in; POST
/_fault sets a port's fault: one of FAULTS, or an answer: {"status": 503, "headers": {...}, "body": "...", "repeat": 1,
"gzip": false, "endless": false}. With --remember, GET /_answers tells of all ports when (monotonic seconds) the first
request came, how many good answers went out and when each prompt got its first. --down counts its seconds from the
first request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import random
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field

FAULTS = (
    "500",
    "503",
    "429",
    "400",
    "401",
    "hang",
    "reset",
    "badjson",
    "errorbody",
    "empty",
    "trunc",
    "html502",
    "refuse",
)


@dataclass
class Port:
    number: int
    options: argparse.Namespace
    started: float
    fault: str | dict | None = None
    down: tuple[float, float] | None = None
    running: int = 0
    max_running: int = 0
    requests: int = 0
    tokens: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    seen: Counter[str] = field(default_factory=Counter)
    timeline: list[tuple[float, int]] = field(default_factory=list)

    def fault_now(self, text: str, seed: int | None) -> str | dict | None:
        o = self.options
        at = time.monotonic() - o.asked
        if self.down and self.down[0] <= at < self.down[1]:
            return "503"
        if self.fault:
            return self.fault
        if "always400" in text:
            return "400"
        if "always500" in text:
            return "500"
        if "loops" in text and seed is None:
            return "loop"
        if "alwaysempty" in text:
            return "empty"
        roll = random.random()  # noqa: S311
        for name, share in (("500", o.p500), ("429", o.p429), ("reset", o.preset), ("empty", o.pempty),
                            ("trunc", o.ptrunc), ("hang", o.phang), ("length", o.plength),
                            ("short", o.pshort)):  # fmt: skip
            if roll < share:
                return name
            roll -= share
        return None

    async def slot(self) -> None:
        if self.running >= self.options.slots:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            await future
        self.running += 1
        if self.running > self.max_running:
            self.max_running = self.running
            self.timeline.append((time.monotonic() - self.started, self.running))

    def free(self) -> None:
        self.running -= 1
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                break


class Http(asyncio.Protocol):
    def __init__(self, port: Port) -> None:
        self.port = port
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            length = 0
            for line in head.split(b"\r\n")[1:]:
                if line[:15].lower() == b"content-length:":
                    length = int(line[15:])
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            method, path = head.split(b" ", 2)[:2]
            key = self.port.options.key
            if key and f"bearer {key}".encode() not in head.lower():
                self.reply("401", "")
                continue
            self.task = asyncio.ensure_future(self.answer(method, path.decode(), rest[:length]))

    async def send_raw(self, fault: dict) -> None:
        """`endless`: the body over and over, chunked, as fast as it is read."""
        body = fault.get("body", "").encode("utf-8", "surrogateescape") * fault.get("repeat", 1)
        headers = dict(fault.get("headers", {}))
        if fault.get("gzip"):
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        length = ("Transfer-Encoding", "chunked") if fault.get("endless") else ("Content-Length", str(len(body)))
        lines = [f"{name}: {value}\r\n" for name, value in (*headers.items(), length)]
        self.transport.write(f"HTTP/1.1 {fault.get('status', 200)} X\r\n{''.join(lines)}\r\n".encode())
        if not fault.get("endless"):
            self.transport.write(body)
        while fault.get("endless") and not self.transport.is_closing():
            self.transport.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
            await asyncio.sleep(0.001 if self.transport.get_write_buffer_size() < 1 << 22 else 0.05)

    def send(self, status: int, body: bytes, kind: str = "application/json", *, length: int | None = None) -> None:
        size = len(body) if length is None else length
        self.transport.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n".encode() + body
        )

    async def answer(self, method: bytes, path: str, body: bytes) -> None:
        port = self.port
        if method == b"GET":
            self.get(path)
        elif path == "/_fault":
            port.fault = json.loads(body)["fault"]
            self.send(200, b"{}")
        else:
            await self.complete(json.loads(body))

    def get(self, path: str) -> None:
        port = self.port
        if path == "/v1/loads" and port.fault != "dead":
            load = {"num_running_reqs": port.running, "num_waiting_reqs": len(port.waiting),
                    "num_used_tokens": port.tokens, "max_running_requests": port.options.slots}  # fmt: skip
            self.send(200, json.dumps({"loads": [load]}).encode())
        elif path == "/v1/models" and port.fault != "dead":
            self.send(200, b'{"data":[{"id":"null"}]}')
        elif path == "/health":
            self.send(200 if port.fault in (None, "hang") else 503, b"")
        elif path == "/_stats":
            top = port.seen.most_common(1)
            stats = {"requests": port.requests, "max_running": port.max_running, "running": port.running,
                     "prompts": len(port.seen), "most": top[0][1] if top else 0, "timeline": port.timeline}  # fmt: skip
            self.send(200, json.dumps(stats).encode())
        elif path == "/_answers":
            o = port.options
            found = {"asked": o.asked, "answers": o.answers, "times": list(o.answered.values())}
            self.send(200, json.dumps(found).encode())
        elif port.fault != "dead":
            self.send(404, b"{}")

    async def complete(self, request: dict) -> None:
        port, o = self.port, self.port.options
        text = str(request["messages"][-1]["content"])
        port.requests += 1
        o.asked = o.asked or time.monotonic()
        if o.remember:
            port.seen[text[:40]] += 1
        fault = port.fault_now(text, request.get("seed"))
        if isinstance(fault, dict):
            await self.send_raw(fault)
            return
        if fault is None and text.startswith("body:"):
            await self.send_raw({"body": text.removeprefix("body:")})
            return
        if fault in ("hang", "dead"):
            await asyncio.sleep(86400)
        if fault is None or fault in ("empty", "length", "trunc", "short", "loop"):
            await port.slot()
            try:
                await asyncio.sleep(self.latency_s())
            finally:
                port.free()
        self.reply(fault, text)

    def latency_s(self) -> float:
        o = self.port.options
        if o.slow and self.port.number == o.slow[0]:
            return o.lat / 1000 * o.slow[1]
        return o.lat / 1000 * (random.expovariate(1) if o.dist == "tail" else 1)

    def reply(self, fault: str | None, text: str) -> None:
        if fault in ("500", "503", "429", "400", "401"):
            error = {"object": "error", "message": f"a {fault} was asked for", "code": int(fault)}
            self.send(int(fault), json.dumps(error).encode())
        elif fault == "html502":
            self.send(502, b"<html><body>Bad Gateway</body></html>", "text/html")
        elif fault == "badjson":
            self.send(200, b'{"choices": [{"mess')
        elif fault == "errorbody":
            self.send(200, b'{"error": {"message": "The request queue is full.", "code": 503}}')
        elif fault in ("reset", "refuse"):
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.transport.abort()
        else:
            self.send_completion(fault, text)

    def send_completion(self, fault: str | None, text: str) -> None:
        o = self.port.options
        words = "" if fault == "empty" else (f"echo:{text[:200]}" + o.words)
        words += "and so on " * 100 if fault == "loop" else ""
        tokens = 6 if fault == "short" else o.tokens
        self.port.tokens += tokens
        body = json.dumps({
            "id": "0", "object": "chat.completion", "created": 0, "model": "null",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": words, "tool_calls": None},
                         "finish_reason": "length" if fault == "length" else "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens},
        }).encode()  # fmt: skip
        if fault == "trunc":
            self.send(200, body[:-20], length=len(body))
            self.transport.close()
            return
        self.send(200, body)
        if o.remember and fault in (None, "length"):
            o.answers += 1
            o.answered.setdefault(text[:40], time.monotonic())


def parse(argv: list[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--ports", type=int, default=8)
    p.add_argument("--lat", type=float, default=5.0)
    p.add_argument("--dist", choices=("fixed", "tail"), default="fixed")
    p.add_argument("--slots", type=int, default=1_000_000)
    p.add_argument("--tokens", type=int, default=20)
    p.add_argument("--body", type=int, default=0)
    p.add_argument("--key", help="refuse requests without this API key")
    p.add_argument("--remember", action="store_true")
    p.add_argument("--slow", type=lambda s: (int(s.split(":")[0]), float(s.split(":")[1])))
    p.add_argument("--bad", action="append", default=[], help="PORT:FAULT")
    p.add_argument("--down", action="append", default=[], help="PORT:T0:T1")
    for name in ("p500", "p429", "preset", "pempty", "ptrunc", "phang", "plength", "pshort"):
        p.add_argument(f"--{name}", type=float, default=0.0)
    options = p.parse_args(argv)
    options.asked, options.answers, options.answered = 0.0, 0, {}
    dice = random.Random(0)  # noqa: S311
    options.words = dice.randbytes(options.body // 2 + 1).hex()[: options.body]
    return options


async def main(argv: list[str]) -> None:
    options = parse(argv)
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    ports = [Port(number, options, started) for number in range(options.ports)]
    for text in options.bad:
        number, fault = text.split(":")
        ports[int(number)].fault = fault
    for text in options.down:
        number, t0, t1 = text.split(":")
        ports[int(number)].down = (float(t0), float(t1))
    numbers = []
    for port in ports:
        server = await loop.create_server(lambda port=port: Http(port), "127.0.0.1", 0, backlog=1024)
        numbers.append(server.sockets[0].getsockname()[1])
        if port.fault == "refuse":
            server.close()
    sys.stdout.write(json.dumps(numbers) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            import uvloop

            uvloop.run(main(sys.argv[1:]))
        except ImportError:
            asyncio.run(main(sys.argv[1:]))
