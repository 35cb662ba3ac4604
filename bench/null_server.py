"""The null server of the benchmarks: every POST is answered with the same completion after a fixed time.

Run: python bench/null_server.py --ports 8 --lat 50 --body 200. The first line of stdout is a JSON list of its ports.
GET /_stats: answers so far, when the first request came, and when the first and the last answer went out (monotonic
seconds).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

_WORDS = ("so", "the", "answer", "goes", "on", "for", "a", "while", "word", "by", "and", "never", "twice", "alike")


class Stats:
    def __init__(self) -> None:
        self.count = 0
        self.asked = self.first = self.last = 0.0
        self.running = self.most = 0


class Http(asyncio.Protocol):
    """Knows requests with a Content-Length, one after another on a connection."""

    stats = Stats()
    answer = b""
    lat_s = 0.0

    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            self.buffer = self.buffer[end + 4 + size :]
            if head.startswith(b"post"):
                self.stats.asked = self.stats.asked or time.monotonic()
                self.stats.running += 1
                self.stats.most = max(self.stats.most, self.stats.running)
                self.loop.call_later(self.lat_s, self.reply, b"connection: close" in head)
            else:
                self.get(head.split(b" ", 2)[1])

    def reply(self, close: bool) -> None:  # noqa: FBT001
        stats = self.stats
        stats.running -= 1
        if self.transport.is_closing():
            return
        stats.last = time.monotonic()
        stats.first = stats.first or stats.last
        stats.count += 1
        self.transport.write(self.answer)
        if close:
            self.transport.close()

    def get(self, path: bytes) -> None:
        body = json.dumps(vars(self.stats)).encode() if path == b"/_stats" else b'{"data":[{"id":"null"}]}'
        status = b"200 OK" if path in (b"/_stats", b"/v1/models", b"/health") else b"404 Not Found"
        self.transport.write(response(body, status))


def response(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def completion(body: int) -> bytes:
    dice = random.Random(0)
    words = "".join(f"{dice.choice(_WORDS)} {dice.randrange(10**4)} " for _ in range(body // 6))[:body]
    choice = {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 400, "completion_tokens": body // 4, "total_tokens": 400 + body // 4}
    return json.dumps(
        {"id": "0", "object": "chat.completion", "model": "null", "choices": [choice], "usage": usage}
    ).encode()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--lat", type=float, default=50.0, help="milliseconds")
    parser.add_argument("--body", type=int, default=200, help="bytes of text in an answer")
    options = parser.parse_args()
    Http.answer, Http.lat_s = response(completion(options.body)), options.lat / 1000
    loop = asyncio.get_running_loop()
    numbers = []
    for _ in range(options.ports):
        server = await loop.create_server(Http, "127.0.0.1", 0, backlog=4096)
        numbers.append(server.sockets[0].getsockname()[1])
    sys.stdout.write(json.dumps(numbers) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
