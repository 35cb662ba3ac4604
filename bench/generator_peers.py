"""What the generator is measured against, each a process of its own: NAME PORTS COUNT PROMPT_BYTES.

floor: raw sockets and no HTTP client. library: aiohttp alone, a connection a slot, nothing is parsed or kept.
datatrove: its InferenceRunner with checkpoints, on one server, as it has no list of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

SLOTS = 64
"""Requests in flight a server."""


def prompt_text(index: int, size: int) -> str:
    return f"{index} " + "What does the client cost? " * (size // 27)


def body(index: int, size: int) -> bytes:
    return json.dumps(
        {"model": "null", "messages": [{"role": "user", "content": prompt_text(index, size)}], "stream": False}
    ).encode()


class Raw(asyncio.Protocol):
    def __init__(self, next_body: object, done: asyncio.Future[None]) -> None:
        self.next_body, self.done = next_body, done
        self.left, self.buffer = 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        data = self.next_body()  # type: ignore[operator]
        if data is None:
            self.transport.close()
            return
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(data)
        self.transport.write(head + data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.left:
            self.left -= len(data)
        else:
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            size = int(head[head.find(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
            self.left = end + 4 + size - len(self.buffer)
            self.buffer = b""
        if self.left == 0:
            self.send()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def floor(ports: list[int], count: int, size: int) -> None:
    loop = asyncio.get_running_loop()
    numbers = iter(range(count))

    def next_body() -> bytes | None:
        number = next(numbers, None)
        return None if number is None else body(number, size)

    ends = []
    for _ in range(SLOTS):
        for port in ports:
            done = loop.create_future()
            ends.append(done)
            await loop.create_connection(lambda done=done: Raw(next_body, done), "127.0.0.1", port)
    await asyncio.gather(*ends)


async def library(ports: list[int], count: int, size: int) -> None:
    import aiohttp

    numbers = iter(range(count))
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:

        async def slot(url: str) -> None:
            for number in numbers:
                headers = {"Content-Type": "application/json"}
                async with session.post(url, data=body(number, size), headers=headers) as response:
                    await response.read()

        await asyncio.gather(
            *(slot(f"http://127.0.0.1:{port}/v1/chat/completions") for port in ports for _ in range(SLOTS))
        )


def datatrove(ports: list[int], count: int, size: int) -> None:
    from datatrove.data import Document
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.writers import JsonlWriter

    async def rollout(document: Document, generate: object) -> object:
        return await generate({"messages": [{"role": "user", "content": document.text}]})  # type: ignore[operator]

    with tempfile.TemporaryDirectory() as folder:
        config = InferenceConfig(
            server_type="endpoint", endpoint_url=f"http://localhost:{ports[0]}", model_name_or_path="null",
            max_concurrent_generations=SLOTS * 8, default_generation_params={"max_tokens": 64}, metric_interval=60,
        )  # fmt: skip
        LocalPipelineExecutor(
            pipeline=[
                [Document(text=prompt_text(i, size), id=str(i)) for i in range(count)],
                InferenceRunner(
                    rollout_fn=rollout, config=config, records_per_chunk=500,
                    checkpoints_local_dir=str(Path(folder) / "checkpoints"),
                    output_writer=JsonlWriter(
                        f"{folder}/out", output_filename="${rank}_chunk_${chunk_index}.jsonl", compression=None
                    ),
                ),
            ],
            logging_dir=str(Path(folder) / "logs"),
        ).run()  # fmt: skip


if __name__ == "__main__":
    name, ports, count, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if name == "datatrove":
        datatrove(ports, count, size)
    else:
        import uvloop

        uvloop.run({"floor": floor, "library": library}[name](ports, count, size))
