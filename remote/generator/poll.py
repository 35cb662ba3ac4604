"""What a server says of itself, read every two seconds while prompts are fed to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remote.generator.endpoint import Client
from remote.generator.feeding import Feeding
from remote.generator.server import Server
from remote.log_lines import LogLines

POLL_S = 2.0


async def poll(server: Server, client: Client, feeding: Feeding, log: LogLines, clock: Callable[[], float]) -> None:
    """Looks at the server every POLL_S, sooner while it isn't fed; until it is cancelled."""
    while True:
        try:
            await _look_at(server, client, feeding, log, clock)
        except Exception as error:  # noqa: BLE001 (its answers to prompts tell what it is good for)
            server.polled = True
            said = f"what {server.url} says of itself can't be read: {type(error).__name__}: {error}"
            log.say_seldom(f"poll {server.url}", said)
        await asyncio.sleep(POLL_S if server.usable else POLL_S / 4)


async def _look_at(server: Server, client: Client, feeding: Feeding, log: LogLines, clock: Callable[[], float]) -> None:
    """Reads what the server can hold and what it does."""
    load = await client.observe_load(server.url)
    if load is not None and not server.model_known and feeding.model is None:
        server.note_model(await client.observe_model(server.url))
    known = server.load.capacity if server.load else None
    server.note_load(load, clock())
    if load is not None and load.capacity not in (None, known):
        log.say(f"{server.url} runs {load.capacity} requests at once; {server.limit} are sent")
    if server.is_back and server.breaker.open and await client.observe_health(server.url):
        server.note_restarted()
        log.say(f"{server.url} answers again")
