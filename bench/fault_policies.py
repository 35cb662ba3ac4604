"""A raw-socket client under four ways to spread prompts over servers: POLICY PORTS COUNT. Prints {"done", "failed"}.

static: the prompts are split beforehand. rr: round robin with one limit for all. pull: each server's slots draw from
one queue. breaker: pull, and a server with 5 failures in a row is left out but for a probe a second; what fails there
meanwhile uses up no attempt. All: 3 attempts, a time-out of 5 s, no back-off, a failed prompt goes to the queue's end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import deque

SLOTS, ATTEMPTS, TIMEOUT_S = 32, 3, 5.0
IDLE_S = 0.05
TRIPS = 5
PROBE_S = 1.0


class Connection(asyncio.Protocol):
    """One request at a time; connects again when it must."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bool] | None = None
        self.buffer = b""

    async def ask(self, text: str) -> bool:
        """False: no good answer in time."""
        loop = asyncio.get_running_loop()
        try:
            if self.transport is None:
                await loop.create_connection(lambda: self, "127.0.0.1", self.port)
        except OSError:
            return False
        assert self.transport is not None
        data = json.dumps({"model": "null", "messages": [{"role": "user", "content": text}]}).encode()
        self.answer, self.buffer = loop.create_future(), b""
        timer = loop.call_later(TIMEOUT_S, self.end, False)  # noqa: FBT003
        self.transport.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        good = await self.answer
        timer.cancel()
        if not good and self.transport is not None:
            self.transport.abort()
            self.transport = None
        return good

    def end(self, good: bool) -> None:  # noqa: FBT001
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(good)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self.end(False)  # noqa: FBT003

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if end and len(rest) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self.end(head.startswith(b"HTTP/1.1 200"))


class Breaker:
    def __init__(self) -> None:
        self.failures, self.open, self.probe_at = 0, False, 0.0

    def may_send(self) -> bool:
        if not self.open:
            return True
        if time.monotonic() < self.probe_at:
            return False
        self.probe_at = time.monotonic() + TIMEOUT_S + PROBE_S
        return True

    def note(self, *, good: bool) -> bool:
        """True when a failure counts against the prompt."""
        counted = not self.open
        if good:
            self.failures, self.open = 0, False
            return False
        self.failures += 1
        if self.failures >= TRIPS:
            self.open, self.probe_at = True, time.monotonic() + PROBE_S
        return counted


class Run:
    def __init__(self, policy: str, ports: list[int], count: int) -> None:
        self.policy, self.ports = policy, ports
        self.done = self.failed = 0
        prompts = [(f"prompt {index}", 0) for index in range(count)]
        if policy == "static":
            self.queues = [deque(prompts[place :: len(ports)]) for place in range(len(ports))]
        else:
            self.queues = [deque(prompts)] * len(ports)
        self.left = [len(queue) for queue in self.queues] if policy == "static" else [count] * len(ports)
        self.breakers = [Breaker() for _ in ports]
        self.turn = itertools.cycle(range(len(ports)))

    async def slot(self, place: int) -> None:
        connections = [Connection(port) for port in self.ports]
        queue = self.queues[place]
        while self.left[place]:
            if not queue or (self.policy == "breaker" and not self.breakers[place].may_send()):
                await asyncio.sleep(IDLE_S)
                continue
            text, attempts = queue.popleft()
            where = next(self.turn) if self.policy == "rr" else place
            good = await connections[where].ask(text)
            counts = self.breakers[place].note(good=good) if self.policy == "breaker" else not good
            if good:
                self.done += 1
            elif attempts + counts >= ATTEMPTS:
                self.failed += 1
            else:
                queue.append((text, attempts + counts))
                continue
            for other in [place] if self.policy == "static" else range(len(self.ports)):
                self.left[other] -= 1

    async def run(self) -> None:
        await asyncio.gather(*(self.slot(place) for _ in range(SLOTS) for place in range(len(self.ports))))
        print(json.dumps({"done": self.done, "failed": self.failed}))


if __name__ == "__main__":
    import uvloop

    uvloop.run(Run(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])).run())
